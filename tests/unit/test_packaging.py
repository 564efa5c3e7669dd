# SPDX-License-Identifier: Apache-2.0
"""What is installed: the package's description, its scripts, the licences."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SCRIPTS = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix]
SCRIPTS.append(ROOT / ".ci" / "run")


def section(name: str) -> str:
    """The text of one [section]; there is no tomllib on Python 3.10."""
    return PYPROJECT.partition(f"\n[{name}]\n")[2].partition("\n[")[0]


def test_commands_are_functions_that_exist() -> None:
    entries = dict(re.findall(r'^(\w+) = "([\w.:]+)"', section("project.scripts"), re.MULTILINE))
    assert set(entries) == {"collect", "pmgraph", "tcpkmon"}
    for target in entries.values():
        module, _, function = target.partition(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        assert re.search(rf"^def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_bpf_sources_are_package_data() -> None:
    assert '"tcpkmon*"' in section("tool.setuptools.packages.find")
    assert (ROOT / "tcpkmon" / "bpf").samefile(ROOT / "bpf")
    data = section("tool.setuptools.package-data")
    suffixes = {path.suffix for path in (ROOT / "bpf").rglob("*") if path.is_file()} - {".md"}
    for suffix in suffixes:
        assert f'"*{suffix}"' in data, f"*{suffix} of bpf/ would not be installed"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_can_be_run(script: Path) -> None:
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    if text.startswith("#!/usr/bin/python3\n"):  # the system's: it has no need of the .venv
        compile(text, str(script), "exec")
        return
    assert text.startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize("name", ["setup", "test"])
def test_scripts_refuse_what_they_do_not_know(name: str) -> None:
    script = str(ROOT / "scripts" / name)
    done = subprocess.run(
        ["bash", script, "--nonsense"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    shown = subprocess.run(["bash", script, "--help"], capture_output=True, text=True, check=True)
    assert f"scripts/{name}" in shown.stdout


def test_ci_tests_a_copy_that_others_cannot_reach(tmp_path: Path) -> None:
    """It is gone when the run ends, also by a signal."""
    tree = tmp_path / "tree"
    for name in (".ci", "scripts", ".venv"):
        (tree / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", tree / ".ci")
    for end in ("exit 1", "kill -INT 0", "kill -TERM 0", "kill -TERM $PPID"):
        (tree / "scripts/test").write_text(f"stat -c %a ..; ls -A; {end}")
        done = subprocess.run([tree / ".ci/run"], stdout=subprocess.PIPE, text=True,
                              check=False, start_new_session=True)  # fmt: skip
        assert done.stdout.split() == ["700", ".ci", "scripts"] and done.returncode
        assert [*tmp_path.iterdir()] == [tree]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with the set-up script and the description, and an environment made by it."""
    (tmp_path / "scripts").mkdir()
    for name in ("setup", "owner.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    lines = tmp_path / "formats" / "lines"
    shutil.copytree(ROOT / "formats" / "lines", lines, ignore=shutil.ignore_patterns("*.so"))
    (lines / "_lines.so").touch()
    (tmp_path / "collector" / "ring").mkdir(parents=True)
    (tmp_path / "collector" / "ring" / "_drain.so").touch()
    # Not a real environment: one whose python says what pip was asked for.
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    python = folder / "python"
    python.write_text('#!/bin/bash\necho "$*" >>"$(dirname "$0")/../../asked"\n')
    python.chmod(0o755)
    for name in ("collect", "pmgraph", "tcpkmon"):
        (folder / name).write_text(f"#!{python}\n")
    return tmp_path


def set_up(clone: Path, *arguments: str, **environment: str) -> list[str]:
    """Runs scripts/setup without HOME or TERM, all input closed; what pip was asked to install."""
    asked = clone / "asked"
    asked.unlink(missing_ok=True)
    subprocess.run(
        ["bash", str(clone / "scripts" / "setup"), *arguments],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], **environment},
    )
    text = asked.read_text() if asked.exists() else ""
    return [line for line in text.splitlines() if "install" in line]


def test_setup_installs_once(clone: Path) -> None:
    assert [line.split()[-1] for line in set_up(clone)] == [".[plot,export,fleet,anonymise,pytest]"]
    assert set_up(clone) == []


def test_setup_compiles_what_was_changed(clone: Path) -> None:
    set_up(clone)
    with (clone / "formats" / "lines" / "numbers.h").open("a") as source:
        source.write("// changed\n")
    assert len(set_up(clone)) == 1
    assert set_up(clone) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_sudo_sets_up_belongs_to_the_caller(clone: Path, tmp_path_factory: Any) -> None:
    """Also after a set-up that left root's files; no link leads root out of the clone."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").touch()
    for folder in (clone, *clone.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    for path in (clone, *clone.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (clone / ".venv/.tcpkmon-setup").symlink_to(outside / "made")
    (clone / "link.egg-info").symlink_to(outside)
    for folder in ("tcpkmon.egg-info", "formats/__pycache__", "build"):
        (clone / folder).mkdir()
        (clone / folder / "root's").touch()
    sudo = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}
    assert len(set_up(clone, **sudo)) == 1
    owners = {path.lstat().st_uid for path in clone.rglob("*")}
    assert owners == {NOBODY}
    assert [*outside.iterdir()] == [outside / "kept"]
    assert set_up(clone, **sudo) == []
