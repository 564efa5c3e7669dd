# SPDX-License-Identifier: Apache-2.0
"""Runs `tcpkmon daemon` for a test, with a socket in place of systemd's.

It stores descriptors as systemd does, and the next start() gets them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.live.faults import GUEST, TCPKMON, WAIT_S, Done, environment, listen, run, wait_until

ANSWER_S = 240.0 if GUEST else 20.0
_START = """
import fcntl, os, sys
names = sys.argv[1].split(":") if sys.argv[1] else []
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 900) for fd in sys.argv[2].split(":") if fd]
for number, fd in enumerate(fds):
    os.dup2(fd, 3 + number)
os.closerange(3 + len(fds), 1024)
if fds:
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(fds)),
                   "LISTEN_FDNAMES": sys.argv[1]}
os.execv(sys.argv[3], sys.argv[3:])
"""


class Daemon:
    """A daemon, with its folder and sockets below `folder`. told: (seconds, lines) for systemd."""

    def __init__(self, folder: Path, *, watchdog_s: float = 30.0) -> None:
        self.folder = folder
        self.config = folder / "tcpkmon.toml"
        self.told: list[tuple[float, list[str]]] = []
        self.stored: dict[str, int] = {}
        """Descriptors by name, as systemd holds them."""
        self.program = [TCPKMON]
        """The words in front of `daemon`."""
        self.options: list[str] = []
        """Of the daemon."""
        self._watchdog_s = watchdog_s
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()
        self._error = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end of the `with`

    def configure(self, text: str) -> None:
        """Write the configuration: the captures' folders are below `folder`, by @."""
        self.config.write_text(text.replace("@", str(self.folder)))

    def _listen(self) -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(self._notify, 4096, 10)
            if not data:
                return
            lines = data.decode().split("\n")
            name = next((one[7:] for one in lines if one.startswith("FDNAME=")), "")
            if {"FDSTORE=1", "FDSTOREREMOVE=1"} & {*lines} and name in self.stored:
                os.close(self.stored.pop(name))
            if "FDSTORE=1" in lines:
                self.stored[name] = fds.pop()
            elif "FDSTOREREMOVE=1" not in lines:
                self.told.append((time.monotonic(), lines))
            for fd in fds:
                os.close(fd)

    @property
    def environment(self) -> dict[str, str]:
        """Of the daemon and its commands."""
        return environment(TCPKMON_RUN=str(self.folder / "run"))

    def start(self, *, is_ready: bool = True) -> Daemon:
        """Start it, and wait until it says that it is ready."""
        more = {
            "NOTIFY_SOCKET": str(self.folder / "notify"),
            "WATCHDOG_USEC": str(int(self._watchdog_s * 1e6)),
        }
        names, fds = list(self.stored), list(self.stored.values())
        words = [sys.executable, "-c", _START, ":".join(names), ":".join(map(str, fds))]
        began_s = time.monotonic()
        self.process = subprocess.Popen(
            [*words, *self.program, "daemon", "--config", str(self.config), *self.options],
            stdin=subprocess.DEVNULL, stderr=self._error, env=self.environment | more,
            preexec_fn=listen, pass_fds=fds,  # noqa: PLW1509
        )  # fmt: skip
        if is_ready:
            self.hears("READY=1", began_s)
        return self

    def kill(self) -> None:
        """SIGKILL of the supervisor and its captures, as systemd does where one dies."""
        pids = [one["pid"] for one in self.status().values()]
        self.process.kill()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        for pid in pids:
            wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "it is gone")  # type: ignore[misc]

    def hears(self, line: str, after_s: float = 0.0) -> float:
        """Waits until systemd was told this line after a time; when it was (CLOCK_MONOTONIC)."""

        def look() -> float | None:
            assert self.process.poll() is None, self.stderr
            found = (at for at, lines in list(self.told) if at > after_s for one in lines
                     if one.startswith(line))  # fmt: skip
            return next(found, None)

        return float(wait_until(look, f"systemd hears {line}: {self.stderr}", ANSWER_S))

    @property
    def stderr(self) -> str:
        """What it said so far."""
        size = os.fstat(self._error.fileno()).st_size
        return os.pread(self._error.fileno(), size, 0).decode(errors="replace")

    def says(self, text: str) -> None:
        """Waits until it said this."""
        wait_until(lambda: text in self.stderr, f"says {text}: {self.stderr}", ANSWER_S)

    def command(self, *words: str) -> Done:
        """Runs a tcpkmon command that finds this daemon."""
        return run([TCPKMON, *words], env=self.environment)

    def status(self) -> dict[str, Any]:
        """What the daemon tells of its captures, by name."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(ANSWER_S)
            client.connect(str(self.folder / "run" / "daemon.sock"))
            client.sendall(b'{"op": "status"}\n')
            answer = json.loads(client.makefile("rb").readline())
        captures: dict[str, Any] = answer["result"]["captures"]
        return captures

    def replaced(self, pid: int, name: str = "calls") -> None:
        """Waits until another process than this one has the capture, and is attached."""

        def attached() -> bool:
            told = self.status()[name]
            return told["pid"] not in {pid, None} and told["state"] == "is attached"

        wait_until(attached, f"another has {name}: {self.stderr}", 40, 0.01)

    def files(self, name: str) -> list[Path]:
        """The files of a capture, in order."""
        files = (self.folder / name).iterdir()
        return sorted(path for path in files if path.suffix == ".pm")

    def finish(self) -> Done:
        """SIGTERM; waits for the end."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        assert "Traceback" not in self.stderr, self.stderr
        return Done(code, b"", self.stderr)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *error: object) -> None:
        if getattr(self, "process", None) is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(WAIT_S)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", str(self.folder / "notify"))
        self._listening.join()
        for fd in self.stored.values():
            os.close(fd)
        self._notify.close()
        self._error.close()
