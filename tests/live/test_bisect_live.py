# SPDX-License-Identifier: Apache-2.0
"""tcpkmon bisect in real namespaces: settings that matter and that do not, broken plans, git."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.linux.netns import NAMED
from tests.full import first

TCPKMON = Path(sys.executable).parent / "tcpkmon"
SYSCTLS = Path("/proc/sys/net/ipv4")
SERVE = """
import socket
listener = socket.create_server(("", 5201))
while True:
    end, _ = listener.accept()
    while end.recv(1 << 16):
        pass
    end.close()
"""
SEND = """
import os, socket, sys
end = socket.create_connection((os.environ["TCPKMON_PEER"], 5201))
end.sendall(bytes(int(sys.argv[1])))
end.shutdown(socket.SHUT_WR)
end.recv(1)
"""


@pytest.fixture
def scenario(tmp_path: Path) -> tuple[list[str], list[str]]:
    """The options, and the command: it sends a megabyte to a server that is 20 ms away."""
    for name, text in (("serve.py", SERVE), ("send.py", SEND)):
        (tmp_path / name).write_text(text)
    options = ["--metrics", "duration_us", "--alpha", "0.05", "--peer",
               f"{sys.executable} {tmp_path / 'serve.py'}", "--path", "delay_ms=10"]  # fmt: skip
    return options, [sys.executable, str(tmp_path / "send.py"), "1000000"]


def bisect(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TCPKMON, "bisect", *map(str, words)], capture_output=True, text=True,
                          check=False, timeout=900, **options)  # fmt: skip


def host() -> dict[str, str]:
    """The machine's own settings."""
    found = {}
    for path in SYSCTLS.glob("tcp_*"):
        if "key" not in path.name:
            found[path.name] = path.read_text()
    return found


@pytest.mark.full
def test_a_setting_that_matters_is_named(
    scenario: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """Without window scaling 64 kB are under way at most: 16 round trips where 6 or 7 do."""
    options, command = scenario
    before, spaces = host(), set(os.listdir(NAMED)) if NAMED.exists() else set()
    done = bisect("--over", "sysctl", "net.ipv4.tcp_window_scaling=1,0", "--runs", 5, "--json",
                  "-o", tmp_path / "kept", *options, "--", *command)  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (one,) = found["changed"]
    assert one["metric"] == "duration_us" and one["worse"] and one["change"] > 0.3
    assert one["interval"][0] > 0 and found["sides"][1] == "net.ipv4.tcp_window_scaling=0"
    assert any(line.startswith("rcv_wnd_max") or line.startswith("snd_wnd_max")
               for line in found["apart"])  # fmt: skip
    assert "shows" in done.stderr or "show" in done.stderr
    assert host() == before
    mine = {name for name in set(os.listdir(NAMED)) - spaces if f"-{os.getpid()}-" in name}
    assert not mine
    captures = sorted((tmp_path / "kept").rglob("*.pm"))
    assert len(captures) == 2 * found["runs"][0]
    # The files say what was set: tcpkmon diff reads them.
    folders = sorted((tmp_path / "kept").iterdir())
    told = subprocess.run([TCPKMON, "diff", *folders, "--json"], capture_output=True, text=True,
                          check=True)  # fmt: skip
    settings = {row["name"]: (row["a"], row["b"]) for row in json.loads(told.stdout)["settings"]}
    assert settings["net.ipv4.tcp_window_scaling"] == (["1"], ["0"])


@pytest.mark.parametrize(
    ("setting", "command", "code", "text"),
    first(4, [
        ("net.ipv4.tcp_sack=1,1", ["true"], 2, "no run can tell them apart"),
        ("net.ipv4.tcp_ecn=0,nonsense", ["true"], 2, "does not take"),
        ("net.ipv4.tcp_sack=0,1", ["true"], 2, "makes no connection"),
        ("net.ipv4.tcp_sack=0,1", ["echo hello; exit 7"], 1, "ended with 7: hello"),
        ("net.ipv4.tcp_mem=1 2 3;4 5 6", ["true"], 2, "the whole machine's"),
        ("net.ipv4.tcp_nonsense=0,1", ["true"], 2, "no sysctl"),
        ("net.ipv4.tcp_congestion_control=reno,nonsense", ["true"], 4, "no nonsense"),
        ("kernel.pid_max=1000,2000", ["true"], 2, "no sysctl of a network namespace"),
        ("net.ipv4.tcp_sack=0,1", ["/nowhere/command"], 2, "cannot be run"),
    ]),
)
def test_a_plan_that_tells_nothing_says_so(
    setting: str, command: list[str], code: int, text: str
) -> None:
    before = host()
    done = bisect("--over", "sysctl", setting, "--", *command)
    assert done.returncode == code and text in done.stderr, done.stderr
    assert host() == before


def test_a_command_that_hangs_is_ended() -> None:
    done = bisect("--over", "sysctl", "net.ipv4.tcp_sack=0,1", "--timeout", 1, "--", "sleep", 100)
    assert done.returncode == 1 and "--timeout" in done.stderr


@pytest.mark.full
@pytest.mark.timeout(1000)
def test_a_setting_that_does_nothing_makes_no_difference(
    scenario: tuple[list[str], list[str]],
) -> None:
    options, command = scenario
    options = [*options[:-1], "delay_ms=20,rate_mbit=10"]  # a second: it scatters little
    done = bisect("--over", "sysctl", "net.ipv4.tcp_keepalive_time=7200,7300", "--runs", 16,
                  *options, "--", *command)  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "no difference of 5 % or more: duration_us" in done.stdout


@pytest.mark.full
@pytest.mark.timeout(1000)
def test_git_bisect_run_finds_the_commit(
    scenario: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """Nine commits; the sixth sends four times as much, at 40 Mbit/s."""
    options, command = scenario
    options = [*options[:-1], "delay_ms=10,rate_mbit=40", "--least", "50"]
    tree = tmp_path / "tree"
    tree.mkdir()

    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *identity, *words], cwd=tree, check=True,
                              capture_output=True, text=True).stdout  # fmt: skip

    git("init", "-q")
    for number in range(9):
        size = 500_000 if number < 5 else 2_000_000
        words = " ".join([*command[:-1], str(size)])
        (tree / "run.sh").write_text(f"# {number}\nexec {words}\n")
        git("add", "run.sh")
        git("commit", "-qm", f"commit {number}")
    git("checkout", "-q", "HEAD~8")
    step = [str(TCPKMON), "bisect", "--step", *options]
    good = tmp_path / "good"
    done = subprocess.run([*step, "--runs", "8", "-o", good, "--", "sh", "run.sh"], cwd=tree,
                          check=False, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0 and "--baseline" in done.stderr, done.stderr
    git("bisect", "start", "master" if "master" in git("branch") else "main", "HEAD")
    out = git("bisect", "run", *step, "--runs", "6", "--baseline", str(good), "--", "sh", "run.sh")
    print(out)
    assert "commit 5" in out and "is the first bad commit" in out
