# SPDX-License-Identifier: Apache-2.0
"""tcpkmon try --live: half of the new connections of a port get a setting, others nothing; it ends
by itself; and what is said of its effect is so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.loader.halving import Halves, SocketOption, refusal
from tcpkmon.collector.plan.cgroups import find_cgroup
from tcpkmon.formats.base import cli
from tests.live.capturing import Pair, join, listening, tcp_info, wait_until

PORT, OTHER_PORT = 5391, 5392
TCP = socket.IPPROTO_TCP
SO_COOKIE, LOWAT, RTO_MIN_US, DELACK_MAX_US = 57, 25, 45, 46
ONE_WAY_MS, SIZE = 15.0, 30_000
FAST, SLOW = 8192, 24576
"""Some value of TCP_NOTSENT_LOWAT."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@contextlib.contextmanager
def opened(lab: Lab, count: int, port: int = PORT, address: str = "") -> Iterator[list[Pair]]:
    """So many connections from a to b."""
    address = address or lab.b.address4
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listening(lab.b, address, port))
        pairs = []
        for _ in range(count):
            pairs.append(join(lab.a, listener, address))
            stack.callback(pairs[-1].close)
            pairs[-1].exchange(1)  # now the server's end has its handshake over, too
        yield pairs


def settings() -> dict[str, str]:
    """Of the host's own namespace."""
    found = {}
    for path in Path("/proc/sys/net/ipv4").glob("tcp_*"):
        try:
            found[path.name] = path.read_text()
        except OSError:
            continue
    return found


def number(end: socket.socket, name: int, level: int = TCP) -> int:
    return end.getsockopt(level, name)


def cookie(end: socket.socket) -> int:
    return int(struct.unpack("=Q", end.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0])


def lowats(pairs: list[Pair]) -> list[int]:
    return [number(end, LOWAT) for pair in pairs for end in (pair.client, pair.server)]


@pytest.mark.parametrize("family", [4, 6])
def test_half_of_the_ends_get_all_options_and_others_none(lab: Lab, family: int) -> None:
    options = [
        SocketOption(TCP, 13, "reno"), SocketOption(TCP, LOWAT, FAST), SocketOption(TCP, 1002, 77),
        SocketOption(TCP, 1003, 40_000), SocketOption(TCP, 1004, 100_000),
        SocketOption(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000),
        SocketOption(socket.SOL_SOCKET, socket.SO_RCVBUF, 60_000),
    ]  # fmt: skip
    address = lab.b.address4 if family == 4 else lab.b.address6

    def seen(end: socket.socket) -> tuple[Any, ...]:
        found = [
            end.getsockopt(TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode() == "reno",
            number(end, LOWAT) == FAST, tcp_info(end)["snd_ssthresh"] == 77,
            number(end, socket.SO_SNDBUF, socket.SOL_SOCKET) == 100_000,
            number(end, socket.SO_RCVBUF, socket.SOL_SOCKET) == 120_000,
        ]  # fmt: skip
        with contextlib.suppress(OSError):  # before Linux 6.15
            found += [number(end, RTO_MIN_US) == 100_000, number(end, DELACK_MAX_US) == 40_000]
        return tuple(found)

    with Halves(find_cgroup("/").path, [PORT], options) as program:
        with opened(lab, 40, PORT, address) as pairs, opened(lab, 10, OTHER_PORT, address) as rest:
            ends = [end for pair in pairs for end in (pair.client, pair.server)]
            of_cookie = {int(row["cookie"]): row for row in program.rows()}
            assert refusal(program.rows()) is None
            got = [seen(end) for end in ends]
            for end, values in zip(ends, got, strict=True):
                row = of_cookie.pop(cookie(end))
                assert set(values) == {bool(row["has_options"])}, values
                assert (row["lport"], row["rport"]) == (end.getsockname()[1], end.getpeername()[1])
            assert not of_cookie
            assert 16 <= sum(all(values) for values in got) <= 64  # of 80, by chance
            assert not any(any(seen(end)) for pair in rest for end in (pair.client, pair.server))
        program.detach()
        with opened(lab, 20, PORT, address) as pairs:
            assert FAST not in lowats(pairs)
        assert len(program.rows()) == 80


def test_what_the_kernel_refuses_is_told(lab: Lab) -> None:
    options = [SocketOption(TCP, LOWAT, FAST), SocketOption(TCP, 13, "nonesuch")]
    with Halves(find_cgroup("/").path, [PORT], options) as program, opened(lab, 20):
        found = refusal(program.rows())
    assert found is not None and found[0] == 1 and "ENOENT" in found[1]


def test_only_sockets_of_the_control_group(lab: Lab) -> None:
    folder = Path(find_cgroup("/").path, f"tcpkmon-try-{os.getpid()}")
    folder.mkdir()
    stay = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", stay], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE)  # fmt: skip
    try:
        (folder / "cgroup.procs").write_text(str(child.pid))
        script = (
            "import socket, sys\n"
            "open(sys.argv[1], 'w').write('0')\n"
            "for _ in range(40):\n"
            "    one = socket.create_connection((sys.argv[2], int(sys.argv[3])))\n"
            f"    print(one.getsockopt(socket.IPPROTO_TCP, {LOWAT}))\n"
        )
        with (
            Halves(str(folder), [PORT], [SocketOption(TCP, LOWAT, FAST)]) as program,
            listening(lab.b, lab.b.address4, PORT),
        ):
            told = lab.a.command([sys.executable, "-c", script, str(folder / "cgroup.procs"),
                                  lab.b.address4, str(PORT)]).split()  # fmt: skip
            assert told.count(str(FAST)) == int(program.rows()["has_options"].sum())
            assert len(program.rows()) == 40 and 8 <= told.count(str(FAST)) <= 32
    finally:
        child.communicate()
        wait_until(lambda: _removed(folder), timeout_s=10)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def test_killed_it_is_gone(lab: Lab, tmp_path: Path) -> None:
    before = settings()
    told = ["--live", "--ports", str(PORT), "--set", f"tcp_notsent_lowat={SLOW}", "--for", "20s"]
    process = subprocess.Popen([Path(sys.executable).with_name("tcpkmon"), "try", *told],
                               stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert process.stderr is not None
    assert "sets tcp_notsent_lowat" in process.stderr.readline()
    captures = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        with opened(lab, 20) as pairs:
            assert SLOW in lowats(pairs)
        process.kill()
        process.wait()
        with opened(lab, 20) as pairs:
            assert SLOW not in lowats(pairs)
    finally:
        process.kill()
        process.communicate()
        for pid in map(int, captures):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    assert settings() == before


class _Transfers(threading.Thread):
    """One after another, until stop()."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(daemon=True)
        self._lab, self._ends = lab, threading.Event()
        self.errors: list[Exception] = []

    def run(self) -> None:
        try:
            with listening(self._lab.b, self._lab.b.address4, PORT) as listener:
                while not self._ends.is_set():
                    pair = join(self._lab.a, listener, self._lab.b.address4)
                    pair.client.sendall(bytes(SIZE))
                    pair.client.shutdown(socket.SHUT_WR)
                    while pair.server.recv(1 << 16):
                        pass
                    pair.server.close()
                    pair.client.recv(1)
                    pair.close()
        except Exception as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._ends.set()
        self.join(10)
        assert not self.errors and not self.is_alive()


@pytest.mark.parametrize(
    ("wanted", "worse", "change"),
    [("initcwnd=2", True, (0.5, 1.5)),
     pytest.param("initcwnd=30", False, (-0.7, -0.3), marks=pytest.mark.full),
     pytest.param("rto_min_us=150000", None, (-0.15, 0.15), marks=pytest.mark.full)],
)  # fmt: skip
def test_an_effect_is_named_where_there_is_one(
    wanted: str, worse: bool | None, change: tuple[float, float],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """30 kB over 30 ms: two round trips with 10 segments at first, four with 2, one with 30."""
    command = import_module("tcpkmon.collector.commands.try").command
    before = settings()
    with Lab(link=Link(Way(delay_ms=ONE_WAY_MS), Way(delay_ms=ONE_WAY_MS))) as lab:
        transfers = _Transfers(lab)
        transfers.start()
        code = cli.run(command, ["--live", "--ports", str(PORT), "--set", wanted, "--for", "9s",
                                 "--json"], "tcpkmon try")  # fmt: skip
        transfers.stop()
    said = capsys.readouterr()
    assert code == 0, said.err
    told = json.loads(said.out)
    (one,) = told["tried"]
    old, new = one["counts"]
    assert min(old, new) >= 8 and told["other_way"] >= old + new - 2  # the receivers' ends
    assert one["proven"] == (worse is False)
    duration = next(row for row in one["metrics"] if row["metric"] == "duration_us")
    assert (duration["result"] == "differs") == (worse is not None)
    assert 55_000 < duration["a"]["median"] < 100_000
    low, high = duration["interval"]
    assert change[0] < low <= high < change[1], duration
    assert ("initcwnd 30" in one["write"][0]) == (wanted == "initcwnd=30")
    assert settings() == before
