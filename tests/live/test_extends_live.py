# SPDX-License-Identifier: Apache-2.0
"""docs/examples/wakeups extends tcp: its columns and its location, in each format, as TCP_INFO."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.capturing import launch
from tcpkmon.collector.commands import collect
from tcpkmon.collector.lab.lab import DEVICE, Lab
from tcpkmon.formats.analysis import open_log
from tcpkmon.formats.base import cli
from tcpkmon.formats.base.control import Trigger
from tcpkmon.formats.commands.pmgraph import command as pmgraph
from tcpkmon.formats.registry import format_of
from tests.live.capturing import ROOT, Pair, connected, read, tcp_info, wait_until, within

ROUNDS, SIZE, MTU = 30, 10, 1300
TICK_MS = 10
TRIGGER = f"data_ready and pmtu == {MTU}"
OUTPUTS = {
    "a.pm": (),
    "dumps": ("--record-last", "60s", "--on", TRIGGER),
    "log": ("--format", "klogger"),
}


@pytest.fixture
def wakeups(tmp_path: Path) -> Path:
    """The example, in a folder that only root can write."""
    folder = tmp_path / "wakeups"
    shutil.copytree(ROOT / "docs" / "examples" / "wakeups", folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder


def snapshots(path: Path) -> Iterator[dict[str, Any]]:
    """The records of DATA_READY and EXISTING, of any format: location by name, and columns."""
    columns = ["location", "callvalue", "lport", "pmtu", "quiet_ms"]
    if path.name == "log":
        with open_log(path) as log:
            for event in log:
                if event.type == "SNAPSHOT":
                    yield {name: event[name] for name in columns}
        return
    found = read(path)
    for at in range(len(found.records)):
        row = {name: found.records[name][at].item() for name in columns}
        yield row | {"location": found.capture.location_name(row["location"])}


def test_own_columns_and_an_own_location(wakeups: Path, tmp_path: Path) -> None:
    with Lab() as lab, ExitStack() as stack:
        first = stack.enter_context(connected(lab))
        first.exchange(SIZE)
        before, client = tcp_info(first.client), first.client_port
        captures = []
        for name, options in OUTPUTS.items():
            path = tmp_path / name
            words = ["--schema", str(wakeups), "--columns", "default,quiet_ms", *within(lab)]
            captures.append(stack.enter_context(launch([*words, "-o", str(path), *options], path)))
        after = tcp_info(first.client)
        of_first = talk(first)
        lab.a.command(["ip", "link", "set", DEVICE, "mtu", str(MTU)])
        second = stack.enter_context(connected(lab))
        of_second = talk(second)
        wait_until(lambda: list((tmp_path / "dumps").glob("*")))
        for capture in captures:
            capture.stop()
    assert {info["pmtu"] for info in of_first.values()} != {MTU}
    assert MTU in {info["pmtu"] for info in of_second.values()}
    for name in OUTPUTS:
        path = tmp_path / name
        assert all(report.exit_code == 0 for report in format_of(path).verify(path)), name
        rows = list(snapshots(path))
        existing = [row for row in rows if row["location"] == "EXISTING"]
        if name != "dumps":  # it has what came before the trigger's time was over
            at_start = next(r for r in existing if r["lport"] == client)
            assert at_start["pmtu"] == before["pmtu"]
            least, most = before["last_data_sent"] - TICK_MS, after["last_data_sent"] + TICK_MS
            assert least <= at_start["quiet_ms"] <= most, name
        for port, info in (of_first | of_second).items():
            mine = [r for r in rows if r["lport"] == port and r["location"] == "DATA_READY"]
            assert {row["pmtu"] for row in mine} == {info["pmtu"]}, name
            assert {row["callvalue"] for row in mine} == {SIZE}, name
            if name != "dumps" or port in of_first:
                assert len(mine) == info["data_segs_in"] == ROUNDS, name
    shown(tmp_path)


def talk(pair: Pair) -> dict[int, dict[str, int]]:
    """Both ends exchange some bytes; what TCP_INFO says of each then, by its local port, with the
    segments that came meanwhile."""
    ends = {pair.client_port: pair.client, pair.server_port: pair.server}
    began = {port: tcp_info(end)["data_segs_in"] for port, end in ends.items()}
    for _ in range(ROUNDS):
        pair.exchange(SIZE)
    after = {port: tcp_info(end) for port, end in ends.items()}
    return {
        port: info | {"data_segs_in": info["data_segs_in"] - began[port]}
        for port, info in after.items()
    }


def shown(folder: Path) -> None:
    """Readers know the names, the ledger counts the location, and pmgraph draws the column."""
    whole = read(folder / "a.pm")
    assert whole.books("DATA_READY")["written"] == len(whole.records.at("DATA_READY"))
    schema = whole.capture.schema
    assert schema is not None
    assert schema.event("SNAPSHOT").find_field("pmtu").unit == "bytes"
    fired = [entry for _, entry in read(folder / "dumps").capture.controls()
             if isinstance(entry, Trigger)]  # fmt: skip
    assert fired
    picture = folder / "pmtu.png"
    assert cli.run(pmgraph, [str(folder / "a.pm"), "--show", "pmtu", "-o", str(picture)]) == 0
    assert picture.stat().st_size > 1000


def test_a_folder_that_others_can_write_is_refused(
    wakeups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wakeups / "wakeups.conf").chmod(0o666)
    words = ["--schema", str(wakeups), "--format", "psc", "-o", str(tmp_path / "no.pm")]
    assert cli.run(collect.command, words) != 0
    assert "wakeups.conf" in capsys.readouterr().err
    assert not (tmp_path / "no.pm").exists()


def test_a_kernel_without_the_target(
    wakeups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = wakeups / "wakeups.bpf.c"
    text.write_text(text.read_text().replace(":sk_data_ready", ":no_such_tracepoint"))
    words = ["--schema", str(wakeups), "--locations", "DATA_READY", "-o", str(tmp_path / "no.pm")]
    assert cli.run(collect.command, words) == 4
    assert "btf:no_such_tracepoint" in capsys.readouterr().err
