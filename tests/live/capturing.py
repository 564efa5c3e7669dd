# SPDX-License-Identifier: Apache-2.0
"""Runs `collect` around a live test's own traffic, and reads the records that it wrote."""

from __future__ import annotations

import ipaddress
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tcpkmon
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.pair import (  # noqa: F401  (tests take them from here)
    Pair,
    connected,
    family_of,
    join,
    listening,
    look,
    make_socket,
    receive,
)
from tcpkmon.formats.base import control
from tcpkmon.formats.psc.reader import Capture
from tests.live.faults import GUEST, WAIT_S, wait_until  # noqa: F401

if TYPE_CHECKING:
    from tests.live.forked import Forked

ROOT = Path(__file__).resolve().parents[2]
OBSERVERS: list[Callable[[Outcome], None]] = []
"""Called with each capture that has ended in order; tests/vm/reporting.py adds one."""

# The command line's own entry; the first argument narrows the ways to attach (or is empty).
DRIVER = """
import signal, sys
from dataclasses import replace
signal.signal(signal.SIGINT, signal.default_int_handler)
from tcpkmon.collector.commands import collect
kinds = sys.argv.pop(1)
run = collect.run
if kinds:
    collect.run = lambda request: run(replace(request, kinds=tuple(kinds.split(","))))
sys.argv[0] = "collect"
collect.main()
"""


class Records:
    """Some snapshots of a capture, in file order: one native array a column."""

    def __init__(
        self, columns: dict[str, Any], locations: dict[str, int], rows: dict[str, Any] | None = None
    ) -> None:
        self.columns = columns
        self._locations = locations
        self._rows = rows or {}

    def __len__(self) -> int:
        return len(self.columns["location"])

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def one(self, name: str) -> Any:
        """The column's value in the only record."""
        assert len(self) == 1, f"{len(self)} records, not one"
        return self.columns[name][0].item()

    def last(self, name: str) -> Any:
        return self.columns[name][-1].item()

    def pick(self, mask: Any) -> Records:
        return Records({n: c[mask] for n, c in self.columns.items()}, self._locations)

    def where(self, **values: Any) -> Records:
        """The records whose columns have these values."""
        mask = np.ones(len(self), bool)
        for name, value in values.items():
            mask &= self.columns[name] == value
        return self.pick(mask)

    def at(self, *names: str) -> Records:
        """The records of these locations."""
        return self.pick(np.isin(self["location"], [self._locations[name] for name in names]))

    def counts(self) -> dict[str, int]:
        """How many records each location has, those without any left out."""
        names = {value: name for name, value in self._locations.items()}
        found, counts = np.unique(self["location"], return_counts=True)
        return {
            names[value]: count
            for value, count in zip(found.tolist(), counts.tolist(), strict=True)
        }

    def ends(self) -> list[tuple[str, int, str, int]]:
        """Local address and port, remote address and port of each record."""
        return list(
            zip(
                map(address_of, self["laddr"].tolist()),
                self["lport"].tolist(),
                map(address_of, self["raddr"].tolist()),
                self["rport"].tolist(),
                strict=True,
            )
        )


@dataclass(frozen=True)
class Outcome:
    """A capture that has ended: its records, and the ledger of its last checkpoint."""

    capture: Capture
    records: Records
    ledger: dict[str, dict[str, int]]
    """By location: attempts, filtered, unchanged, written, lost; summed over the CPUs."""
    errors: str

    def books(self, location: str) -> dict[str, int]:
        none = dict.fromkeys(("attempts", "filtered", "unchanged", "written", "lost"), 0)
        return self.ledger.get(location, none)

    def check_complete(self) -> None:
        """Nothing is lost, and the file ended in order: only then may counts be compared."""
        assert self.capture.complete, self.errors
        assert self.capture.lost == 0, (self.errors, self.ledger)


def _start(kinds: str, arguments: Sequence[str], told: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, kinds, "--ready-fd", str(told), *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(told,),
    )


def _fork(kinds: str, arguments: Sequence[str], told: int) -> Forked:
    from tests.live.forked import Forked

    return Forked(kinds, arguments, Connection(os.dup(told), readable=False))


class Running:
    """A capture under way."""

    process: subprocess.Popen[str] | Forked

    def __init__(self, path: Path, arguments: Sequence[str], kinds: str) -> None:
        self.path = path
        self._outcome: Outcome | None = None
        self._interrupted = False
        self._is_ready = False
        self._ready, told = os.pipe()
        words = ("-o", str(path), *arguments)
        try:
            self.process = _fork(kinds, words, told) if GUEST else _start(kinds, words, told)
        except BaseException:
            os.close(self._ready)
            raise
        finally:
            os.close(told)

    def wait_until_ready(self) -> None:
        """Returns once every program is attached."""
        if self._is_ready:
            return
        readable, _, _ = select.select([self._ready], [], [], WAIT_S)
        if not readable or not os.read(self._ready, 1):
            self.process.kill()
            raise AssertionError(f"collect did not start: {self.process.communicate()[1]}")
        self._is_ready = True

    def interrupt(self) -> None:
        """What Ctrl-C does, once."""
        if not self._interrupted:
            self._interrupted = True
            self.process.send_signal(signal.SIGINT)

    def stop(self, expected: int = 0) -> Outcome:
        """Ends it as Ctrl-C does; the outcome, once its exit code is the expected one."""
        if self._outcome is None:
            self.interrupt()
            _, errors = self.process.communicate(timeout=WAIT_S)
            assert self.process.returncode == expected, errors
            self._outcome = read(self.path, errors)
            for observe in OBSERVERS:
                observe(self._outcome)
        return self._outcome

    def close(self) -> None:
        """Leaves no process behind."""
        os.close(self._ready)
        if self.process.poll() is None:
            self.process.kill()
        if self._outcome is None:
            with suppress(ValueError):  # communicate() was called before: its streams are closed
                self.process.communicate()


@contextmanager
def capturing(path: Path, *arguments: str, kinds: str = "") -> Iterator[Running]:
    """Runs collect around the body; stop() returns what it captured."""
    running = Running(path, arguments, kinds)
    try:
        running.wait_until_ready()
        yield running
        running.stop()
    finally:
        running.close()


@contextmanager
def capturing_each(folder: Path, options: dict[str, Sequence[str]]) -> Iterator[dict[str, Running]]:
    """Several captures of the same traffic at once, by name; the name becomes the file's."""
    captures: dict[str, Running] = {}
    try:
        for name, arguments in options.items():
            captures[name] = Running(folder / f"{name}.pm", arguments, "")
            if len(captures) == 1:  # compiles; the others take that from the cache
                captures[name].wait_until_ready()
        for running in captures.values():
            running.wait_until_ready()
        yield captures
        for running in captures.values():
            running.interrupt()
        for running in captures.values():
            running.stop()
    finally:
        for running in captures.values():
            running.close()


def within(lab: Lab) -> tuple[str, ...]:
    """The options that leave all other traffic out."""
    return ("--netns", lab.a.name, "--netns", lab.b.name)


def read(path: Path, errors: str = "") -> Outcome:
    """What a capture's file holds."""
    capture = tcpkmon.open(path)
    mask = ~capture.control()
    columns = {name: column[mask] for name, column in capture.columns(capture.names).items()}
    assert capture.schema is not None
    locations = {m.name: m.value for m in capture.schema.enum("location").members}
    return Outcome(capture, Records(columns, locations), _final_books(capture), errors)


def _final_books(capture: Capture) -> dict[str, dict[str, int]]:
    """The ledger of the last checkpoint; its rows follow that entry."""
    rows = [entry for _, entry in capture.controls()]
    starts = [n for n, entry in enumerate(rows) if isinstance(entry, control.Checkpoint)]
    books: dict[str, dict[str, int]] = {}
    for entry in rows[starts[-1] :] if starts else []:
        if not isinstance(entry, control.Ledger | control.Losses):
            continue
        none = dict.fromkeys(("attempts", "filtered", "unchanged", "written", "lost"), 0)
        book = books.setdefault(capture.location_name(entry.point), none)
        if isinstance(entry, control.Ledger):
            for name in ("attempts", "filtered", "unchanged", "written"):
                book[name] += getattr(entry, name)
        else:
            book["lost"] += sum(
                getattr(entry, name)
                for name in ("ring_full", "no_ring", "other", "table_full", "no_slot")
            )
    return books


FIELDS = (
    "B state,B ca_state,B retransmits,B probes,B backoff,B options,B scales,B limited,"
    "I rto,I ato,I snd_mss,I rcv_mss,I unacked,I sacked,I lost,I retrans,I fackets,"
    "I last_data_sent,I last_ack_sent,I last_data_recv,I last_ack_recv,"
    "I pmtu,I rcv_ssthresh,I rtt,I rttvar,I snd_ssthresh,I snd_cwnd,I advmss,I reordering,"
    "I rcv_rtt,I rcv_space,I total_retrans,Q pacing_rate,Q max_pacing_rate,Q bytes_acked,"
    "Q bytes_received,I segs_out,I segs_in,I notsent_bytes,I min_rtt,I data_segs_in,"
    "I data_segs_out,Q delivery_rate,Q busy_time,Q rwnd_limited,Q sndbuf_limited,I delivered,"
    "I delivered_ce,Q bytes_sent,Q bytes_retrans,I dsack_dups,I reord_seen,I rcv_ooopack,"
    "I snd_wnd,I rcv_wnd"
)
"""struct tcp_info of include/uapi/linux/tcp.h; rcv_wnd since Linux 6.2."""


def tcp_info(end: socket.socket) -> dict[str, int]:
    """What the kernel tells an application of its connection; 0 where this kernel does not."""
    kinds, names = zip(*(field.split() for field in FIELDS.split(",")), strict=True)
    form = struct.Struct("=" + "".join(kinds))
    raw = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, form.size)
    return dict(zip(names, form.unpack(raw.ljust(form.size, b"\0")), strict=True))


def address_of(raw: bytes) -> str:
    """The address of a column laddr or raddr as text; v4-mapped ones as IPv4."""
    address = ipaddress.IPv6Address(raw.ljust(16, b"\0"))
    return str(address.ipv4_mapped or address)
