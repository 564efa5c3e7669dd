# SPDX-License-Identifier: Apache-2.0
"""The daemon's configuration: what it means, and that all mistakes are told with their places."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tcpkmon.collector.commands import tcpkmon
from tcpkmon.collector.daemon import config, toml_files
from tcpkmon.collector.daemon.checking import plan_of
from tcpkmon.collector.daemon.config import FILTERS, OPTIONS, OTHERS, PARTS
from tcpkmon.collector.daemon.toml_files import MOST_BYTES, MOST_TOLD
from tcpkmon.collector.daemon.toml_lines import lines_of
from tcpkmon.collector.plan.budget import Budget
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.recorder import Recorder
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import FileError, PrivilegeError, TcpkmonError
from tests.full import first

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "collector" / "daemon" / "tcpkmon.toml"


def write(folder: Path, text: str, **more: str) -> Path:
    path = folder / "tcpkmon.toml"
    path.write_text(text)
    for name, part in more.items():
        (folder / "tcpkmon.d").mkdir(exist_ok=True)
        (folder / "tcpkmon.d" / f"{name}.toml").write_text(part)
    return path


def captures(path: Path) -> dict[str, config.Capture]:
    return config.check(toml_files.read(path))


def mistakes(path: Path) -> list[str]:
    with pytest.raises(toml_files.ConfigError) as error:
        captures(path)
    return [line.replace(f"{path.parent}/", "") for line in error.value.lines()]


def test_all_mistakes_are_told_with_file_line_and_key(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '# a comment\n[capture.web]\nport = 80\nports = [\n  "http",\n  99999,\n]\n'
        'columns = """\nfull,\nfoo"""\nlow_water = 0\ndata = "yes"\n'
        '  [capture.web.rotation]\n  size = "1X"\n  evry = "1h"\n'
        '[capture]\n"a b" = {}\n[contrl]\n',
        more='[capture.web]\nfamily = 5\n[capture.other]\nschemata = ["nope"]\noutput = "here"\n',
    )
    told = mistakes(path)
    assert [line.split(": ")[:2] for line in told] == [
        ["tcpkmon.toml:3", "capture.web.port"],
        ["tcpkmon.toml:4", "capture.web.ports"],
        ["tcpkmon.toml:8", "capture.web.columns"],
        ["tcpkmon.toml:11", "capture.web.low_water"],
        ["tcpkmon.toml:12", "capture.web.data"],
        ["tcpkmon.toml:14", "capture.web.rotation.size"],
        ["tcpkmon.toml:15", "capture.web.rotation.evry"],
        ["tcpkmon.toml:17", "capture.a b"],
        ["tcpkmon.toml:18", "contrl"],
        ["tcpkmon.d/more.toml:2", "capture.web.family"],
        ["tcpkmon.d/more.toml:4", "capture.other.schemata"],
        ["tcpkmon.d/more.toml:5", "capture.other.output"],
    ]
    assert told[0].endswith("no such key (did you mean 'ports'?)")
    assert "'99999' is no port" in told[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "tcpkmon.toml:1: capture: no capture is configured: write [capture.NAME]"),
        ("capture = 3", "tcpkmon.toml:1: capture: no capture is configured: write [capture.NAME]"),
        ("\ncapture.web = 3", "tcpkmon.toml:2: capture.web: 3 is no table: write [capture.web]"),
        ("[a", "tcpkmon.toml: not TOML: Expected ']' at the end of a table declaration"),
        ("[capture.web]\ndata = true", "tcpkmon.toml:1: capture.web: --data is for schemata"),
        ("[capture.web]\nformat = 'pcs'", "tcpkmon.toml:2: capture.web.format: 'pcs' is none of"),
        ("[capture.web]\nlimits = { SYN = 1 }", "tcpkmon.toml:2: capture.web.limits: "),
        ("[capture.web]\nschemata = [['tcp']]", "tcpkmon.toml:2: capture.web.schemata: "),
        ("[metrics]\nlisten = '0.0.0.0:1'\n[capture.a]", "tcpkmon.toml:2: metrics.listen: "),
        ("[control]\ngroup = 'no-such'\n[capture.a]", "tcpkmon.toml:2: control.group: "),
        (
            "[capture.a]\noutput='/x'\n[capture.b]\noutput='/x'",
            "tcpkmon.toml:4: capture.b.output: /x is that of capture a too",
        ),
        (
            "[capture.a]\noutput='/x'\n[capture.b]\noutput='/y/../x/'",
            "tcpkmon.toml:4: capture.b.output: /y/../x/ is that of capture a too",
        ),
    ],
)
def test_a_mistake(tmp_path: Path, text: str, told: str) -> None:
    (line,) = mistakes(write(tmp_path, text))
    assert told in line


def test_a_capture_without_keys_is_that_of_collect(tmp_path: Path) -> None:
    (made,) = captures(write(tmp_path, "[capture.web]")).values()
    assert made.request == Request(
        Filters(), output="/var/lib/tcpkmon/web", name="web", quiet=True
    )


def test_what_requests_need_is_one_key(tmp_path: Path) -> None:
    (web,) = captures(write(tmp_path, "[capture.web]\nrequests = true\n")).values()
    assert web.request.locations == "default,SEND_CALL,RECEIVE_CALL"
    assert web.request.columns == "default,pid,comm,netns,seg_ack"


def test_a_flight_recorder(tmp_path: Path) -> None:
    text = "[capture.a.recorder]\nlast = {}\non = ['rto', 'retrans_out > 3']\n"
    found = {
        last: next(iter(captures(write(tmp_path, text.format(last))).values())).request.recorder
        for last in ("'10s'", "'64M'", "['1m', '64M']")
    }
    triggers = ("rto", "retrans_out > 3")
    assert found == {
        "'10s'": Recorder(10.0, triggers=triggers),
        "'64M'": Recorder(None, 64 << 20, triggers=triggers),
        "['1m', '64M']": Recorder(60.0, 64 << 20, triggers=triggers),
    }
    (line,) = mistakes(write(tmp_path, text.format("'10x'")))
    assert line.startswith("tcpkmon.toml:2: capture.a.recorder.last: not a size: '10x'")


def test_later_files_replace_single_keys(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[capture.web]\nports = 80\nbuffer_size = '1M'\n[capture.web.rotation]\nsize = '1M'\n",
        a="[capture.web]\nports = [443, '5000-5001']\n",
        b="[capture.web.rotation]\nevery = '1h'\n[capture.two]\nschemata = 'sched'\n",
    )
    web, two = captures(path).values()
    assert web.request.filters.ports == (443, 5000, 5001)
    assert web.request.buffer_bytes == 1 << 20
    assert web.request.rotation == Rotation(size_bytes=1 << 20, every_s=3600.0)
    assert two.request.file_format == "klogger"


def check(path: Path) -> int:
    return run(tcpkmon.command, ["daemon", "--check", "--config", str(path)], "tcpkmon")


def test_the_example_has_every_key_and_each_is_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = EXAMPLE.read_text()
    path = write(tmp_path, re.sub(r"^#(?=\w+ = |\[)", "", text, flags=re.MULTILINE))
    table = toml_files.read(path).table
    capture = table["capture"]["tcp"]
    assert set(capture) == {*OPTIONS, *FILTERS, *PARTS}
    for name, keys in PARTS.items():
        assert set(capture[name]) == set(keys)
    for name, keys in OTHERS.items():
        assert set(table[name]) == set(keys)
    wrong = {"using", "data", "limits", "syscalls", "netns", "cgroup", "group"}
    """These need another schema, or what this machine may not have."""
    found = {line.split(": ")[1].rpartition(".")[2] for line in mistakes(path)}
    assert found - wrong <= {"tcp", "rotation"}, "there is no such command to run on rotate"
    assert check(EXAMPLE) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: 1 capture: tcp\n"


def test_check_tells_the_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "[capture.web]\nport = 1\nlow_water = 0\n")
    assert check(path) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in told] == [f"{path}:2", f"{path}:3"]


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[capture.web]")
    path.chmod(0o666)
    with pytest.raises(PrivilegeError, match="may be written by others than root, and what it"):
        toml_files.read(path)


def test_a_budget(tmp_path: Path) -> None:
    text = "[capture.web]\n[capture.web.budget]\nmax_cpu = '5%'\nmax_memory = '512M'\n"
    web = captures(write(tmp_path, text))["web"]
    assert web.request.budget == Budget(0.05, None, 512 << 20)
    wrong = text.replace("'5%'", "5").replace("512M", "much")
    assert [line.partition(": ")[2] for line in mistakes(write(tmp_path, wrong))] == [
        "capture.web.budget.max_cpu: not a share of a CPU: '5'; write 5%; 100% is one CPU",
        "capture.web.budget.max_memory: not a size: 'much'; write 512K, 100M or 2G",
    ]
    (none,) = mistakes(write(tmp_path, "[capture.web.budget]\n"))
    assert "capture.web.budget: a budget without a limit" in none
    logs = text.replace("]\n", "]\nschemata = ['sched']\n", 1)
    logs = logs.replace("]\n", "]\nformat = 'klogger'\n", 1)
    assert captures(write(tmp_path, logs))["web"].request.budget is not None
    nothing = logs.replace("sched", "tty")
    assert "a budget needs events that it may leave out" in mistakes(write(tmp_path, nothing))[0]


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
