# SPDX-License-Identifier: Apache-2.0
"""The daemon's own socket: a line of JSON from root, as {"op": "reload"}, and a line in answer."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from collector.control.access import daemon_path, listen_at, peer_of
from formats.base.closing import Closing
from formats.base.errors import TcpkmonError, UsageError

_MOST_BYTES = 1 << 16
_CLIENT_S, _ANSWER_S = 1.0, 120.0


class Requests(Closing):
    """Listens at daemon_path(). UsageError where a daemon does already."""

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

    def fileno(self) -> int:
        return self._listener.fileno()

    def serve(self, handlers: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
        """Answer the client that waits. A slow one gets no answer."""
        with suppress(OSError):
            client, _ = self._listener.accept()
            with client:
                client.settimeout(_CLIENT_S)
                if peer_of(client).may_control(None):
                    client.sendall(json.dumps(_answer(client, handlers)).encode() + b"\n")

    def close(self) -> None:
        self._listener.close()
        with suppress(OSError):
            self._path.unlink()


def _answer(
    client: socket.socket, handlers: Mapping[str, Callable[[], dict[str, Any]]]
) -> dict[str, Any]:
    try:
        op = json.loads(client.makefile("rb").readline(_MOST_BYTES))["op"]
        return {"ok": True, "result": handlers[op]()}
    except (ValueError, KeyError, TypeError):
        known = ", ".join(handlers)
        error: TcpkmonError = UsageError(f"a request is a line of JSON; op is one of {known}")
    except TcpkmonError as refused:
        error = refused
    return {"ok": False, "lines": error.lines(), "code": error.exit_code}


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
    path = os.fspath(daemon_path())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(_ANSWER_S)
        try:
            sender.connect(path)
            sender.sendall(json.dumps(request).encode() + b"\n")
            line = sender.makefile("rb").readline()
        except OSError as error:
            raise TcpkmonError(
                f"no daemon listens at {path}: {error.strerror or error}",
                "systemctl start tcpkmon; only root may ask it",
            ) from error
    if not line:
        raise TcpkmonError("the daemon gave no answer", "only root may ask it")
    answer = json.loads(line)
    if not answer["ok"]:
        raise Refused(answer["lines"], answer["code"])
    result: dict[str, Any] = answer["result"]
    return result
