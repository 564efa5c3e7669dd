# SPDX-License-Identifier: Apache-2.0
"""The server at a collector's control socket. The session's main thread handles the requests.

A request is one line of JSON, and so is its answer. Then the connection ends:
    {"op": "enable", "events": ["SCHEDIN"]}  ->  {"ok": true, "result": {...}}
                                             or  {"ok": false, "error": {"message", "hint", "code"}}
A thread without any privilege reads and writes the sockets (control/lines.py); control/client.py
is a client. Everybody may read what public_status() says, at another socket: control/onlookers.py.
Where a group may ask, root and the collector's user have a socket of their own beside, PID.owner:
at the other the group may fill the queue of those who connect.

    client     server's thread                         main thread
      | line -> _take: parse, put in _requests, wake  -> serve_pending
      | <- line _take_answers: reply                     <- _answers, eventfd
"""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpkmon.collector.control.access import (
    Peer,
    control_folder,
    find_group,
    listen,
    listen_at,
    name_path,
    owner_path,
    write_name,
)
from tcpkmon.collector.control.lines import Client, Lines
from tcpkmon.collector.control.onlookers import Onlookers
from tcpkmon.collector.linux.privileges import User, settle
from tcpkmon.collector.metrics.watching import MOST_ROWS
from tcpkmon.collector.metrics.words import GROUP_SORTS, GROUPS, MOST_WANTED, SORTS
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.options import options_of
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import PrivilegeError, TcpkmonError, UsageError

if TYPE_CHECKING:
    from tcpkmon.collector.control.handlers import Handlers

LARGEST_MARK = (1 << 64) - 1
_LARGEST_LIMIT = (1 << 32) - 1
_FILTERS = options_of(Filters)
ROUND_S = 0.01
"""The thread looks at its sockets no more often: each time costs the reader time, which shares
Python's lock. So clients in a loop get 100 connections a second, whoever they are."""
_NEVER_S = 3600.0
_WRITING = frozenset({
    "enable", "disable", "mark", "buffer-size", "lowwater", "set-filters", "set-limits",
})  # fmt: skip
"""The requests of which entries in the file tell."""
GROUP_WRITES = 1000
"""So many of these the members of a group have together at once, and then GROUP_A_SECOND: the disk,
and the files that retention keeps, are not theirs to fill."""
GROUP_A_SECOND = 1.0


class ControlServer(Closing):
    """Listens at FOLDER/PID.sock, and answers inside a `with`.

    It accepts root, the collector's user, and the members of `group`. Make it before capabilities
    are dropped. user: whom the thread becomes. wake: called in another thread when a request waits
    for serve_pending(). name: of the capture, which everybody may read beside it. UsageError for an
    unknown group, FileError or PrivilegeError when it cannot use the folder.
    """

    def __init__(
        self,
        folder: Path | None = None,
        group: str | None = None,
        wake: Callable[[], None] = lambda: None,
        user: User | None = None,
        name: str = "",
    ) -> None:
        self._user = user
        self._gid = find_group(group) if group is not None else None
        self._wake_session = wake
        self.path, listener = listen(folder or control_folder(), self._gid)
        self._listeners = [listener]
        try:
            if self._gid is not None:
                self._listeners.append(listen_at(owner_path(self.path)))
            write_name(self.path, name)
            self.onlookers = Onlookers(self.path, self._ask_status)
        except TcpkmonError:
            for each in self._listeners:
                each.close()
            raise
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Without a client: onlookers want the status.
        self._requests: queue.SimpleQueue[tuple[Client | None, dict[str, Any]]]
        self._requests = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Client | None, bytes]] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()
        members = "root" if group is None else f"root and the group {group}"
        self._lines = Lines(
            self._selector, self._gid, members, self._take, lambda error: _line(_refusal(error))
        )
        self._closing = False
        self._turns, self._turns_s = float(GROUP_WRITES), time.monotonic()
        self._thread = threading.Thread(target=self._run, name="tcpkmon-control", daemon=True)

    def _take_turn(self, op: str, peer: Peer) -> None:
        """TcpkmonError where a member of the group wrote too much."""
        if peer.is_owner or op not in _WRITING:
            return
        before_s, self._turns_s = self._turns_s, time.monotonic()
        since_s = self._turns_s - before_s
        self._turns = min(self._turns + since_s * GROUP_A_SECOND, GROUP_WRITES)
        if self._turns < 1:
            raise TcpkmonError(
                f"the group has made {GROUP_WRITES:,} changes and marks, and may make "
                f"{GROUP_A_SECOND:g} a second now",
                "try it again in a while, or ask root",
            )
        self._turns -= 1

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
                    self._take_turn(request["op"], client.peer)
                    result = call(handlers, request, client.peer)
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
        for path in (self.path, owner_path(self.path), name_path(self.path)):
            with suppress(OSError):
                path.unlink()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        os.close(self._fd)

    def _nudge(self) -> None:
        os.eventfd_write(self._fd, 1)

    # What follows runs in the thread.

    def _run(self) -> None:
        with suppress(PrivilegeError):  # then it has no privileges
            settle(user=self._user)
        for listener in (*self._listeners, self.onlookers.listener):
            self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._fd, selectors.EVENT_READ)
        while not self._closing:
            self._lines.drop_late()
            for key, _ in self._selector.select(min(_NEVER_S, self._lines.wait_s())):
                if key.fileobj in self._listeners:
                    self._lines.accept(key.fileobj)
                elif key.fileobj is self.onlookers.listener:
                    self.onlookers.accept()
                elif key.fileobj == self._fd:
                    os.eventfd_read(self._fd)
                    self._take_answers()
                else:
                    self._lines.ready(key.data)
            time.sleep(ROUND_S)
        over = TcpkmonError("the capture is over")
        self._take_answers()
        self.onlookers.send(_line(_refusal(over)))
        self._lines.end(over)

    def _ask_status(self) -> None:
        self._requests.put((None, {"op": "status"}))
        self._wake_session()

    def _take(self, client: Client, line: bytes) -> None:
        try:
            request = parse(line)
        except UsageError as error:
            self._lines.reply(client, _line(_refusal(error)))
            return
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
            else:
                self._lines.reply(client, answer)


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


def _one_of(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


def _is_short_text(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= MOST_WANTED)


def _is_filters(value: object) -> bool:
    """Whether it is what collector/plan/filters.py:parse() takes, as JSON has it."""
    return isinstance(value, dict) and all(_is_filter(*item) for item in value.items())


def _is_filter(name: str, given: object) -> bool:
    if name not in _FILTERS or not _FILTERS[name].key:
        return False
    try:
        made = _FILTERS[name].kind.toml(given)
    except UsageError:
        return False
    made = list(made) if isinstance(made, tuple) else made
    texts = map(str, made if isinstance(made, list) else [made])
    return bool(made == given) and "\0" not in "".join(texts)


def _is_limits(value: object) -> bool:
    """Whether it has a number of records a second for each name."""
    return isinstance(value, dict) and all(
        type(limit) is int and 0 < limit <= _LARGEST_LIMIT for limit in value.values()
    )


_Values = dict[str, Callable[[object], bool]]
_Call = Callable[["Handlers", dict[str, Any], Peer], dict[str, Any]]
_REQUESTS: dict[str, tuple[_Values, _Call]] = {
    "status": ({}, lambda to, r, peer: to.status()),
    "metrics": ({}, lambda to, r, peer: to.metrics()),
    "top": (
        {
            "sort": _one_of(*SORTS, *GROUP_SORTS), "most": _within(1, MOST_ROWS),
            "by": _one_of(None, "", *GROUPS), "wanted": _is_short_text,
        },
        lambda to, r, peer: to.top(r["sort"], r["most"], r.get("by") or "", r.get("wanted") or ""),
    ),
    "enable": ({"events": _is_names}, lambda to, r, peer: to.set_enabled(r.get("events"), True)),
    "disable": ({"events": _is_names}, lambda to, r, peer: to.set_enabled(r.get("events"), False)),
    "mark": (
        {"number": _within(0, LARGEST_MARK)}, lambda to, r, peer: to.mark(r["number"], peer.pid)
    ),
    "dump": ({}, lambda to, r, peer: to.dump(peer.pid, peer.is_owner)),
    "buffer-size": (
        {"bytes": _within(1, 1 << 40)}, lambda to, r, peer: to.set_buffer_bytes(r["bytes"])
    ),
    "lowwater": ({"percent": _within(1, 99)}, lambda to, r, peer: to.set_low_water(r["percent"])),
    "set-filters": (
        {"filters": _is_filters}, lambda to, r, peer: to.set_filters(r["filters"], peer.is_owner)
    ),
    "set-limits": ({"limits": _is_limits}, lambda to, r, peer: to.set_limits(r["limits"])),
    "sampler-period": (
        {"ns": _within(1, 10**12)}, lambda to, r, peer: to.set_sampler_period(r["ns"])
    ),
}  # fmt: skip
"""By `op`: the values of a request, each with its check, and its handler's call for a client."""


def _refusal(error: TcpkmonError) -> dict[str, Any]:
    code = error.exit_code
    return {"ok": False, "error": {"message": error.message, "hint": error.hint, "code": code}}


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, ensure_ascii=True).encode() + b"\n"
