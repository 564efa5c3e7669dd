# SPDX-License-Identifier: Apache-2.0
"""Makes the captures that later versions must read as this one does: each format, whole and not.

    sudo .venv/bin/python -m tests.kept.make            captures anew, and what is said of them
    .venv/bin/python -m tests.kept.make --answers       only what is said of those that are there

A capture is NAME.tar.xz, what the commands say of it is NAME.txt, both in this folder. Captures are
made once for a version of the files and kept: tests/unit/test_kept.py compares the answers.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PORT = 45701
WAIT_S = 60
PSC = ("--locations", "default,SEND_CALL,RECEIVE_CALL")
FORMATS = {
    "psc": PSC,
    "klogger": ("--format", "klogger", *PSC),
    "events": ("--schema", "magnet", "--data"),
    "magnet": ("--format", "magnet", "--schema", "magnet", "--data"),
}
"""Options of `collect`, by the first word of a capture's name."""
MOST_TEXT = 6000
"""Characters of an answer that are kept; of longer ones the size and a digest."""

MAINS = {
    "tcpkmon": "tcpkmon.collector.commands.tcpkmon", "pmgraph": "tcpkmon.formats.commands.pmgraph",
}  # fmt: skip
READ_ONCE = (
    "rich.console", "rich.table", "numpy.ma", "tcpkmon.formats.analysis.check",
    *(f"tcpkmon.formats.commands.{name}" for name in ("verify", "why", "export", "decode")),
)  # fmt: skip
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "psc": (
        ("tcpkmon", "verify"), ("tcpkmon", "why"), ("tcpkmon", "connections"),
        ("tcpkmon", "export", "--format", "csv"), ("pmgraph", "-T"),
    ),
    "klogger": (
        ("tcpkmon", "verify"), ("tcpkmon", "why"), ("tcpkmon", "connections"),
        ("tcpkmon", "decode", "--merge", "--format", "json"),
    ),
    "events": (("tcpkmon", "verify"), ("tcpkmon", "decode", "--merge", "--format", "json")),
    "magnet": (("tcpkmon", "verify"), ("tcpkmon", "magnet-parse")),
}  # fmt: skip


def answers(name: str, folder: Path) -> str:
    """What each command says of a capture that was unpacked there, as text."""
    parts = []
    server = multiprocessing.get_context("forkserver")  # the libraries are read once for all
    server.set_forkserver_preload([*MAINS.values(), *READ_ONCE, "tests.kept.make"])
    for command, *words in COMMANDS[name.partition("-")[0]]:
        arguments = [command, *words, _place(folder, name)]
        with tempfile.TemporaryDirectory() as out:
            child = server.Process(target=_command, args=(arguments, folder, Path(out)))
            child.start()
            child.join(WAIT_S)
            said = [_text(Path(out, stream).read_bytes()) for stream in ("stderr", "stdout")]
        head = f"$ {' '.join([command, *words, name])}\nexit code {child.exitcode}\n"
        parts.append(head + "".join(said))
    return "\n".join(parts)


def _command(arguments: list[str], folder: Path, out: Path) -> None:
    """Be this command, in a process of its own."""
    os.environ |= {"TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1", "HOME": str(folder)}
    time.tzset()
    os.chdir(folder)
    sys.argv[:] = arguments
    for fd, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(out / stream, os.O_WRONLY | os.O_CREAT), fd)
    import_module(MAINS[arguments[0]]).main()


def _place(folder: Path, name: str) -> str:
    """The file, or the folder, that the commands are given."""
    return next(path.name for path in folder.iterdir() if path.name.startswith(name))


def _text(data: bytes) -> str:
    if len(data) <= MOST_TEXT:
        return data.decode()
    lines = data.count(b"\n")
    return f"{lines} lines, {len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}\n"


def unpack(name: str, folder: Path) -> None:
    """The capture into an empty folder."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder)


def names() -> list[str]:
    """Of all captures that are kept."""
    return sorted(path.name.removesuffix(".tar.xz") for path in HERE.glob("*.tar.xz"))


# Making them. Only this part needs root.


def _traffic(count: int = 12, size: int = 3000) -> None:
    """Some short connections with requests and answers, and one that sends more."""

    def serve(listener: socket.socket) -> None:
        for _ in range(4):
            stream, _ = listener.accept()
            with stream:
                while stream.recv(1 << 16):
                    stream.sendall(b"y" * size)

    with socket.create_server(("127.0.0.1", PORT)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        for number in range(4):
            with socket.create_connection(("127.0.0.1", PORT)) as stream:
                for _ in range(count if number < 3 else 3):
                    stream.sendall(b"x" * (100 if number < 3 else 60_000))
                    time.sleep(0.002)
                    stream.recv(1 << 16)
        thread.join()


@contextmanager
def _collecting(space: Any, *words: str, code: int = 0) -> Iterator[Any]:
    from tests.live.faults import Collector

    with Collector("--netns", space.path, "--no-existing", *words).ready() as one:
        yield one
        if one.process.poll() is None:
            done = one.finish()
            assert done.code == code, done.stderr


def _plain(space: Any, kind: str, path: Path) -> None:
    with _collecting(space, *FORMATS[kind], "-o", str(path)):
        space.run(_traffic)


def _rotated(space: Any, kind: str, path: Path) -> None:
    with _collecting(space, *FORMATS[kind], "-o", str(path), "--rotate-every", "1s"):
        for _ in range(3):
            space.run(lambda: _traffic(4))
            time.sleep(0.7)


def _recorded(space: Any, kind: str, path: Path) -> None:
    from tests.live.faults import wait_until

    options = ("--record-last", "2s", "--after", "300ms")
    with _collecting(space, *FORMATS[kind], "-o", str(path), *options) as one:
        for _ in range(2):
            space.run(lambda: _traffic(4))
            time.sleep(1.5)
        space.run(lambda: _traffic(4))
        one.send(signal.SIGUSR2)
        wait_until(lambda: path.exists() and [*path.glob("[!.]*")], "a dump", WAIT_S)


def _lossy(space: Any, kind: str, path: Path) -> None:
    with _collecting(space, *FORMATS[kind], "-o", str(path), "--buffer-size", "0.03") as one:
        space.run(lambda: _traffic(4))
        one.pause()
        space.run(lambda: _traffic(40))
        one.resume()
        time.sleep(0.5)
        space.run(lambda: _traffic(4))


def _killed(space: Any, kind: str, path: Path) -> None:
    with _collecting(space, *FORMATS[kind], "-o", str(path)) as one:
        space.run(lambda: _traffic(6))
        time.sleep(1.2)  # its last checkpoint and what follows
        one.process.kill()
        one.process.wait()


def _taken_over(space: Any, kind: str, path: Path) -> None:
    """By the daemon, where a capture's process is killed."""
    from tests.live.daemons import Daemon
    from tests.live.test_takeover_live import kill_worker

    with tempfile.TemporaryDirectory() as folder, Daemon(Path(folder)) as daemon:
        daemon.configure(
            f"[capture.calls]\nnetns = ['{space.path}']\nlocations = ['default', 'SEND_CALL']\n"
            f"output = '@/calls'\nformat = '{kind}'\n[capture.calls.rotation]\nevery = '2s'\n"
        )
        daemon.start()
        for _ in range(3):
            space.run(lambda: _traffic(4))
            kill_worker(daemon)
        space.run(lambda: _traffic(4))
        assert daemon.finish().code == 0
        shutil.copytree(Path(folder, "calls"), path)


def _archived(space: Any, kind: str, path: Path) -> None:
    words = ("-o", str(path), "--rotate-every", "1s", "--archive", "zst")
    with _collecting(space, *FORMATS[kind], *words):
        for _ in range(2):
            space.run(lambda: _traffic(4))
            time.sleep(0.7)


def _cut(plain: Path, path: Path) -> None:
    """Two thirds of each file of a capture."""
    shutil.copytree(plain, path) if plain.is_dir() else shutil.copyfile(plain, path)
    for file in path.iterdir() if path.is_dir() else [path]:
        os.truncate(file, file.stat().st_size * 2 // 3)


MAKERS: dict[str, Callable[[Any, str, Path], None]] = {
    "plain": _plain, "rotated": _rotated, "recorded": _recorded, "lossy": _lossy,
    "killed": _killed, "taken-over": _taken_over, "zst": _archived,
}  # fmt: skip
WANTED = {
    "psc": (*MAKERS, "cut", "repaired"),
    "klogger": ("plain", "rotated", "recorded", "lossy", "killed", "taken-over", "cut", "repaired"),
    "events": ("plain",),
    "magnet": ("plain", "rotated", "recorded", "lossy", "killed", "cut"),
}


def _make_all(wanted: list[str]) -> None:
    from tests.live.faults import Space

    with tempfile.TemporaryDirectory() as made, Space() as space:
        for kind, shapes in WANTED.items():
            ending = {"psc": ".pm", "magnet": ".magnet"}.get(kind, "")
            for shape in shapes:
                name = f"{kind}-{shape}"
                if wanted and name not in wanted:
                    continue
                is_file = shape in ("plain", "lossy", "killed", "cut", "repaired")
                path = Path(made, name + ending * is_file)
                plain = Path(made, f"{kind}-plain{ending}")
                if shape == "cut":
                    _cut(plain, path)
                elif shape == "repaired":
                    cut = Path(made, f"{kind}-cut{ending}")
                    for file in sorted(cut.iterdir()) if cut.is_dir() else [cut]:
                        path.mkdir(exist_ok=True) if cut.is_dir() else None
                        to = path / file.name if cut.is_dir() else path
                        command = [BIN / "tcpkmon", "repair", "-q", file, "-o", to]
                        subprocess.run(command, check=False, capture_output=True)
                else:
                    MAKERS[shape](space, kind, path)
                with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
                    archive.add(path, path.name, filter=_nobody)
                print(name, (HERE / f"{name}.tar.xz").stat().st_size)


def _nobody(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "lock" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main(words: list[str]) -> None:
    if "--answers" not in words:
        _make_all([word for word in words if not word.startswith("-")])
    for name in names():
        with tempfile.TemporaryDirectory() as folder:
            unpack(name, Path(folder))
            (HERE / f"{name}.txt").write_text(answers(name, Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
