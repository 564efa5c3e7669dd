# SPDX-License-Identifier: Apache-2.0
"""Root runs every command in a folder where anybody wrote modules: none of them is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full import first
from tests.live.capturing import ROOT
from tests.live.daemons import Daemon
from tests.live.faults import BIN, WAIT_S, environment, wait_until

NAMES = (
    "bcc", "click", "collector", "elftools", "ensurepip", "formats", "grp", "json",
    "matplotlib", "matplotlibrc", "numpy", "pip", "plotext", "prometheus_client", "pyarrow",
    "pyroute2", "random", "re", "rich", "scipy", "scripts", "sitecustomize", "socket",
    "subprocess", "tempfile", "tests", "tomli", "tomllib", "typing", "usercustomize", "venv",
)  # fmt: skip
"""Of modules that a file in the folder would stand for."""
CONFIG = """
[capture.web]
ports = [{port}]
output = "@/web"
rotation = {{ size = "1M" }}
[metrics]
listen = "unix:@/metrics.sock"
"""
KLOGGER = """
from tcpkmon.collector import capturing
capturing.start('sched', 'api', duration_s=0.2, force=True).wait()
"""


@pytest.fixture(scope="module")
def hostile() -> Iterator[Path]:
    """The folder, of mode 1777, and in it `home`, of a user whose Python has modules too."""
    with tempfile.TemporaryDirectory(prefix="tcpkmon-test-", dir="/tmp") as made:
        folder = Path(made, "place")
        (folder / "marks").mkdir(parents=True)
        os.chmod(made, 0o755)
        minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = folder / "home" / ".local/lib" / minor / "site-packages"
        own.mkdir(parents=True)
        for place in (folder, own):
            for name in NAMES:
                mark = f"open({str(folder / 'marks' / name)!r}, 'w')\n"
                (place / f"{name}.py").write_text(mark)
            (place / "evil.pth").write_text(f"import os; {mark}")
        (folder / "matplotlibrc").write_text("backend: module://matplotlibrc\nlines.linewidth: x\n")
        (folder / "tcpkmon.toml").write_text("[")
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 65534, 65534)
        for path in (folder, folder / "marks"):
            os.chmod(path, 0o1777)
        subprocess.run(
            [BIN / "collect", "-q", "-o", folder / "run.pm", "--duration", "300ms"], cwd="/",
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        yield folder


def hostile_environment(folder: Path) -> dict[str, str]:
    """As of `sudo -E` in the shell of a user whose variables name such folders."""
    home = folder / "home"
    return environment(
        HOME=str(home), PYTHONPATH=f":.:{folder}", PYTHONUSERBASE=str(home / ".local"),
        PYTHONSTARTUP=str(folder / "re.py"),
    )  # fmt: skip


def run(folder: Path, words: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(
        words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, timeout=WAIT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stdout, done.stdout
    assert done.returncode in (0, 1, 2, 3), (words, done.stdout)  # such as "no collector runs"
    assert "--help'" not in done.stdout, done.stdout
    return done.stdout


def check_marks(folder: Path) -> None:
    """None, for good."""
    found = sorted(path.name for path in (folder / "marks").iterdir())
    for name in found:
        (folder / "marks" / name).unlink()
    assert not found, f"root imported {', '.join(found)}"


SLOW = (
    "collect --duration 300ms -o new.pm --force --why -- true",
    "collect --duration 300ms -o log --force --latency",
    "pmgraph run.pm -c -o p.png --force", "tcpkmon demo --seconds 1 --output demo",
    "tcpkmon selftest",
)  # fmt: skip
WORDS = first(9, (
    "collect --duration 300ms -o folder --rotate-size 1M --archive zst --force",
    "tcpkmon doctor", "tcpkmon verify run.pm", "tcpkmon decode log", "tcpkmon why run.pm",
    "tcpkmon export run.pm -o run.parquet --force", "tcpkmon schema show tcp", "tcpkmon reload",
    "tcpkmon metrics --once --textfile out.prom", *SLOW,
    "pmgraph run.pm -o picture.png --force", "tcpkmon events", "tcpkmon columns",
    "tcpkmon connections run.pm", "tcpkmon check run.pm count()>=0", "tcpkmon metrics --once",
    "tcpkmon status", "tcpkmon top", "tcpkmon mark 1", "tcpkmon triggers", "tcpkmon enable",
))  # fmt: skip


@pytest.mark.parametrize("line", WORDS)
def test_a_command(hostile: Path, line: str) -> None:
    name, *words = line.split()
    run(hostile, [str(BIN / name), *words], environment())
    check_marks(hostile)


def test_a_command_with_a_users_variables(hostile: Path) -> None:
    """The commands of scripts/setup, and of the Debian package, are isolated."""
    for name in ("collect", "pmgraph", "tcpkmon"):
        run(hostile, [str(BIN / name), "--help"], hostile_environment(hostile))
    check_marks(hostile)


@pytest.mark.parametrize("script", [
    "setup", "demo", "vmtest", "kernels", "test", "package",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("bench", "fuzz")),
])  # fmt: skip
def test_a_script(hostile: Path, script: str) -> None:
    words = ["--tests"] if script == "setup" else ["--help"]
    run(hostile, [str(ROOT / "scripts" / script), *words], environment())
    check_marks(hostile)


def test_the_daemon_and_its_children(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads its configuration, captures, serves metrics, and repairs what a killed one left."""
    monkeypatch.chdir(hostile)
    with Daemon(tmp_path) as daemon:
        daemon.configure(CONFIG.format(port=4711))
        daemon.start()
        wait_until((tmp_path / "metrics.sock").exists, "metrics are served")
        daemon.configure(CONFIG.format(port=4712))
        assert daemon.command("reload").code == 0
        daemon.kill()
        for fd in daemon.stored.values():
            os.close(fd)
        daemon.stored.clear()
        daemon.start()
        daemon.says("of a capture that was killed")
        daemon.finish()
    check_marks(hostile)


def test_a_capture_of_the_python_interface(hostile: Path) -> None:
    """Its process imports nothing from there, though this one has the folder in its path."""
    path = f"import sys; sys.path.append(''); sys.path.insert(0, {str(ROOT)!r})\n"
    run(hostile, [sys.executable, "-I", "-c", path + KLOGGER], environment())
    check_marks(hostile)
