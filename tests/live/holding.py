# SPDX-License-Identifier: Apache-2.0
"""holding.py CONNECTIONS: opens them over loopback and holds both ends, while one more is at work.

Prints a line when all are open; ends with its standard input.
"""

from __future__ import annotations

import multiprocessing
import resource
import socket
import sys
import threading
import time
from typing import Any

MOST = 9000
"""Connections of a process: two descriptors each."""


def work() -> None:
    """Request and answer, 1,000 times a second."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    while True:
        client.sendall(b"?")
        server.sendall(server.recv(1))
        client.recv(1)
        time.sleep(0.001)


def hold(number: int, count: int, told: Any, until: Any) -> None:
    """Open them, tell it, and wait. Each process has an address, and so ports, of its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with socket.create_server((f"127.0.1.{number + 1}", 0)) as listener:
        held = []
        for _ in range(count):
            held.append(socket.create_connection(listener.getsockname()))
            held.append(listener.accept()[0])
        told.release()
        until.wait()


def main() -> None:
    count = int(sys.argv[1])
    told, until = multiprocessing.Semaphore(0), multiprocessing.Event()
    processes = [
        multiprocessing.Process(target=hold, args=(number, min(MOST, count - done), told, until))
        for number, done in enumerate(range(0, count, MOST))
    ]
    for process in processes:
        process.start()
    for _ in processes:
        told.acquire()
    threading.Thread(target=work, daemon=True).start()
    print("open", flush=True)
    sys.stdin.read()
    until.set()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
