# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md does what it says: its files and commands in order, and the output it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*")


def shown(line: str) -> re.Pattern[str]:
    """A line of the page as output may have it: numbers differ, white space may."""
    words = [
        r"[\d,]+".join(re.escape(text) for text in NUMBER.split(word)) for word in line.split()
    ]
    return re.compile(r"\s*" + r"\s+".join(words) + r"\s*")


def check_output(expected: str, output: str) -> None:
    """Each line of the page stands in the output, in this order."""
    lines = iter(output.splitlines())
    for line in expected.splitlines():
        pattern = shown(line)
        assert any(pattern.fullmatch(found) for found in lines), f"{line!r} not in:\n{output}"


@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no perl")
def test_the_tutorial(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    # The commands as they are installed, but of this tree and with this Python.
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("collect", "collect"), ("tcpkmon", "tcpkmon")):
        script = f'exec {sys.executable} -c "{{}}" "$@"\n'.format(
            f"import sys; sys.path.insert(0, '{ROOT}'); sys.argv[0] = '{name}';"
            f" from tcpkmon.collector.commands.{module} import main; main()"
        )
        (commands / name).write_text(f"#!/bin/sh\n{script}")
        (commands / name).chmod(0o755)
    here = tmp_path / "klogger"
    here.mkdir(0o755)
    here.chmod(0o755)
    output, outputs = "", []
    blocks = BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))
    assert len(blocks) > 12
    for language, name, text in blocks:
        if name:
            path = here / name
            path.parent.mkdir(exist_ok=True)
            path.parent.chmod(0o755)
            path.write_text(text)
            path.chmod(0o644)
        elif language == "sh":
            done = subprocess.run(
                ["bash", "-e", "-c", text],
                cwd=here,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={"PATH": f"{commands}:{os.environ['PATH']}", "LC_ALL": "C"},
            )
            output = done.stdout
            outputs.append(output)
            assert done.returncode == 0, f"{text}\n{output}"
        else:
            assert language == "text", f"{language} block without a file's name"
            check_output(text, output)
    # The program's own count against the one that the log gives.
    told = re.search(r"^(\d+) had (\d+) page faults$", "".join(outputs), re.MULTILINE)
    assert told is not None
    table = dict(line.split() for line in output.splitlines())
    counted, faults = int(table[told[1]]), int(told[2])
    # The log has those of perl's own beginning and end, too.
    assert 2000 <= faults <= counted <= faults + 1500
