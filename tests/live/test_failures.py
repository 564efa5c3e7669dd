# SPDX-License-Identifier: Apache-2.0
"""Errors while a capture runs: what it can be without ends nothing, any other ends it in order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tcpkmon.formats.registry import format_of
from tcpkmon.formats.verify import Report
from tests.full import first
from tests.live.faults import Space, run

# The first word is Python that runs before the command line.
DRIVER = """
import sys
exec(sys.argv.pop(1))
from tcpkmon.collector.commands import collect
sys.argv[0] = "collect"
collect.main()
"""
# After the start no descriptor is left: whatever wants to open one gets EMFILE.
NO_DESCRIPTORS = """
import os, resource
from tcpkmon.collector.session.overseer import Overseer
ready = Overseer.ready
def _ready(self):
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    self._held = held
    ready(self)
Overseer.ready = _ready
"""
FAILING = """
from tcpkmon.collector.{module} import {name}
def fail(*_):
    raise RuntimeError("it broke")
{name}.{method} = fail
"""


def report_of(path: Path) -> Report:
    """What verify says of a capture, or of all logs of a folder."""
    return format_of(path).verify(path)[-1]


def command(code: str, space: Space, path: Path, *words: str) -> list[str]:
    options = ("--netns", space.path, "-o", str(path), *words)
    return [sys.executable, "-c", DRIVER, code, *options]


@pytest.mark.parametrize("words", [(), ("--format", "klogger")])
def test_a_capture_goes_on_without_descriptors(
    space: Space, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "x"
    done = run(command(NO_DESCRIPTORS, space, path, *words, "--duration", "2500ms"))
    assert done.code == 0, done.stderr
    report = report_of(path)
    assert (report.exit_code, report.end_reason) == (0, "duration"), report.verdict
    assert "moving to an idler CPU: Too many open files" in done.stderr
    assert "rings of new CPUs: Too many open files" in done.stderr


OPTIONAL = {
    "placing": ("linux.cpu_affinity", "Placing", "move", "moving to an idler CPU"),
    "walk": ("loader.socket_iterator", "Walk", "step", "listing the open connections"),
    "rings": ("ring.rings", "Rings", "refresh", "rings of new CPUs"),
    "status": ("session.status_line", "Status", "update", "status line"),
}


@pytest.mark.parametrize("name", first(2, OPTIONAL))
def test_what_is_optional_ends_nothing(name: str, space: Space, tmp_path: Path) -> None:
    module, kind, method, what = OPTIONAL[name]
    code = FAILING.format(module=module, name=kind, method=method)
    done = run(command(code, space, tmp_path / "x.pm", "--duration", "1500ms"))
    assert done.code == 0, done.stderr
    assert f"collect: {what}: it broke" in done.lines
    assert report_of(tmp_path / "x.pm").exit_code == 0


ENDING = {
    "draining": ("ring.rings", "Rings", "free"),
    "clock": ("sequencer.clock_pairs", "Clocks", "check"),
}


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("words", [
    (), pytest.param(("--format", "klogger"), marks=pytest.mark.full)
])  # fmt: skip
def test_any_error_ends_the_file(
    name: str, space: Space, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The error is raised all the same, once the file has its end and the reason."""
    module, kind, method = ENDING[name]
    once = "count = [0]\n" + FAILING.format(module=module, name=kind, method=method)
    code = once.replace(
        "def fail(*_):", f"was = {kind}.{method}\ndef fail(*_):\n    count[0] += 1"
    ).replace("    raise", "    if count[0] != 3: return was(*_)\n    raise")
    path = tmp_path / "x"
    with pytest.raises(AssertionError, match="RuntimeError: it broke"):  # run() refuses tracebacks
        run(command(code, space, path, *words))
    report = report_of(path)
    assert (report.exit_code, report.end_reason) == (0, "error"), report.verdict
