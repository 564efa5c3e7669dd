# SPDX-License-Identifier: Apache-2.0
"""The command line of collect: a refusal is one line and leaves no file; outputs, commands."""

from __future__ import annotations

import os
import pwd
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tcpkmon
from tcpkmon.collector.commands.collect import command
from tcpkmon.formats.base import cli
from tcpkmon.formats.psc.reader import Capture
from tests.live.faults import (
    COLLECT,
    WAIT_S,
    Collector,
    Disk,
    Done,
    Space,
    as_nobody,
    environment,
    run,
    verify,
    verify_by_command,
    wait_until,
)

WITHOUT_CAPABILITIES = """
import sys
from tcpkmon.collector.commands.collect import import_quietly, main
from tcpkmon.collector.linux.privileges import drop_capabilities
import_quietly()
drop_capabilities(())
sys.argv[0] = "collect"
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one."""
    made = tmp_path / "out"
    made.mkdir()
    return made


def check_refused(done: Done, code: int, *words: str) -> None:
    assert done.code == code, done.stderr
    assert done.stdout == b""
    assert len(done.lines) == 1, done.stderr
    assert done.stderr.startswith("collect: ")
    assert done.stderr.isprintable() or done.stderr[:-1].isprintable()
    for word in words:
        assert word in done.stderr


def exchange(port: int = 0, count: int = 5) -> int:
    """A connection over the loopback device with `count` sends and receives; its server's port."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            server, _ = listener.accept()
            with server:
                for _ in range(count):
                    client.sendall(b"ping")
                    server.recv(4, socket.MSG_WAITALL)
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["-D", "\x1b[31m\u202e"], 2, "-D"),
        (["--netns", "/dev/null"], 2, "namespace"),
        (["--columns", "\x1b[31mred"], 2, "\\x1b[31mred"),
        (["--duration", "soon"], 2, "soon"),
        (["--no-such-option"], 2, "--no-such-option"),
        (["--ready-fd", "99999999999999999999"], 2, "99999999999999999999"),
        (["--", "/etc/passwd"], 2, "/etc/passwd"),
    ],
)
def test_what_makes_no_sense(
    arguments: list[str], code: int, word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    placed = [*arguments[:at], "-o", str(folder / "x.pm"), *arguments[at:]]
    done = cli.run(command, placed)
    out, said = capsys.readouterr()
    check_refused(Done(done, out.encode(), said), code, word)
    assert not os.listdir(folder)


def test_outputs_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    """What is in the way stays as it is, with --force too where it is no plain file."""
    kept = folder / "kept.pm"
    kept.write_text("precious")
    (folder / "link").symlink_to(kept)
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    before = sorted(os.listdir(folder))
    check_refused(run([COLLECT, "-o", str(kept)]), 1, "exists", "--force")
    check_refused(run([COLLECT, "-o", str(folder / "link")]), 1, "link")
    for name in ("link", "dangling", "folder", "fifo"):
        check_refused(run([COLLECT, "--force", "-o", str(folder / name)]), 1, name)
    check_refused(run([COLLECT, "-o", str(folder / "no/where.pm")]), 1, "no such directory")
    check_refused(run([COLLECT, "-o", str(kept / "x.pm")]), 1, "not a directory")
    check_refused(run([COLLECT, "-o", f"{folder}/"]), 1, "not the name of a file")
    check_refused(run([COLLECT, "-o", ""], cwd=folder), 1, "not the name of a file")
    assert sorted(os.listdir(folder)) == before
    assert kept.read_text() == "precious"


def test_a_full_disk_at_the_start() -> None:
    with Disk(256 << 10) as disk:
        disk.fill()
        check_refused(run([COLLECT, "-o", str(disk.path / "x.pm")]), 1, "no room")
        assert os.listdir(disk.path) == ["ballast"]


def test_a_terminal_is_no_place_for_a_file() -> None:
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [COLLECT, "-o", "-"], stdout=slave, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env=environment(), text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
    finally:
        os.close(slave)
        os.close(master)
    check_refused(Done(done.returncode, b"", done.stderr), 1, "terminal")


def test_without_root(folder: Path) -> None:
    folder.chmod(0o777)
    done = run(as_nobody("collect", "-o", folder / "x.pm"))
    check_refused(done, 1, "root")
    assert not os.listdir(folder)


def test_root_without_capabilities(folder: Path) -> None:
    """As in a container."""
    done = run([sys.executable, "-c", WITHOUT_CAPABILITIES, "-o", str(folder / "x.pm")])
    assert done.code in {1, 4}
    check_refused(done, done.code)
    assert not os.listdir(folder)


@pytest.mark.parametrize("umask", [0, 0o077])
def test_the_files_mode(umask: int, space: Space, folder: Path) -> None:
    path = folder / "x.pm"
    done = run(
        [COLLECT, "-q", "--netns", space.path, "-o", str(path), "--duration", "50ms"], umask=umask
    )
    assert (done.code, done.stdout, done.stderr) == (0, b"", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(folder) == ["x.pm"]


def test_stop_after(space: Space, folder: Path) -> None:
    path = folder / "x.pm"
    with Collector(
        "-v", "--netns", space.path, "--stop-after", "10", "-o", str(path)
    ).ready() as collector:
        space.run(lambda: exchange(count=20))
        done = collector.finish(None)
    assert done.code == 0, done.stderr
    assert "SEGMENT_RECEIVED by " in done.stderr
    report = verify(path, 0)
    assert report == verify_by_command(path, 0)
    assert report["end_reason"] == "count"
    assert report["totals"]["in_file"] >= 10


# Standard output


def test_nothing_matched_says_what_was_there(space: Space, folder: Path) -> None:
    with Collector("--ports", "9", "-o", str(folder / "x.pm")).ready() as collector:
        exchange(count=20)
        done = collector.finish()
    said = re.search(r"nothing matched: ([\d,]+) events were .* have ports \d+", done.stderr)
    assert done.code == 0 and said and int(said[1].replace(",", "")) >= 20, done.stderr


def test_a_capture_through_a_pipe(space: Space, folder: Path) -> None:
    path = folder / "x.pm"
    with path.open("wb") as stream:
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=stream)
        with Collector(
            "--netns", space.path, "-o", "-", stdout=process.stdin
        ).ready() as collector:
            space.run(exchange)
            done = collector.finish()
        process.communicate(timeout=WAIT_S)
    assert done.code == 0, done.stderr
    assert verify(path, 0)["totals"]["in_file"] > 20


def test_messages_never_get_into_the_capture(folder: Path) -> None:
    with (folder / "x.pm").open("wb") as stream:
        process = subprocess.Popen([COLLECT, "-o", "-"], stdout=stream, stderr=stream)
        assert process.wait(WAIT_S) == 2
    text = (folder / "x.pm").read_text()
    assert text.count("\n") == 1 and "standard error are one file" in text


def test_printed_records(space: Space, folder: Path) -> None:
    with (folder / "text").open("wb") as stream, Collector(
        "--netns", space.path, "--print", "-o", str(folder / "x.pm"),
        "--locations", "default,SEND_CALL", stdout=stream,
    ).ready() as collector:
        port = space.run(exchange)
        done = collector.finish()
    assert done.code == 0, done.stderr
    lines = (folder / "text").read_text().splitlines()
    with tcpkmon.open(folder / "x.pm") as capture:
        records = ~capture.control()
        assert len(lines) == records.sum()
        names = [capture.location_name(n) for n in capture.column("location")[records].tolist()]
    assert [line.split()[1] for line in lines] == names
    assert names.count("SEND_CALL") == 5
    assert all(f":{port}" in line for line in lines)


def test_printing_to_a_closed_pipe(space: Space, folder: Path) -> None:
    """As for `collect --print | head -1`: the file is finished nonetheless."""
    path = folder / "x.pm"
    read, write = os.pipe()
    with Collector(
        "--netns", space.path, "--print", "-o", str(path), stdout=write
    ) as collector:
        os.close(write)
        collector.ready()
        os.close(read)
        space.run(exchange)
        done = collector.finish(None)
    assert done.code == 141, done.stderr
    assert done.stderr == ""
    assert verify(path, 0)["proven_end"]


@pytest.mark.parametrize("closed", [1, 2])
def test_closed_standard_streams(closed: int, space: Space, folder: Path) -> None:
    path = folder / "x.pm"
    script = f'exec "$@" {closed}>&-'
    arguments = ["--netns", space.path, "-o", str(path), "--duration", "50ms"]
    done = run(["sh", "-c", script, "sh", COLLECT, *arguments])
    assert done.code == 0, done.stderr
    assert done.stdout == b""
    assert verify(path, 0)["proven_end"]


def test_a_terminal_that_goes_away(space: Space, folder: Path) -> None:
    """The status line has nowhere to go then; the capture goes on."""
    path = folder / "x.pm"
    master, slave = os.openpty()
    ready, told = os.pipe()
    process = subprocess.Popen(
        [COLLECT, "--netns", space.path, "-o", str(path), "--ready-fd", str(told)],
        stdin=slave, stdout=slave, stderr=slave, pass_fds=(told,), env=environment(TERM="xterm"),
        start_new_session=True,
    )  # fmt: skip
    os.close(told)
    os.close(slave)
    shown = bytearray()
    try:
        gone = threading.Event()

        def read() -> None:
            while not gone.is_set():
                if select.select([master], [], [], 0.1)[0]:
                    shown.extend(os.read(master, 65536))

        reader = threading.Thread(target=read)
        reader.start()
        assert os.read(ready, 1)
        wait_until(lambda: b"records" in shown, "a status line")
        gone.set()
        reader.join()
        os.close(master)
        before = path.stat().st_size
        space.run(exchange)
        # A second or more of status lines that go nowhere: the next checkpoint comes.
        wait_until(lambda: path.stat().st_size > before, "the capture goes on")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ready)
    assert verify(path, 0)["totals"]["in_file"] > 20


# Commands


def test_a_commands_exit_code(space: Space, folder: Path) -> None:
    path = folder / "x.pm"
    common = [COLLECT, "--netns", space.path, "--force", "-o", str(path)]
    done = run([*common, "-q", "--", "sh", "-c", "echo said; echo meant >&2; exit 7"])
    assert (done.code, done.stdout, done.stderr) == (7, b"said\n", "meant\n")
    assert verify(path, 0)["end_reason"] == "command ended"
    assert run([*common, "--", "sh", "-c", "kill -KILL $$"]).code == 137


def test_a_signal_reaches_the_command(space: Space, folder: Path) -> None:
    path = folder / "x.pm"
    started = folder / "started"
    with Collector(
        "--netns", space.path, "-o", str(path), "--", "sh", "-c", f"touch {started}; exec sleep 600"
    ).ready() as collector:
        wait_until(started.exists, "the command runs")
        done = collector.finish(signal.SIGTERM)
    assert done.code == 143, done.stderr
    assert verify(path, 0)["proven_end"]


def test_a_command_that_outlives_the_capture(space: Space, folder: Path) -> None:
    """Its exit code is waited for; the file is finished long before."""
    path = folder / "x.pm"
    go = folder / "go"
    os.mkfifo(go)
    with Collector(
        "--netns", space.path, "-o", str(path), "--duration", "100ms",
        "--", "sh", "-c", f"read line <{go}; exit 9",
    ) as collector:  # fmt: skip
        collector.says("waiting for sh")
        assert verify(path, 0)["end_reason"] == "duration"
        assert not collector.programs(), "nothing stays loaded"
        assert not Path("/run/tcpkmon", f"{collector.pid}.sock").exists(), "nobody is kept waiting"
        go.write_text("go\n")
        done = collector.finish(None)
    assert done.code == 9, done.stderr


def test_a_command_that_the_kernel_refuses(space: Space, folder: Path) -> None:
    """Too late for leaving no file: it is finished instead."""
    script = folder / "script"
    script.write_bytes(b"\0not a program")
    script.chmod(0o755)
    done = run([COLLECT, "--netns", space.path, "-o", str(folder / "x.pm"), "--", str(script)])
    assert done.code == 2
    assert "cannot be run" in done.lines[-1]
    assert verify(folder / "x.pm", 0)["end_reason"] == "error"


def test_sudos_caller_runs_the_command(space: Space, folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    sudo = {"SUDO_UID": str(nobody.pw_uid), "SUDO_GID": str(nobody.pw_gid)}
    common = [COLLECT, "-q", "--netns", space.path, "--force", "-o", str(folder / "x.pm")]
    done = run([*common, "--", "id", "-u"], env=environment(**sudo))
    assert (done.code, done.stdout) == (0, f"{nobody.pw_uid}\n".encode())
    done = run([*common, "--as-root", "--", "id", "-u"], env=environment(**sudo))
    assert (done.code, done.stdout) == (0, b"0\n")
    (folder / "x.pm").unlink()
    done = run([*common, "--", "id", "-u"], env=environment(SUDO_UID="3999999999"))
    check_refused(done, 2, "SUDO_UID")
    assert not os.listdir(folder)


def test_a_time_namespace(folder: Path) -> None:
    """The times of day are the true ones."""
    apart = ["unshare", "--time", "--monotonic", "500000", "--fork"]
    path = folder / "x.pm"
    done = run([*apart, COLLECT, "-q", "--ports", "9", "-o", str(path), "--", "true"])
    assert done.code == 0, done.stderr
    clock = Capture(path).clock
    assert clock is not None
    ahead_ns = clock[1] - clock[0] - time.time_ns() + time.monotonic_ns()
    assert abs(ahead_ns) < 1_000_000_000
