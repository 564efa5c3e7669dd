# SPDX-License-Identifier: Apache-2.0
"""The daemon's own socket: a line of JSON from root, as {"op": "reload"}, and a line in answer.

No client is waited for (collector/control/lines.py), and an answer may come later.
"""

from __future__ import annotations

import json
import os
import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tcpkmon.collector.control.access import daemon_path, listen_at
from tcpkmon.collector.control.client import exchange, parse_answer
from tcpkmon.collector.control.lines import Client, Lines
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import PrivilegeError, TcpkmonError, UsageError

_ANSWER_S = 120.0
Answer = Callable[[dict[str, Any] | TcpkmonError], None]
"""Takes the result of a request, or its refusal."""
Handlers = Mapping[str, Callable[[Answer], None]]


class Requests(Closing):
    """Listens at daemon_path(). UsageError where a daemon does already. fileno() can be read when
    serve() has something to do."""

    def __init__(self) -> None:
        self._path = daemon_path()
        try:
            other = ask({"op": "status"})["pid"]
        except TcpkmonError:
            pass
        else:
            what = f"a daemon runs already, as process {other}"
            raise UsageError(what, "tcpkmon reload applies what changed")
        self._listener = listen_at(self._path)
        self._selector = selectors.EpollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._handlers: Handlers = {}
        self._lines = Lines(self._selector, None, "root", self._take, _line)

    def fileno(self) -> int:
        return self._selector.fileno()

    def serve(self, handlers: Handlers) -> None:
        """Take what clients send, and send what they read, as far as nobody is waited for. Call it
        about once a second too: who is late is dropped."""
        self._handlers = handlers
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                self._lines.accept(self._listener)
            else:
                self._lines.ready(key.data)
        self._lines.drop_late()

    def _take(self, client: Client, line: bytes) -> None:
        def answer(found: dict[str, Any] | TcpkmonError) -> None:
            self._lines.reply(client, _line(found))

        try:
            request = json.loads(line)
            handler = self._handlers[request["op"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            known = ", ".join(self._handlers)
            answer(UsageError(f"a request is a line of JSON; op is one of {known}"))
            return
        handler(answer)

    def close(self) -> None:
        self._lines.end(TcpkmonError("the daemon has ended"))
        self._selector.close()
        self._listener.close()
        with suppress(OSError):
            self._path.unlink()


def _line(found: dict[str, Any] | TcpkmonError) -> bytes:
    told: dict[str, Any] = {"ok": True, "result": found}
    if isinstance(found, TcpkmonError):
        told = {"ok": False, "lines": found.lines(), "code": found.exit_code}
    return json.dumps(told).encode() + b"\n"


class Refused(TcpkmonError):
    """The daemon's refusal: lines and exit code."""

    def __init__(self, lines: list[str], code: int) -> None:
        super().__init__("\n".join(lines))
        self._lines = tuple(lines)
        self.exit_code = code  # type: ignore[misc]

    def lines(self) -> tuple[str, ...]:
        return self._lines


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Send the daemon a request; its result. TcpkmonError where none runs, and what it refuses."""
    path = daemon_path()
    if os.geteuid() != 0:
        raise PrivilegeError("only root may ask the daemon", "run it with sudo")
    try:
        line = exchange(path, json.dumps(request).encode() + b"\n", _ANSWER_S)
    except OSError as error:
        why = f"no answer within {_ANSWER_S:g} s" if isinstance(error, TimeoutError) else ""
        raise TcpkmonError(
            f"no daemon listens at {path}: {why or error.strerror or error}",
            "systemctl start tcpkmon",
        ) from error
    if not line:
        raise TcpkmonError("the daemon gave no answer", "only root may ask it")
    try:
        answer = parse_answer(line)
        if answer["ok"]:
            return dict(answer["result"])
        refusal = Refused([str(one) for one in answer["lines"]], int(answer["code"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TcpkmonError("the daemon gave no answer that makes sense") from None
    raise refusal
