# SPDX-License-Identifier: Apache-2.0
"""The demo as a newcomer runs it: from the checkout, from a wheel, and interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.commands.demo_record import CAPTURE, PICTURE, prepare_folder
from tcpkmon.collector.commands.demo_report import read_flows
from tcpkmon.collector.linux import netns
from tests.full import first

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
WAIT_S = 280.0


def start(
    output: Path, tcpkmon: Path = BIN / "tcpkmon", folder: Path = ROOT
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(tcpkmon), "demo", "--output", str(output), "--seconds", "1.5"],
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def labs_of(pid: int) -> list[str]:
    if not netns.NAMED.exists():
        return []
    return [name for name in os.listdir(netns.NAMED) if name.startswith(f"tcpkmon-{pid}-")]


def test_the_demo_shows_real_transfers(tmp_path: Path) -> None:
    process = start(tmp_path / "out")
    told, complained = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, complained
    assert labs_of(process.pid) == []
    for name in ("demo.pm", "demo.png"):
        assert str(tmp_path / "out" / name) in told
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "\x1b" not in told
    flows = read_flows(tmp_path / "out" / "demo.pm", {5001: "reno"})
    rows = re.findall(r"(\d+\.500\d) +\S +(\d+)", told)
    assert rows[0] == (flows[0].ports, str(len(flows[0].time_s)))
    assert len(rows) >= 2
    assert flows[0].acked_bytes > 10_000
    assert flows[0].cwnd_bytes.max() > flows[0].cwnd_bytes.min() > 0
    with tcpkmon.open(tmp_path / "out" / "demo.pm") as capture:
        assert capture.complete
        assert not capture.damaged


def test_under_sudo_what_is_new_belongs_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setenv("SUDO_GID", "65534")
    folder = tmp_path / "new" / "newer"
    with pytest.raises(ZeroDivisionError), prepare_folder(folder):
        (folder / CAPTURE).touch()
        raise ZeroDivisionError
    for path in (folder.parent, folder, folder / CAPTURE):
        assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)
    with prepare_folder(tmp_path):
        (tmp_path / PICTURE).touch()
    assert (tmp_path / PICTURE).stat().st_uid == 65534
    assert tmp_path.stat().st_uid == 0


@pytest.mark.parametrize("number", first(1, [signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    process = start(tmp_path / "out")
    assert process.stderr is not None
    for line in process.stderr:
        if "transfers" in line:
            break
    assert len(labs_of(process.pid)) == 3
    # As a terminal does it: to the whole group.
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode in (128 + number, -number), said
    assert labs_of(process.pid) == []
    # The session is empty: collect and the traffic have ended too.
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
