# SPDX-License-Identifier: Apache-2.0
"""The command of `collect -- COMMAND`: as another user, in another namespace, with sudo's marks."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.session.command import Command, Identity, find_caller
from tcpkmon.formats.base.errors import UsageError
from tests.live.faults import COLLECT, run

WAIT_S = 60.0


@pytest.fixture
def nobody() -> Identity:
    entry = pwd.getpwnam("nobody")
    found = find_caller({"SUDO_UID": str(entry.pw_uid), "SUDO_GID": str(entry.pw_gid)})
    assert found is not None
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.touch()
    return path


def output_of(argv: list[str], out: Path, **options: object) -> list[str]:
    """Runs a command; what it wrote to the descriptor that its shell opened for it as root."""
    before = os.dup(1)
    try:
        with out.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            with Command(argv, **options) as command:  # type: ignore[arg-type]  # passed through
                command.go()
                assert command.wait(WAIT_S) == 0
    finally:
        os.dup2(before, 1)
        os.close(before)
    return out.read_text().splitlines()


def test_the_command_is_the_callers(out: Path, nobody: Identity) -> None:
    script = "grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/self/status; echo $HOME $USER"
    told = output_of(["sh", "-c", script], out, identity=nobody)
    values = dict(line.split(":\t", 1) for line in told[:-1])
    assert values["Uid"].split() == [str(nobody.uid)] * 4
    assert values["Gid"].split() == [str(nobody.gid)] * 4
    assert values["Groups"].split() == [str(group) for group in nobody.groups]
    assert int(values["CapEff"], 16) == int(values["CapPrm"], 16) == 0
    assert told[-1] == f"{nobody.home} nobody"


def test_it_has_the_callers_limits(tmp_path: Path) -> None:
    """The collector raises its own."""
    script = "ulimit -Sn; ulimit -Hn; ulimit -Sl; ulimit -Hl"
    for caller in (["ulimit", "-n", "3000"], ["ulimit", "-Sn", "300"], ["ulimit", "-l", "64"]):
        command = [*caller, ";", "exec", COLLECT, "-q", "--ports", "1", "-o", str(tmp_path / "x")]
        words = [*command, "--force", "--", "sh", "-c", f"'{script}'"]
        done = run(["sh", "-c", " ".join(words)])
        assert done.code == 0, done.stderr
        wanted = run(["sh", "-c", " ".join([*caller, ";", script])])
        assert done.stdout == wanted.stdout, caller


def test_what_the_caller_may_not_run_is_not_there(tmp_path: Path, nobody: Identity) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o700)
    with Command([str(script)]):
        pass
    with pytest.raises(UsageError):
        Command([str(script)], nobody)


def test_it_runs_in_the_namespace(out: Path, lab: Lab, nobody: Identity) -> None:
    told = output_of(
        ["readlink", "/proc/self/ns/net"], out, identity=nobody, netns_fd=lab.b.namespace.fd
    )
    assert told == [f"net:[{lab.b.namespace.inode}]"]
    assert os.stat("/proc/thread-self/ns/net").st_ino != lab.b.namespace.inode


def test_a_signal_reaches_another_users_command(nobody: Identity) -> None:
    with Command(["sleep", "600"], nobody) as command:
        command.go()
        assert Path(f"/proc/{command.pid}").stat().st_uid == nobody.uid
        command.forward(15)
        assert command.wait(WAIT_S) == 143
