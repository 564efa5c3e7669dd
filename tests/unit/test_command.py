# SPDX-License-Identifier: Apache-2.0
"""Who runs the command of a capture, whether there is one, and how it ends."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.session.command import Command, find_caller
from tcpkmon.formats.base.errors import UsageError

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcpkmon.collector.session.command._in_foreground", lambda: False)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_the_caller_is_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    nobody = pwd.getpwnam("nobody")
    found = find_caller({"SUDO_UID": str(nobody.pw_uid), "SUDO_GID": str(nobody.pw_gid)})
    assert found is not None
    assert (found.uid, found.gid, found.name) == (nobody.pw_uid, nobody.pw_gid, "nobody")
    assert nobody.pw_gid in found.groups
    changed = found.environment({"HOME": "/root", "USER": "root", "KEPT": "yes"})
    assert changed == {
        "HOME": nobody.pw_dir,
        "USER": "nobody",
        "LOGNAME": "nobody",
        "KEPT": "yes",
    }


def test_nobody_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_caller({}) is None
    assert find_caller({"SUDO_UID": "0", "SUDO_GID": "0"}) is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_caller({"SUDO_UID": "65534"}) is None


@pytest.mark.parametrize("uid", ["", "x", "-5", "4294967200", "9" * 30])
def test_a_caller_who_does_not_exist_is_not_root(uid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UsageError, match="SUDO_UID"):
        find_caller({"SUDO_UID": uid})
    with pytest.raises(UsageError, match="SUDO_GID"):
        find_caller({"SUDO_UID": "65534", "SUDO_GID": uid if uid != "4294967200" else "4294967295"})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there is no command"),
        ([""], "there is no command"),
        (["tcpkmon-no-such-command"], "tcpkmon-no-such-command: there is no such command"),
        (["/nowhere/at/all"], "there is no such command"),
        (["/"], "there is no such command"),
        (["a\0b"], "NUL"),
    ],
)
def test_commands_that_are_not_there(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Command(argv)


def test_a_file_that_cannot_be_executed(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("not a program")
    script.chmod(0o644)
    with pytest.raises(UsageError, match="not executable"):
        Command([str(script)])
    script.chmod(0o755)
    with Command([str(script)]) as command, pytest.raises(UsageError, match="format"):
        command.go()


def test_nothing_happens_before_go(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with Command(["touch", str(mark)]) as command:
        assert command.poll() is None
        assert Path(f"/proc/{command.pid}").exists()
        assert not mark.exists()
        command.go()
        assert command.wait(WAIT_S) == 0
    assert mark.exists()


def test_a_command_that_never_went_is_ended(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with Command(["touch", str(mark)]) as command:
        pid = command.pid
    assert not Path(f"/proc/{pid}").exists()
    assert not mark.exists()


def test_the_gate_ends_with_the_collector(tmp_path: Path) -> None:
    """A collector that is killed before it attached must not leave a command waiting."""
    mark = tmp_path / "mark"
    script = (
        "import os, sys; from tcpkmon.collector.session.command import Command\n"
        f"c = Command(['touch', {str(mark)!r}]); print(c.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    # Its standard output is the gate's too: the end of file says that both are gone.
    done = subprocess.run(
        python(script), check=False, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        timeout=WAIT_S,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_exit_codes(script: str, code: int) -> None:
    with Command(["sh", "-c", script]) as command:
        command.go()
        assert command.wait(WAIT_S) == code
        assert command.poll() == code


def test_signals_have_their_defaults_and_are_forwarded() -> None:
    """Also when the collector was started with them ignored, as by nohup or CI."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        with Command(["sleep", "600"]) as command:
            command.go()
            ignored = Path(f"/proc/{command.pid}/status").read_text().split("SigIgn:")[1].split()[0]
            assert int(ignored, 16) == 0
            assert command.wait(0.0) is None
            command.forward(signal.SIGINT)
            assert command.wait(WAIT_S) == 128 + signal.SIGINT
            command.forward(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_terminals_interrupt_is_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcpkmon.collector.session.command._in_foreground", lambda: True)
    with Command(["sleep", "600"]) as command:
        command.go()
        sent: list[int] = []
        monkeypatch.setattr(command._process, "send_signal", sent.append)
        command.forward(signal.SIGINT)
        assert sent == []
        command.forward(signal.SIGINT)
        command.forward(signal.SIGTERM)
        assert sent == [signal.SIGINT, signal.SIGTERM]
        monkeypatch.undo()
        command._process.kill()
        assert command.wait(WAIT_S) == 137


def test_no_descriptor_reaches_the_command(tmp_path: Path) -> None:
    out = tmp_path / "fds"
    listing = "import os; print(*sorted(os.listdir('/proc/self/fd')), file=open(3, 'w'))"
    script = f"exec 3>{out}; exec {sys.executable} -I -S -c \"{listing}\""
    with open(os.devnull) as kept:
        os.set_inheritable(kept.fileno(), True)
        with Command(["sh", "-c", script]) as command:
            command.go()
            assert command.wait(WAIT_S) == 0
    # 0, 1, 2, the file (3) and the one that lists.
    assert out.read_text().split() == ["0", "1", "2", "3", "4"]
