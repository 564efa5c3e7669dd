# SPDX-License-Identifier: Apache-2.0
"""How Python starts: nothing of the current folder, no heavy import, no other machine."""

from __future__ import annotations

import ast
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands import doctor, event_cost
from tcpkmon.collector.linux import isolated
from tcpkmon.collector.loader.prepare import check_machine, decide, prepare
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tcpkmon.formats.base.errors import KernelError
from tests.unit.test_rooms import NOT_OURS, ROOT

STARTER = ROOT / "collector" / "linux" / "isolated.py"


def python_files() -> Iterator[Path]:
    for room in ("collector", "formats", "scripts"):
        for path in (ROOT / room).rglob("*"):
            if not path.is_file() or NOT_OURS & set(path.parts) or path == STARTER:
                continue
            with path.open("rb") as file:
                if path.suffix == ".py" or b"python" in file.readline(80):
                    yield path


def lists_of(path: Path) -> Iterator[list[str]]:
    """The words of each list and tuple of a file; what is no text as its source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.List, ast.Tuple)):
            yield [
                one.value if isinstance(one, ast.Constant) and isinstance(one.value, str)
                else ast.unparse(one) for one in node.elts
            ]  # fmt: skip


def test_no_python_is_started_but_isolated() -> None:
    """-c and -m begin with the current folder, unless -I is before them."""
    wrong = []
    for path in python_files():
        for words in lists_of(path):
            is_python = words and ("python" in words[0].lower() or words[0] == "sys.executable")
            if not is_python or not {"-c", "-m"} & set(words[1:4]):
                continue
            if "-I" not in words[1:3] and "pytest" not in words:  # pytest: in this tree itself
                wrong.append(f"{path.relative_to(ROOT)}: {' '.join(words)[:80]}")
    assert not wrong, "\n".join(wrong)


def test_the_package_starts_python_by_the_helper_alone() -> None:
    found = [
        path.relative_to(ROOT) for path in python_files()
        if "scripts" not in path.parts and "sys.executable" in path.read_text()
    ]  # fmt: skip
    assert found == [Path("collector/commands/demo.py")], "it prints the folder"


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": ":."}])
def test_the_helper(tmp_path: Path, variables: dict[str, str]) -> None:
    for name in ("click", "collector", "formats", "tcpkmon", "importlib", "json", "re"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'imported {__name__}')")
    done = subprocess.run(
        isolated.command("tcpkmon.collector.commands.tcpkmon", "--version"), cwd=tmp_path,
        check=False, capture_output=True, text=True, env=variables,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("tcpkmon, ")


def test_the_commands_of_the_environment_are_isolated() -> None:
    """scripts/setup makes them so."""
    folder = Path(sys.executable).parent
    if not (folder.parent / ".tcpkmon-setup").exists():
        pytest.skip("this environment is not of scripts/setup")
    for name in ("collect", "pmgraph", "tcpkmon"):
        first = (folder / name).read_text().splitlines()[:2]
        assert any(" -I" in line for line in first), f"{name}: run scripts/setup again"


HEAVY = {
    "bcc", "pyroute2", "pyarrow", "polars", "duckdb", "matplotlib", "rich", "plotext",
    "numpy.ma", "numpy.random",
    "tcpkmon.collector.lab",
    "tcpkmon.collector.control.client",
    "tcpkmon.collector.loader.sock_diag",
    "tcpkmon.formats.analysis",
    "tcpkmon.formats.export",
    "tcpkmon.formats.klogger",
    "tcpkmon.formats.lines",
    "tcpkmon.formats.pmgraph",
    "tcpkmon.formats.tables",
    "tcpkmon.formats.verify",
}  # fmt: skip
PROGRAM = """
from tcpkmon.collector.commands import collect
collect.import_quietly()
import tcpkmon.collector.writer.psc_codec
"""


def loaded(program: str) -> set[str]:
    """The modules that an interpreter has after this program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_the_default_capture_imports_nothing_that_it_does_not_need() -> None:
    imported = loaded(PROGRAM)
    assert "tcpkmon.collector.session.session" in imported
    assert not imported & HEAVY


def test_the_options_of_a_capture_need_no_numpy() -> None:
    """The command line is there before import_quietly(), which keeps numpy from starting threads.
    """
    imported = loaded("import tcpkmon.collector.commands.collect")
    assert not {"numpy", "tcpkmon.collector.session.session"} & imported


def test_a_command_imports_no_other() -> None:
    imported = loaded(
        "from tcpkmon.collector.commands.tcpkmon import command\n"
        "command.main(['verify', '--help'], standalone_mode=False)"
    )
    assert "tcpkmon.formats.commands.verify" in imported
    assert not imported & {"tcpkmon.collector.loader.prepare", "tcpkmon.formats.commands.why"}


def test_the_package_loads_nothing_before_it_is_used() -> None:
    heavy = {"numpy", "pandas", "pyarrow", "rich", "click", "pyroute2", "bcc"}
    assert not heavy & loaded("import tcpkmon")


def test_other_machines_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, reason = "riscv64", "the programs are for x86_64 and"
    monkeypatch.setattr(platform, "machine", lambda: machine)
    default = Request(Filters(), "-")
    for start in (check_machine, lambda: decide(default), lambda: prepare(default),
                  lambda: next(event_cost.measure(["EVENT_START"]))):  # fmt: skip
        with pytest.raises(KernelError, match=reason) as refused:
            start()
        assert refused.value.exit_code == 4
        assert machine in refused.value.message
    asked = CliRunner().invoke(doctor.command, [], standalone_mode=False)
    assert asked.return_value == 4
    assert reason.split(",", maxsplit=1)[0] in " ".join(asked.output.split())
    assert "cannot capture here" in asked.output


@pytest.mark.parametrize("machine", ["x86_64", "amd64", "aarch64"])
def test_this_machine_is_not_refused(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    check_machine()
