# SPDX-License-Identifier: Apache-2.0
"""The plugin of pytest, as far as it needs no root: options, baselines, what a run imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.commands.arguments import arguments_of
from tcpkmon.collector.testing.baseline import Baseline
from tcpkmon.collector.testing.captured import Captured
from tcpkmon.collector.testing.captures import Captures
from tcpkmon.collector.testing.watch import choice_of_ports
from tcpkmon.formats.analysis.check import Capture
from tcpkmon.formats.base.errors import FileError, UsageError
from tests.unit.psc_files import write_capture

pytest_plugins = ["pytester"]


def test_keyword_arguments_are_options_of_collect() -> None:
    assert arguments_of({
        "ports": [5001, 5201], "netns": ["a", "b"], "schema": "tcp", "no_existing": True,
        "columns": "full", "when_changed": None, "data": False, "buffer_size": 2.5, "only4": True,
        "pair": "1.2", "L": range(7, 9),
    }) == ["--ports", "5001,5201", "--netns", "a", "--netns", "b", "--schema", "tcp",
           "--no-existing", "--columns", "full", "--buffer-size", "2.5", "-4", "--pair", "1.2",
           "-L", "7,8"]  # fmt: skip


def test_every_run_imports_only_the_plugin() -> None:
    program = "import pytest, sys; import tcpkmon.collector.testing.plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    ours = {name for name in done.stdout.split() if name.split(".")[0] == "tcpkmon"}
    assert ours == {
        "tcpkmon", "tcpkmon.collector", "tcpkmon.collector.testing",
        "tcpkmon.collector.testing.plugin", "tcpkmon.formats", "tcpkmon.formats.base",
        "tcpkmon.formats.base.errors", "tcpkmon.formats.base.removed",
    }  # fmt: skip
    assert not {"numpy", "click", "bcc"} & set(done.stdout.split())


def test_the_plugin_is_an_entry_point_with_a_marker(pytester: pytest.Pytester) -> None:
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--markers", "--strict-markers")
    found.stdout.fnmatch_lines(["@pytest.mark.tcpkmon(name='', check=(), baseline=False, *"])
    refused = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--tcpkmon-store")
    refused.stderr.fnmatch_lines(["*--tcpkmon-store stores in the file of --tcpkmon-baseline*"])
    pytester.makepyfile("def test_nothing(): pass")
    words = ("--tcpkmon-store", "--tcpkmon-baseline", "base.json")
    silent = pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)
    silent.stdout.fnmatch_lines(["tcpkmon: nothing was stored: no test called *baseline()*"])


def test_who_may_not_capture_is_skipped_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path / "no-capture-runs"))
    why = "tcpkmon cannot capture: this process is not root, and no capture runs"
    with pytest.raises(pytest.skip.Exception, match=why):
        Captures(tmp_path, "one").capture(ports=[5001])
    with pytest.raises(pytest.fail.Exception, match=f"{why} as web .--tcpkmon-require"):
        Captures(tmp_path, "one", require=True, collector="web").capture(ports=[5001])
    with pytest.raises(pytest.skip.Exception, match="no columns"):
        Captures(tmp_path, "one").capture(columns="full")
    with pytest.raises(UsageError, match="no name of a file"):
        Captures(tmp_path, "one").capture("../one")


def test_ports_choose_among_what_another_capture_has() -> None:
    table = {"lport": np.array([1, 2, 3, 4]), "rport": np.array([5, 6, 7, 1])}
    for options, kept in (
        ({}, [1, 1, 1, 1]), ({"ports": "1"}, [1, 0, 0, 1]), ({"local_ports": [1, 2]}, [1, 1, 0, 0]),
        ({"D": "1,6-7"}, [0, 1, 1, 1]), ({"L": "3", "remote_ports": 5}, [1, 0, 1, 0]),
    ):  # fmt: skip
        assert choice_of_ports(options, False)(table).tolist() == kept, options


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_capture(tmp_path_factory.mktemp("plugin") / "run.pm", 500, 2)


def test_what_a_capture_tells(path: Path) -> None:
    capture = Captured(path, "run")
    assert len(capture.connections["lport"]) == 2
    assert len(capture.records["conn_id"]) == capture.connections["records"].sum()
    assert set(capture.intervals["conn_id"]) == set(capture.connections["conn_id"])
    with pytest.raises(AssertionError) as caught:
        capture.check("count() == 2", "mss < 1", unproven_ok=True)
    told = str(caught.value).splitlines()
    assert told[0] == "1 of 2 assertions do not hold" and told[-1] == f"capture: {path}"
    assert told[2].startswith("FAILED mss < 1: 2 of 2 connections break it")
    with pytest.raises(AssertionError, match="not proven"):  # the builder's ledger is not whole
        capture.check("count() == 2")
    with pytest.raises(ValueError, match="no column 'mzz'"):
        capture.check("mzz == 1")
    with pytest.raises(UsageError, match="ended"):
        capture.mark(1)


def test_a_baseline_is_stored_and_compared(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    measured = Baseline(file, "one", True).measure(Capture(path), ["goodput", "max(mss)"])
    assert measured["max(mss)"] and measured["goodput"]
    (missing,) = Baseline(file, "one", False).compare("run", measured)
    assert "--tcpkmon-store" in missing
    for test in ("one", "two"):
        assert not Baseline(file, test, True).compare("run", measured)
    assert set(json.loads(file.read_text())["tests"]) == {"one", "two"}
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []
    for text, why in (
        ("[]", "indices must"), ("[", "Expecting value"), ("{}", "it lacks 'tests'"),
        ('{"tests": {"one": []}}', "no attribute"),
        ('{"tests": {"one": {"run": {"kernel": "6.1"}}}}', "it lacks 'values'"),
        ('{"tests": {"one": {"run": {"values": {"goodput": "x"}}}}}', "goodput is 'x', no number"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(FileError, match=f"is no baseline: .*{why}"):
            Baseline(file, "one", False).compare("run", measured)


@pytest.mark.parametrize("name", ["base.json", ".base.json.part", ".base.json.lock"])
def test_a_baseline_follows_no_link(tmp_path: Path, name: str) -> None:
    """Others may have put one there, for root to write through."""
    victim = tmp_path / "victim"
    victim.write_text('{"tests": {}}')
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    storing = Baseline(folder / "base.json", "one", True)
    if name == "base.json":
        with pytest.raises(FileError, match="it is a symbolic link"):
            storing.compare("run", {"goodput": 1.0})
    else:
        storing.compare("run", {"goodput": 1.0})
        assert (folder / "base.json").is_file()
    assert victim.read_text() == '{"tests": {}}'
    assert (folder / name).is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="it is root who is led elsewhere")
def test_no_folder_of_another_user_leads_a_baseline_elsewhere(tmp_path: Path) -> None:
    """He exchanges his folder for a link, between two looks at it."""
    mine, his = tmp_path / "mine", tmp_path / "his"
    for folder in (mine, his):
        folder.mkdir()
    os.chown(his, 65534, 65534)
    (his / "tests").symlink_to(mine)
    path = his / "tests" / "base.json"
    with pytest.raises(FileError, match="is a symbolic link in a folder that others may write"):
        Baseline(path, "one", True).compare("run", {"goodput": 1.0})
    assert not [*mine.iterdir()]
    (mine / "base.json").write_text('{"tests": {"one": {"run": {"values": {}}}}}')
    with pytest.raises(FileError, match="is a symbolic link in a folder that others may write"):
        Baseline(path, "one", False).compare("run", {})


def test_what_is_wrong_with_a_baseline_is_told_before_the_tests(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_it(): raise AssertionError('it ran')")
    Path(pytester.path, "bad.json").write_text("{}")
    for words, told in (
        (("bad.json",), "bad.json is no baseline: it lacks 'tests'"),
        ((".",), "cannot read /*: Is a directory"),
        (("none/base.json", "--tcpkmon-store"), "*/none is no folder to write to"),
    ):
        found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--tcpkmon-baseline", *words)
        assert found.ret == pytest.ExitCode.USAGE_ERROR
        found.stderr.fnmatch_lines([f"ERROR: --tcpkmon-baseline: *{told}"])
        found.stdout.no_fnmatch_line("*it ran*")


@pytest.mark.parametrize(
    ("name", "stored", "now", "tolerance", "told"),
    [
        ("goodput", 100.0, 81.0, None, ""),
        ("goodput", 100.0, 79.0, None, "goodput: 79, stored 100: 21.0% less, allowed are 20.0%"),
        ("goodput", 100.0, 900.0, None, ""),
        ("goodput", 100.0, 79.0, 0.3, ""),
        ("goodput", 100.0, 79.0, {"rto_count": 0.3}, "goodput: 79, stored 100: 21.0% less"),
        ("retransmissions", 0.0, 10.0, None, ""),
        ("retransmissions", 0.0, 11.0, None,
         "retransmissions: 11, stored 0: 11 more, allowed are 50.0% and 10"),
        ("max(mss)", 100.0, 121.0, None, "max(mss): 121, stored 100: 21.0% more"),
        ("max(mss)", 100.0, 79.0, None, "max(mss): 79, stored 100: 21.0% less"),
        ("max(mss)", None, 79.0, None, "79, stored no data: no data cannot be compared"),
        ("max(mss)", 79.0, None, None, "no data, stored 79: no data cannot be compared"),
        ("max(mss)", None, None, None, ""),
    ],
)  # fmt: skip
def test_worse_is_told(
    tmp_path: Path, name: str, stored: float | None, now: float | None, tolerance: object, told: str
) -> None:
    file = tmp_path / "base.json"
    Baseline(file, "one", True).compare("run", {name: stored})
    text = file.read_text()
    lines = Baseline(file, "one", False).compare("run", {name: now}, tolerance)  # type: ignore[arg-type]
    assert told in "\n".join(lines) if told else not lines
    assert file.read_text() == text
    if told:
        file.write_text(text.replace('"kernel": "', '"kernel": "1'))
        (head, _) = Baseline(file, "one", False).compare("run", {name: now}, tolerance)  # type: ignore[arg-type]
        assert "stored on Linux 1" in head
