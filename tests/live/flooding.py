# SPDX-License-Identifier: Apache-2.0
"""Run as a program by tests/live/faults.py: makes counted receive calls on a connection of its own.

Receive call k (from 0) asks for, and gets, k % PERIOD + 1 bytes: that is the entry's callvalue.
Nothing is copied or taken away (MSG_PEEK | MSG_TRUNC), so a call costs little. Shared memory holds
u64 words: calls made so far, and what is not 0 when it shall stop.

    python flooding.py MEMORY_FD   <- lines "CPU COUNT RATE", -> "PORT", then "TOTAL" for each line
"""

from __future__ import annotations

import array
import fcntl
import mmap
import os
import socket
import sys
import termios
import time

PERIOD = 1_000_000
CALLS, STOP = 0, 1
MEMORY_BYTES = mmap.PAGESIZE
_AVAILABLE = 1 << 20
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_CHUNK = 256
_TICKS = 50


def connect() -> tuple[socket.socket, socket.socket, int]:
    """A connection whose first end has PERIOD bytes or more to read, and the listener's port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 4 * _AVAILABLE)
        reader.connect(("127.0.0.1", port))
        writer, _ = listener.accept()
    writer.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * _AVAILABLE)
    writer.sendall(bytes(_AVAILABLE))
    waiting = array.array("i", [0])
    while waiting[0] < PERIOD:
        fcntl.ioctl(reader, termios.FIONREAD, waiting)
    return reader, writer, port


def flood(reader: socket.socket, memory: memoryview, cpu: int, count: int, rate: int) -> None:
    """Makes `count` calls (0: until told to stop) on one CPU, at most `rate` a second (0: any)."""
    os.sched_setaffinity(0, {cpu})
    receive = reader.recv_into
    buffer = bytearray(PERIOD)
    flags = socket.MSG_PEEK | socket.MSG_TRUNC
    chunk = max(1, rate // _TICKS) if rate else _CHUNK
    start, due = memory[CALLS], time.monotonic()
    while not memory[STOP] and not (count and memory[CALLS] - start >= count):
        left = count - (memory[CALLS] - start) if count else chunk
        first = memory[CALLS]
        for number in range(first, first + min(chunk, left)):
            if receive(buffer, number % PERIOD + 1, flags) != number % PERIOD + 1:
                raise SystemExit(f"receive call {number} got less than it asked for")
        memory[CALLS] = first + min(chunk, left)
        if rate:
            due += 1 / _TICKS
            time.sleep(max(0.0, due - time.monotonic()))


def main() -> None:
    """Obeys standard input until its end."""
    with mmap.mmap(int(sys.argv[1]), MEMORY_BYTES) as shared:
        memory = memoryview(shared).cast("Q")
        reader, _writer, port = connect()
        print(port, flush=True)
        for line in sys.stdin:
            flood(reader, memory, *(int(word) for word in line.split()))
            print(memory[CALLS], flush=True)
        memory.release()


if __name__ == "__main__":
    main()
