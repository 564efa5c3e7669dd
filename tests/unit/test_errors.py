# SPDX-License-Identifier: Apache-2.0
"""Errors as people meet them: one line on stderr, the right exit code, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tcpkmon.collector.commands.collect import command as collect
from tcpkmon.collector.commands.tcpkmon import GROUPS, parts
from tcpkmon.collector.commands.tcpkmon import command as tcpkmon
from tcpkmon.formats.base.cli import run, use_colours
from tcpkmon.formats.base.errors import (
    DamagedError,
    FileError,
    KernelError,
    LossError,
    PrivilegeError,
    Problem,
    SchemaError,
    TcpkmonError,
    UsageError,
)
from tcpkmon.formats.base.escape import for_terminal

ROOT = Path(__file__).resolve().parents[2]


def failing(error: BaseException) -> click.Command:
    @click.command("failing")
    def command() -> None:
        raise error

    return command


@click.group("group")
def group() -> None:
    """A group."""


@group.command()
@click.argument("number", type=int)
def give(number: int) -> int:
    return number


@group.command()
def leave() -> None:
    click.get_current_context().exit(7)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (TcpkmonError, 1),
        (UsageError, 2),
        (LossError, 3),
        (KernelError, 4),
        (PrivilegeError, 1),
        (FileError, 1),
        (DamagedError, 5),
    ],
)
def test_error_is_one_line_with_its_code(
    kind: type[TcpkmonError], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(failing(kind("it failed", "try again")), [], "prog") == code
    assert capfd.readouterr() == ("", "prog: it failed; try again\n")


def test_schema_error_has_a_line_for_each_problem(capfd: pytest.CaptureFixture[str]) -> None:
    problems = [Problem("a.conf", 1, 2, "expected x"), Problem("a.conf", 3, 4, "expected y")]
    error = SchemaError(problems, "see the manual")
    assert error.problems == tuple(problems)
    assert run(failing(error), [], "prog") == 2
    assert capfd.readouterr().err == (
        "prog: a.conf:1:2: expected x\nprog: a.conf:3:4: expected y; see the manual\n"
    )


def test_error_text_is_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    run(failing(FileError("bad \x1b[31mname\nnext\u202e")), [], "prog")
    assert capfd.readouterr().err == "prog: bad \\x1b[31mname\\nnext\\u202e\n"


def test_missing_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def command() -> None:
        (tmp_path / "none").read_bytes()

    assert run(command, [], "prog") == 1
    assert capfd.readouterr().err == f"prog: {tmp_path}/none: No such file or directory\n"


def test_interrupt() -> None:
    assert run(failing(KeyboardInterrupt()), [], "prog") == 130
    assert run(failing(click.Abort()), [], "prog") == 130


@pytest.mark.parametrize(
    ("args", "code"), [(["give", "3"], 3), (["give", "0"], 0), (["leave"], 7), (["--help"], 0)]
)
def test_subcommand_exit_code(args: list[str], code: int) -> None:
    assert run(group, args, "prog") == code


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--nope"], "prog: no such option '--nope'; try 'prog --help'"),
        (["give"], "prog give: missing argument 'NUMBER'; try 'prog give --help'"),
        (["nope"], "prog: no such command 'nope'; try 'prog --help'"),
    ],
)
def test_usage_error(args: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(group, args, "prog") == 2
    out, err = capfd.readouterr()
    # Versions of click quote differently.
    err = err.replace('"', "'").replace(": --nope", " '--nope'")
    assert (out, err) == ("", line + "\n")


def script(body: str) -> list[str]:
    lines = (
        "import click, sys\nfrom tcpkmon.formats.base.cli import run\n"
        f"@click.command()\ndef main():\n{body}\n"
    )
    return [sys.executable, "-c", lines + "sys.exit(run(main, [], 'prog'))"]


@pytest.mark.parametrize("printing", ["click.echo('x' * 1000)", "console.print('x' * 1000)"])
def test_broken_pipe_is_silent(printing: str) -> None:
    body = f" from rich.console import Console\n console = Console()\n while True:\n  {printing}"
    with subprocess.Popen(
        script(body), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=120) == 141


def test_full_disk_on_stdout_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            script(" click.echo('x')"), cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "prog: No space left on device\n")


def test_interrupt_of_a_process_leaves_no_traceback() -> None:
    body = (
        " import signal, threading\n"
        " signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        " click.echo('ready')\n"
        " threading.Event().wait(120)"
    )
    with subprocess.Popen(
        script(body), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=120) == 130
        assert process.stderr.read() == b""


class Terminal:
    def isatty(self) -> bool:
        return True


def test_colours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terminal: object = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert use_colours(terminal)  # type: ignore[arg-type]  # has all that is asked of it
    with (tmp_path / "file").open("w") as file:
        assert not use_colours(file)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colours(terminal)  # type: ignore[arg-type]  # the same


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [1] text", "plain [1] text"),
        ("caf\u00e9 \u6f22\u5b57", "caf\u00e9 \u6f22\u5b57"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd\x00\x7f", "a\\nb\\tc\\rd\\x00\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\u2028", "\\u2028"),
        ("\udcff", "\\xff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_escape_for_terminal(text: str, shown: str) -> None:
    assert for_terminal(text) == shown


@pytest.mark.parametrize(
    ("prog", "words", "meant"),
    [
        ("tcpkmon", ["wy"], "why"),
        ("tcpkmon", ["dataset", "qury"], "query"),
        ("tcpkmon", ["why", "x.pm", "--whre", "1"], "--where"),
        ("tcpkmon", ["dataset", "query", "worsthosts", "x"], "worst-hosts"),
        ("collect", ["--port", "80"], "--ports"),
        ("collect", ["--columns", "sntt_us", "-o", "x.pm"], "srtt_us"),
        ("collect", ["--locations", "RTX", "-o", "x.pm"], "RTO"),
        ("collect", ["--schema", "shed", "-o", "x.pm"], "sched"),
    ],
)
def test_what_may_have_been_meant(
    prog: str, words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = {"tcpkmon": tcpkmon, "collect": collect}[prog]
    assert run(command, words, prog=prog) == UsageError.exit_code
    said = capsys.readouterr().err
    assert f"(did you mean '{meant}'?)" in said and said.count("\n") == 1, said


def test_the_help_has_each_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(parts(tcpkmon))
    assert run(tcpkmon, ["--help"], prog="tcpkmon") == 0
    said = capsys.readouterr().out
    assert "..." not in said.replace("ARGS]...", "").replace("microseconds, ...", ""), said
    assert run(collect, ["--help"], prog="collect") == 0
    said = capsys.readouterr().out
    options = [line.split()[0] for line in said.splitlines() if line.startswith("  -")]
    assert options[:3] == ["--ports", "-o,", "--duration"]
