# SPDX-License-Identifier: Apache-2.0
"""A live trial: half of this machine's new connections of some ports get a setting, for a time.

A capture runs meanwhile, and is compared. A BPF program sets the options; it writes no sysctl.
"""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.capturing import start
from tcpkmon.collector.loader.halving import MOST_CHOSEN, SocketOption, address_of, refusal
from tcpkmon.collector.loader.halving import Halves as Program
from tcpkmon.collector.plan import filters
from tcpkmon.collector.plan.cgroups import Cgroup, find_cgroup, walk_cgroups
from tcpkmon.formats.analysis.trial import (
    CLAMP,
    CONGESTION,
    DELACK_MAX,
    INITCWND,
    LOWAT,
    RTO_MIN,
    SO_RCVBUF,
    SO_SNDBUF,
    Decision,
    Halves,
    Outcome,
    Variant,
    acknowledged,
    halve,
    judge,
    with_last_data,
)
from tcpkmon.formats.analysis.why import Source, connections, connections_of
from tcpkmon.formats.base.errors import DamagedError, TcpkmonError, UsageError
from tcpkmon.formats.base.quantities import parse_duration
from tcpkmon.formats.base.text import were_lost

Say = Callable[[str], None]
_TCP = socket.IPPROTO_TCP
_OPTIONS = {
    CONGESTION: (_TCP, 13), LOWAT: (_TCP, 25), INITCWND: (_TCP, 1001), CLAMP: (_TCP, 1002),
    DELACK_MAX: (_TCP, 1003), RTO_MIN: (_TCP, 1004),
    SO_SNDBUF: (socket.SOL_SOCKET, 7), SO_RCVBUF: (socket.SOL_SOCKET, 8),
}  # fmt: skip
"""Level and number, for bpf_setsockopt()."""
_MOST = {SO_SNDBUF: "wmem_max", SO_RCVBUF: "rmem_max"}
_MOST_S = 86_400.0
_LOOK_S = 0.2
_LAST_S = 0.5
"""The records of what is decided on at the end come a little later."""
_KILLED_S = 10.0
"""After the time of the trial the capture ends by itself, when this process is gone."""
_MOST_GROUPS = 100_000


@dataclass(frozen=True)
class Chosen:
    """Which connections, and for how long. cgroup: None: all. ports: of servers, empty: all."""

    ports: tuple[int, ...]
    cgroup: Cgroup | None
    seconds: float


@dataclass(frozen=True)
class Found:
    """The outcome of a live trial. decided: connections that the program decided on."""

    outcome: Outcome
    halves: Halves
    decided: int
    seconds: float

    def words(self) -> list[str]:
        """Who got what."""
        old, new = self.outcome.counts
        more = [f"{count} {text}" for count, text in (
            (self.halves.open, "of them had not ended: their durations do not count"),
            (self.halves.other_way, "are left out: their data went the other way"),
            (self.halves.unknown, "are left out: the capture does not show them alone"),
        ) if count]  # fmt: skip
        return [f"in {self.seconds:.0f} s, {self.decided} new connections: {old} without "
                f"{self.outcome.variant}, {new} with it", *(f"    {text}" for text in more)]

    def as_json(self) -> dict[str, Any]:
        """All of it; see Outcome and Halves."""
        return {
            "seconds": round(self.seconds, 3), "decided": self.decided, "open": self.halves.open,
            "other_way": self.halves.other_way, "unknown": self.halves.unknown,
            "tried": [self.outcome.as_json()],
        }  # fmt: skip


def choose(ports: str, cgroup: str, unit: str, duration: str) -> Chosen:
    """UsageError, KernelError where no cgroup2 is mounted."""
    if not (ports or cgroup or unit) or (cgroup and unit):
        raise UsageError("which connections?", "choose them by --ports, by --cgroup or by "
                         "--unit; ports and one of the others hold together")  # fmt: skip
    seconds = parse_duration(duration)
    if seconds > _MOST_S:
        raise UsageError(f"--for {duration}: a day at most", "60s, for example")
    chosen = filters.parse(ports=ports) if ports else filters.Filters()
    return Chosen(chosen.ports, _group(cgroup, unit), seconds)


def _group(cgroup: str, unit: str) -> Cgroup | None:
    if not unit:
        return find_cgroup(cgroup) if cgroup else None
    paths = [path for _, path in walk_cgroups(_MOST_GROUPS) if path.rpartition("/")[2] == unit]
    if len(paths) != 1:
        raise UsageError(
            f"--unit: {len(paths) or 'no'} control groups are called '{unit}'",
            "name one by --cgroup" if paths else "systemctl list-units lists them, with .service",
        )
    return find_cgroup(paths[0])


def try_live(variant: Variant, chosen: Chosen, say: Say) -> Found:
    """Try it. Ctrl-C and SIGTERM end it early, and it is judged by what there is then.

    UsageError: a setting that the kernel refuses. TcpkmonError: no connection came. DamagedError:
    the capture lost records.
    """
    options = [_option(one.name, one.value) for one in variant.settings]
    group = chosen.cgroup or find_cgroup("/")
    wanted = ["--ports", ",".join(map(str, chosen.ports))] if chosen.ports else []
    wanted += ["--cgroup", chosen.cgroup.path] if chosen.cgroup else []
    with tempfile.TemporaryDirectory(prefix="tcpkmon-try-") as folder, _ended_by_sigterm():
        path = Path(folder) / "live.pm"
        with (
            # detached: it goes on when Ctrl-C ends the trial.
            start(["tcp"], path, duration_s=chosen.seconds + _KILLED_S, detached=True, buffer_mb=32,
                  options=["--quiet", "--format", "psc", *wanted]),
            Program(group.path, chosen.ports or range(1, 65536), options) as program,
        ):  # fmt: skip
            began = time.monotonic()
            try:
                say(f"sets {variant} on half of the new connections for {chosen.seconds:g} s; "
                    "Ctrl-C ends it")  # fmt: skip
                _wait(program, variant, began + chosen.seconds)
            except KeyboardInterrupt:
                say("ends early")
            lasted = time.monotonic() - began
            program.detach()
            time.sleep(_LAST_S)
            rows = program.rows()
        decisions = [_decision(row) for row in rows]
        halves = _read(path, decisions, variant)
    if not halves.old and not halves.new:
        way = "received" if variant.of_receiver else "sent"
        raise TcpkmonError(
            f"of {len(rows)} new connections in {lasted:.0f} s, none counts",
            f"a setting of this kind is judged by connections whose end here {way} more: choose "
            "others, or more time by --for",
        )
    return Found(judge(halves, variant), halves, len(rows), lasted)


def _option(name: str, text: str) -> SocketOption:
    if name in _MOST:
        most = int(Path("/proc/sys/net/core", _MOST[name]).read_text())
        if int(text) > most:
            raise UsageError(f"{name}={text}: the kernel cuts it to {most}",
                             f"net.core.{_MOST[name]} is that")  # fmt: skip
    return SocketOption(*_OPTIONS[name], text if name == CONGESTION else int(text))


def _wait(program: Program, variant: Variant, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_LOOK_S, left))
        rows = program.rows()
        if (found := refusal(rows)) is not None:
            raise UsageError(f"the kernel refuses {variant.settings[found[0]]}: {found[1]}",
                             "no further connection gets it")  # fmt: skip
        if len(rows) == MOST_CHOSEN:
            return


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _decision(row: Any) -> Decision:
    family = int(row["family"])
    return Decision(
        address_of(row["local"], family), int(row["lport"]), address_of(row["remote"], family),
        int(row["rport"]), int(row["time_ns"]), bool(row["has_options"]),
    )  # fmt: skip


def _read(path: Path, decisions: Sequence[Decision], variant: Variant) -> Halves:
    with Source(path) as source:
        table: dict[str, NDArray[Any]] = connections(source)
        if source.reader.lost:
            raise DamagedError(were_lost(source.reader.lost), "the machine is too "
                               "busy: choose fewer connections")  # fmt: skip
    acked_ns: dict[int, int] = {}
    with Source(path) as source:
        for piece in source.read():
            acked_ns = acknowledged(piece) | acked_ns
    opened = connections_of(table, np.flatnonzero(table["role"] != "existing"))
    every = [with_last_data(one, acked_ns.get(one.conn_id)) for one in opened]
    return halve(every, decisions, variant.of_receiver)
