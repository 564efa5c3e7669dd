# SPDX-License-Identifier: Apache-2.0
"""The commands of 1987 and 1988: their words, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands import tcpkmon
from tcpkmon.collector.commands.history import iscan, measurements, monitor, msmod
from tcpkmon.collector.plan.columns import SCHEMATA
from tcpkmon.formats.base.errors import KernelError, TcpkmonError, UsageError
from tcpkmon.formats.history import Translator
from tcpkmon.formats.klogger.describe import describe_event
from tcpkmon.formats.klogger.table import LogFormat
from tcpkmon.formats.schema import load


@pytest.fixture(autouse=True)
def no_collectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCPKMON_RUN", str(tmp_path))


@pytest.mark.parametrize("word", ["-help", "-h"])
def test_help_lists_the_groups(word: str) -> None:
    lines = CliRunner().invoke(tcpkmon.command, ["monitor", word]).output.splitlines()
    assert lines[1] == "1. Transaction"
    assert lines[-1] == "6. Fork/Exit"


@pytest.mark.parametrize("words", [["-off"], ["-status"], ["-s"]])
def test_nothing_is_on(words: list[str]) -> None:
    assert CliRunner().invoke(monitor.command, words).output == "MONITOR is not turned on\n"


def test_a_state_of_a_collector_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "monitor.json").write_text(
        '{"pid": 1, "file": "x", "buffers": 2, "bytes": 2048, "events": [1]}'
    )
    assert monitor.find_state() is None
    (tmp_path / "monitor.json").write_text("[]")
    assert monitor.find_state() is None


@pytest.mark.parametrize("text", ["", "0", "7", "1 x", "-1"])
def test_groups_that_do_not_exist(text: str) -> None:
    with pytest.raises(UsageError, match="no list of groups"):
        monitor._parse_events(text)


@pytest.mark.parametrize("words, why", [
    (("2", "0"), "-buffer 2 0: there is no such buffer"),
    (("2", "-5"), "-buffer 2 -5: there is no such buffer"),
    (("2", "9999999999"), "-buffer 2 9999999999: 19999999998 bytes for each CPU are too many"),
])  # fmt: skip
def test_buffers_beyond_bounds(words: tuple[str, str], why: str) -> None:
    """In words of the monitor, before anything else is said."""
    result = CliRunner().invoke(monitor.command, ["-on", "-b", *words])
    assert str(result.exception).startswith(f"{why}; ")
    assert result.output == ""


def test_lists_of_numbers_need_no_quotes() -> None:
    """-e 1 3 is one option with two values, and what follows is another."""
    for word in ("-event", "-events"):
        with monitor.command.make_context("monitor", ["-s", word, "1", "3"]) as context:
            assert context.params["events"] == "1 3"
    with monitor.command.make_context("monitor", ["-s", "-e", "1", "3", "-f", "x"]) as context:
        assert context.params["events"] == "1 3"
        assert context.params["file"] == "x"
        assert context.params["action"] == "status"


@pytest.mark.parametrize("ids", [["+sleep", "-swtch"], ["-swtch"], ["-sleep", "+exit"]])
def test_signed_ids_are_no_options(ids: list[str]) -> None:
    with msmod.command.make_context("msmod", ["--collector", "7", *ids]) as context:
        assert context.params["ids"] == tuple(ids)
        assert context.params["collector"] == "7"
        assert context.params["listed"] is False


def test_msmod_lists_every_schema_with_the_fields_of_a_record() -> None:
    result = CliRunner().invoke(msmod.command, ["-l"])
    names = [line.split(":")[0] for line in result.output.splitlines()]
    assert len(set(names)) > 50
    assert "swtch (SCHEDOUT)" in names
    said = result.output.splitlines()
    assert sum(line.startswith("exec (EXEC): seconds, microseconds, pid") for line in said) == 3
    assert "disc_io_id: disc_queue, disc_start, disc_done" in said
    assert "breada_read: bread" in said and "breada_reada: breada" in said
    assert any(line.startswith("disc_ctd_id: not on this kernel: ") for line in said)


def test_msmod_describes_what_translate_prints() -> None:
    """Word for word, of a log of the shipped schema."""
    schema = load([SCHEMATA / "base.conf", SCHEMATA / "sched.conf"])
    table = [describe_event(schema, event, n) for n, event in enumerate(schema.events)]
    log = LogFormat.of({"format": 1, "byteorder": "little", "events": table})
    legend = Translator(SimpleNamespace(format=log)).legend()  # type: ignore[arg-type]
    theirs = [line.split(" ", 1)[1].replace(": ", " ").split() for line in legend]
    listed = CliRunner().invoke(msmod.command, ["-l"]).output.splitlines()
    ours = [line.replace(",", "").split() for line in listed if ": seconds" in line]
    ours = [[words[0].rstrip(":"), *(w for w in words[1:] if w[0] != "(")] for words in ours]
    for name in ("swtch", "setrq", "exec", "exit", "sleep", "FORK"):
        assert [one for one in ours if one[0] == name] == [one for one in theirs if one[0] == name]


def test_iscan_takes_all_ids_of_1988_and_their_log_levels() -> None:
    words = [
        "sleep", "swtch", "setrq", "remrq", "syscall", "exec", "exit", "bread", "breada", "bwrite",
        "syscallstart", "syscallexit", "sampler", "bread_read", "breada_read", "breada_reada",
        "disc2_io_id", "timeshare_insert", "bdwrite", "disc_io_id", "trap",
    ]  # fmt: skip
    chosen = measurements.choose(words)
    assert len(chosen) == len(words) and all(chosen)
    found = [one for each in chosen[-4:-1] for one in each]
    assert [one.level for one in found] == ["queue", "buffers", *["requests"] * 3]
    trap = chosen[-1]
    assert [(one.event.name, one.level) for one in trap] == [("TRAP", "traps")]
    with pytest.raises(KernelError, match=r"disc_ctd_id is not on this kernel: .* tape"):
        measurements.choose(["disc_ctd_id"])


@pytest.mark.parametrize("words, why", [
    (["swtch"], "does not say on or off"), ([], "nothing to do"), (["-l", "+exit"], "takes no ID"),
    (["+switch"], "no measurement 'switch'"),
])  # fmt: skip
def test_msmod_refuses(words: list[str], why: str) -> None:
    with pytest.raises(TcpkmonError, match=why):
        CliRunner().invoke(msmod.command, words, catch_exceptions=False)


def test_iscan_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="no measurement 'nonsense'"):
        CliRunner().invoke(iscan.command, ["nonsense"], catch_exceptions=False)
