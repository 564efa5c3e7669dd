# SPDX-License-Identifier: Apache-2.0
"""The plugin of pytest captures around tests, checks, and compares with a baseline."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.daemons import Daemon
from tests.live.faults import PLACE, at

pytest_plugins = ["pytester"]
TALK = """
import fcntl, socket, threading, time, pytest

SIOCOUTQ = 0x5411

def talk(port, count=200):
    with socket.create_server(("127.0.0.1", port)) as listener:
        def serve():
            stream, _ = listener.accept()
            with stream:
                while stream.recv(65536):
                    pass
        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection(("127.0.0.1", port)) as stream:
            for _ in range(count):
                stream.sendall(bytes(1000))
            # What a close leaves unsent is not certain where segments after it are not shown.
            while int.from_bytes(fcntl.ioctl(stream, SIOCOUTQ, bytes(4)), "little"):
                time.sleep(0.001)
        thread.join()
"""
TESTS = """
def test_block(tcpkmon):
    with tcpkmon.capture("upload", ports=[5961]) as capture:
        with pytest.raises(Exception, match="after its block"):
            capture.connections
        capture.mark(7)
        talk(5961)
    talk(5961)
    capture.check("no_loss", "proven", "count() == 2", "any(interval.bytes_sent > 0)",
                  "retrans_ratio < 5% where bytes_sent > 0", "max(snd_cwnd_segs) > 0")
    assert sum(capture.connections["bytes_sent"]) == 200_000
    assert set(capture.intervals["conn_id"]) == set(capture.connections["conn_id"])
    # Beside these, MARK and what else the ledger tells are control entries.
    assert len(capture.records["time_ns"]) == capture.connections["records"].sum()
    assert capture.ledger.lost_total == 0 and capture.ledger.totals.in_file > 0
    capture.baseline(tolerance={"goodput": 100.0})
    with pytest.raises(AssertionError, match="max.bytes_sent. < 10: is 200000"):
        capture.check("max(bytes_sent) < 10")
    with pytest.raises(ValueError, match="no column 'bites'"):
        capture.check("bites == 1")

@pytest.mark.tcpkmon(ports=5962, check=["count() == 2", "bytes_sent < 10"], no_existing=True)
def test_marked():
    talk(5962)
"""


NOBODY = NOGROUP = 65534
CONFIG = """
[capture.all]
output = "@/all"
rotation = {size = "64K"}
[control]
group = "nogroup"
"""
WATCHED = """
def test_span(tcpkmon):
    talk(5971)
    with tcpkmon.capture(ports=[5971]) as capture:
        talk(5971, 2000)
        talk(5972)
    talk(5971)
    capture.check("no_loss", "proven", "count() == 2 where role != \\"existing\\"",
                  "max(snd_cwnd_segs) > 0", "interval.certain and interval.lost_records == 0")
    assert sum(capture.connections["bytes_sent"]) == 2_000_000
    assert len(capture.records["time_ns"]) == capture.connections["records"].sum()

def test_no_root(tcpkmon):
    tcpkmon.capture(columns="full")

@pytest.mark.tcpkmon(columns="full")
def test_no_root_either():
    raise AssertionError("it was not skipped")
"""


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", *words)


def test_captures_checks_and_a_baseline(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TALK + TESTS)
    stored = run(pytester, "--tcpkmon-baseline", "base.json", "--tcpkmon-store")
    stored.stdout.fnmatch_lines(["tcpkmon: values are stored in *base.json"])
    stored.assert_outcomes(passed=1, failed=1)
    stored.stdout.fnmatch_lines([
        "1 of 2 assertions do not hold", "ok     count() == 2: is 2",
        "FAILED bytes_sent < 10: 1 of 2 connections break it",
        "*connection *, 127.0.0.1:* -> 127.0.0.1:5962: 200000",
        "*captures of tcpkmon*", "*/test_marked0/capture.pm", "*tcpkmon why /*capture.pm",
    ])  # fmt: skip
    stored.stdout.no_fnmatch_line("*During handling*")
    path = Path(pytester.path, "base.json")
    told = json.loads(path.read_text())
    (test,) = told["tests"].values()
    assert test["upload"]["values"]["goodput"] > 0
    test["upload"]["values"]["goodput"] *= 1000
    path.write_text(json.dumps(told))
    # CI has the message in the summary too.
    (line,) = {one.strip("E ") for one in compared(pytester) if "goodput:" in one}
    assert line.startswith("goodput: ") and line.endswith("less, allowed are 20.0%")


def compared(pytester: pytest.Pytester) -> list[str]:
    text = (TALK + TESTS).replace('tolerance={"goodput": 100.0}', "'goodput'")
    pytester.makepyfile(test_it=text)
    found = run(pytester, "--tcpkmon-baseline", "base.json", "-k", "block")
    found.assert_outcomes(failed=1)
    return found.stdout.lines


@pytest.mark.full
def test_the_example_and_the_time_in_the_layers(pytester: pytest.Pytester) -> None:
    """docs/pytest.md has the example."""
    page = (Path(__file__).parents[2] / "docs" / "pytest.md").read_text()
    examples = dict(re.findall(r"^```python (\w+).py\n(.*?)^```$", page, re.M | re.S))
    assert set(examples) == {"test_upload", "conftest"}
    pytester.makepyfile(**examples)
    pytester.makepyfile(
        TALK
        + """
def test_layers(tcpkmon):
    with tcpkmon.capture(ports=[5963], latency=True) as capture:
        talk(5963)
    capture.check("count() == 2")
    assert sum(flow.size for flow in capture.latency.flows) >= 200_000
"""
    )
    run(pytester).assert_outcomes(passed=3)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody may look into, with the tests."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        Path(made, "test_it.py").write_text(TALK + WATCHED)
        yield Path(made)


def as_nobody(folder: Path, *words: str, **environment: str) -> str:
    """What pytest prints for a user without rights; it has the plugin by its entry point."""
    rights = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOGROUP}", "--clear-groups"]
    python = PLACE / ".venv/bin/python"
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "test_it.py"]
    done = subprocess.run(
        at(PLACE, *rights, *command, *words), cwd=folder, check=False, capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PLACE), **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


def test_without_rights_the_daemons_capture_is_looked_at(folder: Path) -> None:
    with Daemon(folder) as daemon:
        (folder / "all").mkdir()
        shutil.chown(folder / "all", group=NOGROUP)
        (folder / "all").chmod(0o2750)  # what root writes there, the group may read
        daemon.configure(CONFIG)
        daemon.start()
        done = as_nobody(folder, TCPKMON_RUN=str(folder / "run"))
        assert "1 passed, 2 skipped" in done, done
        assert "has the options of a running capture, and no columns" in done
