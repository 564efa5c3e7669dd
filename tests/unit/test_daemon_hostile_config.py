# SPDX-License-Identifier: Apache-2.0
"""A configuration of any content is refused in words, in little time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tcpkmon.collector.daemon import config
from tcpkmon.collector.daemon.checking import plan_of
from tcpkmon.collector.daemon.toml_files import MOST_BYTES, MOST_TOLD
from tcpkmon.collector.daemon.toml_lines import lines_of
from tcpkmon.formats.base.errors import FileError, TcpkmonError
from tests.full import first

CAPTURE = "[capture.a]\n"
ROTATION, RECORDER = f"{CAPTURE}[capture.a.rotation]\n", f"{CAPTURE}[capture.a.recorder]\n"
LONG = "9" * 400
MOST_CPU_S = 10.0
"""Each takes 3 s at most here; those that hung took minutes."""
WRONG = {
    "number of 400 digits": f"{CAPTURE}low_water = {LONG}",
    "number of 5,000 digits": CAPTURE + "low_water = " + "9" * 5000,
    "hexadecimal number of 5,000 digits": CAPTURE + "low_water = 0x" + "f" * 5000,
    "size of 400 digits": f'{ROTATION}size = "{LONG}"',
    "size of a number of 400 digits": f"{ROTATION}size = {LONG}",
    "duration of 400 digits": f'{ROTATION}every = "{LONG}h"',
    "window of 400 digits": f'{RECORDER}last = "{LONG}"',
    "limit of 5,000 digits": CAPTURE + 'limits = ["RTO=' + "9" * 5000 + '"]',
    "no number": f"{ROTATION}size = nan",
    "infinity": f"{ROTATION}every = inf",
    "date": f"{CAPTURE}output = 1979-05-27",
    "NUL in a path": f'{CAPTURE}output = "/a\\u0000b"',
    "NUL in a namespace": f'{CAPTURE}netns = ["a\\u0000b"]',
    "NUL in a cgroup": f'{CAPTURE}cgroup = ["a\\u0000b"]',
    "NUL in a schema": f'{CAPTURE}schemata = ["/a\\u0000b"]',
    "NUL in a service": f'{CAPTURE}ports = ["a\\u0000b"]',
    "NUL in a key": '[capture."a\\u0000b"]',
    "NUL in a command": f'{ROTATION}size = "1M"\non_rotate = ["a\\u0000b"]',
    "name of a cgroup that is too long": CAPTURE + 'cgroup = ["' + "x" * 5000 + '"]',
    "address that is too long": CAPTURE + '[metrics]\nlisten = "unix:/' + "x" * 200 + '"',
}
SLOW = {
    "50,000 tables": "".join(f"[capture.c{n}]\n" for n in range(50_000)),
    "200 captures with a mistake": "".join(
        f'[capture.c{n}]\nprots = [80]\nports = [81]\nlocations = ["RTO"]\n' for n in range(200)
    ),
    "90,000 unknown keys": CAPTURE + "".join(f"k{n} = 1\n" for n in range(90_000)),
    "key of 500,000 parts": CAPTURE + "a." * 500_000 + "a = 1",
    "table of 500,000 parts": "[" + "a." * 500_000 + "a]",
    "arrays in arrays": CAPTURE + "x = " + "[" * 500_000,
    "115,000 ranges of ports": CAPTURE + 'x = 1\nports = "' + "1-65535," * 115_000 + '1"',
    "200,000 services": CAPTURE + 'x = 1\nports = "' + "ssh," * 200_000 + '1"',
    "a schema 150,000 times": CAPTURE + "x = 1\nschemata = [" + '"tcp",' * 150_000 + "]",
    "100,000 processes": CAPTURE + "pid = [" + ",".join(map(str, range(1, 100_000))) + "]",
    "a string that is not closed": CAPTURE + 'x = "' + '\\"' * 500_000,
}  # fmt: skip


def told(folder: Path, text: str) -> list[str]:
    path = folder / "tcpkmon.toml"
    path.write_text(text)
    with pytest.raises(TcpkmonError) as error:
        json.dumps(plan_of(path))
    return [line.replace(f"{folder}/", "") for line in error.value.lines()]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_told(name: str, tmp_path: Path) -> None:
    for line in told(tmp_path, WRONG[name]):
        assert line.startswith("tcpkmon.toml:") and len(line) < 500, line


@pytest.mark.parametrize("name", first(3, SLOW))
def test_no_configuration_takes_long(name: str, tmp_path: Path) -> None:
    assert len(SLOW[name]) <= MOST_BYTES
    began_s = time.process_time()
    lines = told(tmp_path, SLOW[name])
    assert time.process_time() - began_s < MOST_CPU_S
    assert len(lines) <= MOST_TOLD + 1
    if len(lines) > MOST_TOLD:
        assert lines[-1] == "there may be more mistakes"


def test_as_many_captures_as_there_may_be(tmp_path: Path) -> None:
    path = tmp_path / "tcpkmon.toml"
    path.write_text("".join(f"[capture.c{n}]\n" for n in range(config.MOST_CAPTURES)))
    began_s = time.process_time()
    assert len(plan_of(path)["captures"]) == config.MOST_CAPTURES
    assert time.process_time() - began_s < MOST_CPU_S
    (line,) = told(tmp_path, path.read_text() + "[capture.more]\n")
    assert line == "tcpkmon.toml:1: capture: 257 captures: at most 256 run"


def test_all_files_together_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "tcpkmon.toml"
    path.write_text(CAPTURE + "#" * (MOST_BYTES // 2))
    (tmp_path / "tcpkmon.d").mkdir()
    (tmp_path / "tcpkmon.d" / "a.toml").write_text("#" * (MOST_BYTES // 2))
    with pytest.raises(FileError, match="at most 1 MiB"):
        plan_of(path)


def test_the_line_of_each_key() -> None:
    text = (
        "# [x]\n[a.b]  # c\nd = 1\n'e.f'.g = '''\nh = 1\n'''\ni = [\n  '[', # ]\n]\n\n"
        'j = { k = "}", l.m = """\n\\"""" }\n[[n]]\no = 1\n[a.p]\n"q" = \'\'\n'
    )
    assert lines_of(text) == {
        ("a",): 2, ("a", "b"): 2, ("a", "b", "d"): 3,
        ("a", "b", "e.f"): 4, ("a", "b", "e.f", "g"): 4, ("a", "b", "i"): 7,
        ("a", "b", "j"): 11, ("a", "b", "j", "k"): 11, ("a", "b", "j", "l"): 11,
        ("a", "b", "j", "l", "m"): 11, ("n",): 13, ("n", "o"): 14,
        ("a", "p"): 15, ("a", "p", "q"): 16,
    }  # fmt: skip
