# SPDX-License-Identifier: Apache-2.0
"""status, enable, disable, mark, buffer-size, lowwater: from the command line to the controls."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands import status
from tcpkmon.collector.commands.tcpkmon import command
from tcpkmon.collector.control import choosing
from tcpkmon.collector.control.access import own_name, read_name
from tcpkmon.collector.control.choosing import choose, named
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.control.server import ControlServer
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

EVENTS = [
    {"number": 32, "name": "SCHEDIN", "enabled": True, "attempts": 5, "written": 4, "lost": 1},
    {"number": 33, "name": "BAD\x1b[31m", "enabled": False, "attempts": 0, "written": 0, "lost": 0},
]
STATUS = {
    "pid": 4711,
    "enabled": True,
    "buffer_bytes": 4 << 20,
    "low_water_percent": 10,
    "lost": {"in the kernel": 1, "disk full": 0},
    "events": EVENTS,
}


class Session:
    """Controls as a session has them, kept in a dictionary, and a main thread that serves."""

    def __init__(self, folder: Path) -> None:
        self.told: dict[str, Any] = json.loads(json.dumps(STATUS))
        self.marks: list[tuple[int, int]] = []
        self._changed = threading.Event()
        self._over = False
        self.server = ControlServer(folder, None, self._changed.set)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        while not self._over:
            self._changed.wait()
            self._changed.clear()
            self.server.serve_pending(self)

    def __enter__(self) -> Session:
        self.server.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._changed.set()
        self._thread.join()
        self.server.close()

    def status(self) -> dict[str, Any]:
        return self.told

    def set_enabled(self, names: Sequence[str] | None, on: bool) -> dict[str, Any]:
        if names is None:
            self.told["enabled"] = on
        for name in names or ():
            known = [event for event in self.told["events"] if event["name"] == name]
            if not known:
                raise UsageError(f"unknown event '{name}'")
            known[0]["enabled"] = on
        return {}

    def mark(self, number: int, pid: int) -> dict[str, Any]:
        self.marks.append((number, pid))
        return {}

    def set_buffer_bytes(self, n: int) -> dict[str, Any]:
        if self.told["enabled"]:
            raise UsageError("the buffer's size cannot change while logging is on",
                             "tcpkmon disable")
        self.told["buffer_bytes"] = n
        return {}

    def set_low_water(self, percent: int) -> dict[str, Any]:
        self.told["low_water_percent"] = percent
        return {}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run"
    monkeypatch.setenv("TCPKMON_RUN", str(folder))
    return folder


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with Session(folder) as session:
        yield session


def tcpkmon(*arguments: str) -> int:
    return run(command, arguments, "tcpkmon")


def test_enable_and_disable(session: Session) -> None:
    assert tcpkmon("disable") == 0
    assert session.told["enabled"] is False
    assert tcpkmon("enable") == 0
    assert session.told["enabled"] is True
    assert tcpkmon("disable", "SCHEDIN") == 0
    assert session.told["events"][0]["enabled"] is False
    assert session.told["enabled"] is True
    assert tcpkmon("enable", "SCHEDIN", "--collector", str(os.getpid())) == 0
    assert session.told["events"][0]["enabled"] is True


def test_a_refusal_is_printed(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert tcpkmon("enable", "NONE") == UsageError.exit_code
    assert capsys.readouterr().err == "tcpkmon: unknown event 'NONE'\n"
    assert tcpkmon("buffer-size", "8") == UsageError.exit_code
    assert "cannot change while logging is on; tcpkmon disable" in capsys.readouterr().err
    assert session.told["buffer_bytes"] == 4 << 20


def test_mark(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert tcpkmon("mark", str((1 << 64) - 1)) == 0
    assert session.marks == [((1 << 64) - 1, os.getpid())]
    for wrong in ("-1", str(1 << 64), "one"):
        assert tcpkmon("mark", wrong) == UsageError.exit_code
    assert len(session.marks) == 1


def test_buffer_size(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert tcpkmon("buffer-size") == 0
    assert capsys.readouterr().out == "4MB/CPU\n"
    tcpkmon("disable")
    assert tcpkmon("buffer-size", "16") == 0
    assert session.told["buffer_bytes"] == 16 << 20
    assert tcpkmon("buffer-size", "0.5") == 0
    assert tcpkmon("buffer-size") == 0
    assert capsys.readouterr().out == "0.5MB/CPU\n"
    assert tcpkmon("buffer-size", "nan") == UsageError.exit_code
    assert tcpkmon("buffer-size", "0") == UsageError.exit_code


def test_lowwater(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert tcpkmon("lowwater") == 0
    assert tcpkmon("lowwater", "5") == 0
    assert tcpkmon("lowwater") == 0
    assert capsys.readouterr().out == "10%\n5%\n"
    assert tcpkmon("lowwater", "0") == UsageError.exit_code


def test_status(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert tcpkmon("status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {**STATUS, "name": "capture"}
    session.told["sampler_period_ns"] = None
    assert tcpkmon("status") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["buffer", "4MB/CPU"] in lines
    assert ["low", "water", "10%"] in lines
    assert ["lost", "in", "the", "kernel", "1"] in lines
    assert ["number", "event", "enabled", "attempts", "written", "lost"] in lines
    assert ["32", "SCHEDIN", "yes", "5", "4", "1"] in lines
    assert ["33", r"BAD\x1b[31m", "no", "0", "0", "0"] in lines
    assert not [line for line in lines if line[-1:] == ["None"]]


def test_status_watch_goes_on_until_the_capture_ends(
    session: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def second(_: float) -> None:
        session.told["records"] = session.told.get("records", 0) + 7
        if session.told["records"] > 14:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "sleep", second)
    assert tcpkmon("status", "--watch") != 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    told = [line[1] for line in lines if line[:1] == ["records"]]
    assert told == ["7", "14"], "none at first"
    assert tcpkmon("status", "--watch", "--json") == UsageError.exit_code


@pytest.mark.parametrize("words", [["status"], ["mark", "1"], ["enable"], ["lowwater"]])
def test_without_a_collector(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tcpkmon(*words) == UsageError.exit_code
    error = capsys.readouterr().err
    assert "no collector runs here; start one: sudo collect" in error
    folder.mkdir()
    assert tcpkmon(*words) == UsageError.exit_code
    assert capsys.readouterr().err == error


def test_several_collectors(
    session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_ASK_S", 1.0)
    other = session.server.path.with_name(f"{os.getppid()}.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(other))
        listener.listen()
        assert tcpkmon("enable") == UsageError.exit_code
        error = capsys.readouterr().err
        assert "2 captures run here" in error
        assert f"({os.getppid()})" in error and f" ({os.getpid()})" in error
        assert "add --collector NAME" in error
        assert choose(os.getpid()).path == session.server.path
        with pytest.raises(UsageError, match="runs as process 999999999") as caught:
            choose(999999999)
        assert f"({os.getpid()})" in caught.value.hint
    assert tcpkmon("enable") == 0, "the other one is dead now, and its socket passed over"
    assert other.exists()


def test_a_capture_has_one_name(
    folder: Path, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the daemon or of its output: status tells it, and --collector takes it."""
    session.told["output"] = "/var/captures/run.pm"
    assert choose("run.pm").pid == choose(str(os.getpid())).pid == os.getpid()
    with pytest.raises(UsageError, match="runs as web") as caught:
        choose("web")
    assert caught.value.hint == f"these run: run.pm ({os.getpid()})"
    assert tcpkmon("status", "--json", "--collector", "run.pm") == 0
    assert json.loads(capsys.readouterr().out)["name"] == "run.pm"
    session.told["name"] = "web"
    assert list(named()) == ["web"]
    assert tcpkmon("disable", "--collector", "web") == 0


def test_all_users_see_the_names_that_captures_began_with(folder: Path) -> None:
    """By files that everybody may read: no capture is asked, and none of these answers."""
    with ControlServer(folder, name=own_name(None, "/other/run.pm")) as server:
        path = server.path.with_suffix(".name")
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("run.pm", 0o644)
        assert list(named()) == ["run.pm"]
        other = folder / f"{os.getppid()}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(other))
            listener.listen()
            later = other.with_suffix(".name")
            later.write_text("run.pm")
            for since, names in ((1 << 62, [os.getpid(), os.getppid()]),
                                 (1, [os.getppid(), os.getpid()])):  # fmt: skip
                os.utime(later, ns=(since, since))
                found = named()
                assert list(found) == ["run.pm", "run.pm-2"], "by their begins, not their PIDs"
                assert [one.pid for one in found.values()] == names
        later.unlink()
        os.mkfifo(later)
        assert read_name(other) is None, "nobody waits for a writer"
    assert not path.exists()
    assert own_name("web", "/x/run.pm") == "web" and own_name("", None) == "capture"


def test_a_collector_that_hangs(folder: Path) -> None:
    with ControlServer(folder) as server:  # nobody serves what waits
        client = Client(choose(), time_limit_s=0.05)
        with pytest.raises(TcpkmonError, match=r"did not answer within 0\.05 s"):
            client.status()
    with pytest.raises(TcpkmonError, match="does not listen"):
        client.status()
    assert not server.path.exists()
