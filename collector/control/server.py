# SPDX-License-Identifier: Apache-2.0
"""The server at a collector's control socket. The session's main thread handles the requests.

A request is one line of JSON, and so is its answer. Then the connection ends:
    {"op": "enable", "events": ["SCHEDIN"]}  ->  {"ok": true, "result": {...}}
                                             or  {"ok": false, "error": {"message", "hint", "code"}}
A thread without any privilege reads and writes the sockets; control/client.py is a client.
Everybody may read what public_status() says, at another socket: control/onlookers.py.

    client     server's thread                         main thread
      | line -> _receive: parse, put in _requests, wake  -> serve_pending
      | <- line _take_answers: _reply, _send             <- _answers, eventfd
"""

from __future__ import annotations

import json
import math
import os
import queue
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.control.access import Peer, control_folder, find_group, listen, peer_of
from collector.control.onlookers import Onlookers
from collector.control.values import is_filters, is_limits
from collector.linux.privileges import User, settle
from collector.metrics.watching import MOST_ROWS, SORTS
from formats.base.closing import Closing
from formats.base.errors import PrivilegeError, TcpkmonError, UsageError

if TYPE_CHECKING:
    from collector.control.handlers import Handlers

REQUEST_BYTES = 1 << 16
CLIENTS = 16
TIME_LIMIT_S = 5.0
"""How long a client may take to send its line, and to read its answer."""
LARGEST_MARK = (1 << 64) - 1
ROUND_S = 0.01
"""The thread looks at its sockets no more often: each time costs the reader time, which shares
Python's lock. So clients in a loop get 100 connections a second, whoever they are."""
_NEVER_S = 3600.0


@dataclass(eq=False)
class _Client:
    socket: socket.socket
    peer: Peer
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    answer: bytes = b""


class ControlServer(Closing):
    """Listens at FOLDER/PID.sock, and answers inside a `with`.

    It accepts root, the collector's user, and the members of `group`. Make it before capabilities
    are dropped. user: whom the thread becomes. wake: called in another thread when a request waits
    for serve_pending(). UsageError for an unknown group, FileError or PrivilegeError when it cannot
    use the folder.
    """

    def __init__(
        self,
        folder: Path | None = None,
        group: str | None = None,
        wake: Callable[[], None] = lambda: None,
        user: User | None = None,
    ) -> None:
        self._user = user
        self._gid = find_group(group) if group is not None else None
        self._group = group
        self._wake_session = wake
        self.path, self._listener = listen(folder or control_folder(), self._gid)
        try:
            self.onlookers = Onlookers(self.path, self._ask_status)
        except TcpkmonError:
            self._listener.close()
            raise
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Without a client: onlookers want the status.
        self._requests: queue.SimpleQueue[tuple[_Client | None, dict[str, Any]]]
        self._requests = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[_Client | None, bytes]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        self._clients: set[_Client] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tcpkmon-control", daemon=True)

    def serve_pending(self, handlers: Handlers) -> None:
        """Handle the requests that wait, and return. Call it each round."""
        while True:
            try:
                client, request = self._requests.get_nowait()
            except queue.Empty:
                return
            try:
                if client is None:
                    result = handlers.public_status()
                else:
                    _, call = _REQUESTS[request["op"]]
                    result = call(handlers, request, client.peer.pid)
                answer = {"ok": True, "result": result}
            except TcpkmonError as error:
                answer = _refusal(error)
            except Exception as error:  # the client gets it: it does not end the capture
                why = (isinstance(error, OSError) and error.strerror) or repr(error)
                answer = _refusal(TcpkmonError(f"{request['op']} failed: {why}"))
            self._answers.put((client, _line(answer)))
            self._nudge()

    def __enter__(self) -> ControlServer:
        # The main thread must get the signals, or they would not end its wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def close(self) -> None:
        """Remove the socket. Clients that still wait get an error."""
        if self._closing:
            return
        self._closing = True
        self._nudge()
        if self._thread.is_alive():
            self._thread.join()
        self.onlookers.close()
        with suppress(OSError):
            self.path.unlink()
        self._listener.close()
        self._selector.close()
        os.close(self._fd)

    def _nudge(self) -> None:
        os.eventfd_write(self._fd, 1)

    # What follows runs in the thread.

    def _run(self) -> None:
        with suppress(PrivilegeError):  # then it has no privileges
            settle(user=self._user)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self.onlookers.listener, selectors.EVENT_READ)
        self._selector.register(self._fd, selectors.EVENT_READ)
        while not self._closing:
            self._drop_late()
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self.onlookers.listener:
                    self.onlookers.accept()
                elif key.fileobj == self._fd:
                    os.eventfd_read(self._fd)
                    self._take_answers()
                elif key.data.answer:
                    self._send(key.data)
                else:
                    self._receive(key.data)
            time.sleep(ROUND_S)
        over = _line(_refusal(TcpkmonError("the capture is over")))
        self._take_answers()
        self.onlookers.send(over)
        for client in list(self._clients):
            self._reply(client, over if not client.answer else b"")
            self._drop(client)

    def _timeout_s(self) -> float:
        first = min((client.deadline for client in self._clients), default=math.inf)
        return min(_NEVER_S, max(0.0, first - time.monotonic()))

    def _drop_late(self) -> None:
        now = time.monotonic()
        for client in [c for c in self._clients if c.deadline <= now]:
            self._drop(client)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client is gone already, or there is no descriptor left
        connection.setblocking(False)
        try:
            peer = peer_of(connection)
        except OSError:
            connection.close()
            return
        client = _Client(connection, peer, time.monotonic() + TIME_LIMIT_S)
        full = len(self._clients) >= CLIENTS
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        if not peer.may_control(self._gid):
            members = "root" if self._group is None else f"root and the group {self._group}"
            self._reply(client, _line(_refusal(PrivilegeError(f"only {members} may ask this"))))
        elif full:
            self._reply(client, _line(_refusal(TcpkmonError("too many ask at once", "try again"))))
        if full:
            self._drop(client)

    def _ask_status(self) -> None:
        self._requests.put((None, {"op": "status"}))
        self._wake_session()

    def _receive(self, client: _Client) -> None:
        try:
            part = client.socket.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(client)
            return
        client.received += part
        line, end, _ = client.received.partition(b"\n")
        if len(line) > REQUEST_BYTES:
            refusal = UsageError(f"a request has at most {REQUEST_BYTES} bytes")
            self._reply(client, _line(_refusal(refusal)))
        elif end:
            try:
                request = parse(line)
            except UsageError as error:
                self._reply(client, _line(_refusal(error)))
                return
            client.deadline = math.inf
            self._selector.unregister(client.socket)
            self._requests.put((client, request))
            self._wake_session()

    def _take_answers(self) -> None:
        while True:
            try:
                client, answer = self._answers.get_nowait()
            except queue.Empty:
                return
            if client is None:
                self.onlookers.tell(answer)
                continue
            self._selector.register(client.socket, selectors.EVENT_WRITE, client)
            self._reply(client, answer)

    def _reply(self, client: _Client, answer: bytes) -> None:
        client.answer += answer
        client.deadline = time.monotonic() + TIME_LIMIT_S
        with suppress(KeyError):
            self._selector.modify(client.socket, selectors.EVENT_WRITE, client)
        self._send(client)

    def _send(self, client: _Client) -> None:
        try:
            sent = client.socket.send(client.answer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.answer = client.answer[sent:]
        if not client.answer:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.discard(client)
        with suppress(KeyError):
            self._selector.unregister(client.socket)
        client.socket.close()


def parse(line: bytes | bytearray) -> dict[str, Any]:
    """A request with a known `op` and valid values. UsageError for any other."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError("a request is one line of JSON") from None
    if not isinstance(request, dict) or not isinstance(request.get("op"), str):
        raise UsageError("a request is a JSON object with an op")
    if request["op"] not in _REQUESTS:
        raise UsageError(f"unknown request {request['op']!r}", f"there are {', '.join(_REQUESTS)}")
    values, _ = _REQUESTS[request["op"]]
    if unknown := request.keys() - {"op", *values}:
        raise UsageError(f"{request['op']} has no {sorted(unknown)[0]!r}")
    for name, valid in values.items():
        if not valid(request.get(name)):
            raise UsageError(f"{request['op']}: not a valid value of {name!r}")
    return request


def _is_names(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(name, str) and name for name in value)
    )


def _within(least: int, most: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and least <= value <= most


_Values = dict[str, Callable[[object], bool]]
_Call = Callable[["Handlers", dict[str, Any], int], dict[str, Any]]
_REQUESTS: dict[str, tuple[_Values, _Call]] = {
    "status": ({}, lambda to, r, pid: to.status()),
    "metrics": ({}, lambda to, r, pid: to.metrics()),
    "top": (
        {"sort": lambda value: value in SORTS, "most": _within(1, MOST_ROWS)},
        lambda to, r, pid: to.top(r["sort"], r["most"]),
    ),
    "enable": ({"events": _is_names}, lambda to, r, pid: to.set_enabled(r.get("events"), True)),
    "disable": ({"events": _is_names}, lambda to, r, pid: to.set_enabled(r.get("events"), False)),
    "mark": ({"number": _within(0, LARGEST_MARK)}, lambda to, r, pid: to.mark(r["number"], pid)),
    "dump": ({}, lambda to, r, pid: to.dump(pid)),
    "buffer-size": (
        {"bytes": _within(1, 1 << 40)}, lambda to, r, pid: to.set_buffer_bytes(r["bytes"])
    ),
    "lowwater": ({"percent": _within(1, 99)}, lambda to, r, pid: to.set_low_water(r["percent"])),
    "set-filters": (
        {"filters": is_filters}, lambda to, r, pid: to.set_filters(r["filters"])
    ),
    "set-limits": ({"limits": is_limits}, lambda to, r, pid: to.set_limits(r["limits"])),
    "sampler-period": (
        {"ns": _within(1, 10**12)}, lambda to, r, pid: to.set_sampler_period(r["ns"])
    ),
}  # fmt: skip
"""By `op`: the values of a request, each with its check, and its handler's call. pid: the client's
process."""


def _refusal(error: TcpkmonError) -> dict[str, Any]:
    code = error.exit_code
    return {"ok": False, "error": {"message": error.message, "hint": error.hint, "code": code}}


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=True).encode() + b"\n"
