# SPDX-License-Identifier: Apache-2.0
"""Without root: what a running capture, such as one of the daemon, recorded between two marks."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpkmon.collector.commands.arguments import arguments_of
from tcpkmon.collector.control.choosing import named
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.plan import filters
from tcpkmon.formats.base.errors import PrivilegeError, TcpkmonError

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.check import Proof
    from tcpkmon.formats.analysis.why import Table

Choose = Callable[["Table"], Any]
_WAIT_S = 30.0
"""Checkpoints are a second apart; a disk may be slow."""
_LOOK_S = 0.05
_NAMES = {"ports": "ports", "local_ports": "local_ports", "L": "local_ports",
          "remote_ports": "remote_ports", "D": "remote_ports"}  # fmt: skip


def choice_of_ports(options: Mapping[str, Any], latency: bool) -> Choose:
    """Which connections of a span are meant, by ports: the only options that need no rights.

    PrivilegeError for other options. UsageError for ports that are none.
    """
    others = [name for name in options if name not in _NAMES] + ["latency"] * latency
    if others:
        raise PrivilegeError(
            f"without root a test has the options of a running capture, and no {others[0]}"
        )
    words = {_NAMES[name]: arguments_of({name: value}) for name, value in options.items()}
    one = filters.parse(**{name: found[1] for name, found in words.items() if found})

    def choose(table: Table) -> Any:
        """(n,) the connections with these ports; all without any."""
        import numpy as np

        local, remote = table["lport"], table["rport"]
        if not (one.ports or one.local_ports or one.remote_ports):
            return np.ones(len(local), np.bool_)
        either = np.isin(local, one.ports) | np.isin(remote, one.ports)
        return either | np.isin(local, one.local_ports) | np.isin(remote, one.remote_ports)

    return choose


class Watch:
    """A running capture that this user may control, and whose PSC files he may read."""

    def __init__(self, client: Client, output: Path) -> None:
        self._client = client
        self._output = output
        self._marks: list[int] = []
        self._since_ns = 0

    @classmethod
    def choose(cls, wanted: str | None) -> Watch:
        """The only one, or that of this PID or name. PrivilegeError where there is none."""
        found, refused = [], []
        for name, collector in named().items():
            client = Client(collector)
            try:
                told = client.ask({"op": "status"})
            except TcpkmonError as error:
                refused.append(error.message)
                continue
            if wanted is not None and wanted not in (name, str(collector.pid)):
                continue
            why = _unusable(told)
            if why:
                refused.append(f"{name}: {why}")
            else:
                found.append((name, cls(client, Path(told["output"]))))
        if len(found) == 1:
            return found[0][1]
        if found:
            names = ", ".join(name for name, _ in found)
            which = "choose: --tcpkmon-collector NAME"
            raise PrivilegeError(f"several captures run: {names}", which)
        why = "; ".join(refused) or f"no capture runs{' as ' + wanted if wanted else ''}"
        raise PrivilegeError(f"this process is not root, and {why}")

    def mark(self, number: int) -> None:
        self._client.mark(number)

    def begin(self) -> None:
        self._since_ns = time.monotonic_ns()
        self._mark()

    def finish(self, path: Path) -> Proof:
        """Mark the end, wait until it is on the disk with its proof, and write the span.

        TcpkmonError where it does not come, FileError, DamagedError.
        """
        from tcpkmon.formats.analysis.check import find_span, write_span
        from tcpkmon.formats.psc.reader import open_capture

        self._mark()
        begin, end = self._marks
        until_s = time.monotonic() + _WAIT_S
        while time.monotonic() < until_s:
            with open_capture(self._output) as capture:
                span = find_span(capture, begin, end, self._since_ns)
                if span is not None:
                    write_span(capture, span, path)
                    return span.proof
            time.sleep(_LOOK_S)
        raise TcpkmonError(f"no mark came into {self._output} within {_WAIT_S:g} s")

    def _mark(self) -> None:
        self._marks.append(secrets.randbits(31))
        self.mark(self._marks[-1])


def _unusable(told: Mapping[str, Any]) -> str:
    """Why a capture with this status does not do; empty if it does."""
    output = str(told.get("output"))
    if told.get("format") != "psc" or "recorder" in told:
        return "it writes no PSC file of all records"
    if not os.path.isabs(output):
        return f"its file {output} has no absolute name"
    if not os.access(output, os.R_OK | (os.X_OK if os.path.isdir(output) else 0)):
        return f"this user may not read {output}"
    return ""
