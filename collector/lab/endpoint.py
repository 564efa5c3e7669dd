# SPDX-License-Identifier: Apache-2.0
"""The two ends of a traffic.Workload: each is a process."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tcpkmon.collector.lab.traffic import TIMEOUT_S, Connection, Tally, Workload
from tcpkmon.collector.linux.netns import set_namespace

BLOCK_BYTES = 1 << 16


def serve(workload: Workload, listener: socket.socket) -> Tally:
    """Run the server: accept and serve all connections of a listening socket."""
    tally = Tally(os.getpid())
    threads = []
    for _ in range(workload.connections):
        stream, _peer = listener.accept()
        bound_waits(stream, TIMEOUT_S)
        seen = _describe(stream)
        tally.connections.append(seen)
        if workload.parallel == 1:
            _answer(workload, stream, seen)
        else:
            thread = threading.Thread(target=_answer, args=(workload, stream, seen))
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join()
    return tally


def open_listener(workload: Workload) -> socket.socket:
    """Open the server's listening socket. The caller closes it."""
    address = workload.listen or workload.server
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    bound_waits(listener, TIMEOUT_S)
    _choose_congestion(listener, workload.congestion)
    listen_at(listener, address, workload.port, max(128, workload.parallel))
    return listener


def listen_at(listener: socket.socket, address: str, port: int, most: int) -> None:
    """Listen; at :: for both families. most: connections that may wait to be accepted."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((address, port))
    listener.listen(most)


def connect_all(workload: Workload) -> Tally:
    """Run the client: open all connections, send, read, close."""
    tally = Tally(os.getpid())
    todo = iter(range(workload.connections))
    lock = threading.Lock()
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            while True:
                with lock:
                    if next(todo, None) is None:
                        return
                _converse(workload, worker, tally, lock)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, workload.parallel)]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return tally


def _converse(workload: Workload, worker: int, tally: Tally, lock: threading.Lock) -> None:
    with socket.socket(family_of(workload.server), socket.SOCK_STREAM) as stream:
        bound_waits(stream, TIMEOUT_S)
        _choose_congestion(stream, workload.congestion)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if workload.client or workload.client_port:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            own_port = workload.client_port + worker if workload.client_port else 0
            stream.bind((workload.client, own_port))
        stream.connect((workload.server, workload.port))
        seen = _describe(stream)
        with lock:
            tally.connections.append(seen)
        if workload.duration_s:
            block = bytes(BLOCK_BYTES)
            end = time.monotonic() + workload.duration_s
            while time.monotonic() < end:
                _send(stream, block, seen)
        else:
            block = bytes(workload.size)
            for _ in range(workload.count if workload.size else 0):
                _send_all(stream, block, seen)
                _receive_all(stream, workload.reply, seen)
        if workload.reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if not workload.server_closes:
            stream.shutdown(socket.SHUT_WR)
        while _receive(stream, seen):
            pass


def _answer(workload: Workload, stream: socket.socket, seen: Connection) -> None:
    expected = workload.count * workload.size
    unanswered = 0
    reply = bytes(workload.reply)
    with stream:
        while not (workload.server_closes and seen.bytes_received >= expected):
            try:
                got = _receive(stream, seen)
            except ConnectionResetError:
                seen.was_reset = True
                return
            if not got:
                return
            unanswered += got
            while reply and not workload.duration_s and unanswered >= workload.size:
                unanswered -= workload.size
                _send_all(stream, reply, seen)


def _send(stream: socket.socket, data: bytes | memoryview, seen: Connection) -> int:
    sent = stream.send(data)
    seen.sends += 1
    seen.bytes_sent += sent
    return sent


def _send_all(stream: socket.socket, data: bytes, seen: Connection) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[_send(stream, rest, seen) :]


def _receive(stream: socket.socket, seen: Connection, most: int = BLOCK_BYTES) -> int:
    seen.receives += 1
    got = len(stream.recv(most))
    seen.bytes_received += got
    return got


def _receive_all(stream: socket.socket, size: int, seen: Connection) -> None:
    while size > 0:
        got = _receive(stream, seen, size)
        if not got:
            raise ConnectionResetError(f"the other end closed with {size} bytes to come")
        size -= got


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bound_waits(stream: socket.socket, limit_s: float) -> None:
    """Set the time-outs in the kernel: Python's own would split one send() into several, and add
    calls that fail with EAGAIN."""
    limit = struct.pack("ll", int(limit_s), 0)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _choose_congestion(stream: socket.socket, name: str) -> None:
    if name:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def congestion_controls() -> list[str]:
    """Those that this kernel has, without loading a module."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def can_use_congestion(name: str) -> bool:
    """Whether sockets of the calling thread's namespace can use this congestion control."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            _choose_congestion(probe, name)
        except OSError:
            return False
    return True


def _describe(stream: socket.socket) -> Connection:
    local: Any = stream.getsockname()
    remote: Any = stream.getpeername()
    return Connection(local[0], local[1], remote[0], remote[1])


def play(role: str, netns: str, text: str) -> int:
    """role: server or client; netns: a descriptor or -; text: a Workload. It prints the tally."""
    if netns != "-":
        set_namespace(int(netns))
    workload = Workload(**json.loads(text))
    try:
        if role == "server":
            with open_listener(workload) as listener:
                print(listener.getsockname()[1], flush=True)
                tally = serve(workload, listener)
        else:
            print("ready", flush=True)
            if not sys.stdin.readline():
                return 0
            tally = connect_all(workload)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(asdict(tally)))
    return 0


def main() -> None:
    """Entry point of the process: ROLE NETNS_FD WORKLOAD_JSON."""
    sys.exit(play(*sys.argv[1:]))
