# SPDX-License-Identifier: Apache-2.0
"""Who asks for what was removed is answered, in one line, by what serves instead."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.daemon.config import check
from tcpkmon.collector.daemon.toml_files import ConfigError, read
from tcpkmon.formats.base.removed import REMOVED

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("removed", [one for one in REMOVED if " " in one and one[0] != "["])
def test_the_command_line_answers(removed: str) -> None:
    words = removed.split()
    if words[-1].startswith("-"):
        words.append("X")
    done = subprocess.run([BIN / words[0], *words[1:]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    command = re.split(r" (?=-)", removed)[0] if " -" in removed else removed.rpartition(" ")[0]
    what = removed.removeprefix(f"{command} ")
    assert line == f"{command}: {what} was removed: {REMOVED[removed]}"


@pytest.mark.parametrize("removed", [one for one in REMOVED if one[0] == "["])
def test_the_configuration_answers(removed: str, tmp_path: Path) -> None:
    match = re.fullmatch(r"\[([\w.]+)\](?: ([\w.]+))?(?: = (.+))?", removed)
    assert match is not None
    table, key, value = match.groups()
    table = "capture.tcp" if table == "capture" else table
    statement = f'{key} = "{value or "X"}"\n' if key else ""
    config = tmp_path / "tcpkmon.toml"
    config.write_text(f"[capture.other]\n[{table}]\n{statement}", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        check(read(config))
    (line,) = caught.value.lines()
    what = repr(value) if value else "it"
    name = ".".join(filter(None, (table, key)))
    assert line == f"{config}:{2 + bool(key)}: {name}: {what} was removed: {REMOVED[removed]}"


@pytest.mark.parametrize("removed", [one for one in REMOVED if " " not in one])
def test_python_answers(removed: str) -> None:
    package, _, name = removed.rpartition(".")
    code = f"from {package} import {name}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {removed} was removed: {REMOVED[removed]}"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--interval", "0", "--textfile", "otlp"],
        ["--interval", "0", "otlp"],
    ],
)
def test_other_mistakes_are_answered_as_before(words: list[str]) -> None:
    done = subprocess.run(
        [BIN / "tcpkmon", "metrics", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "was removed" not in done.stderr
