# SPDX-License-Identifier: Apache-2.0
"""One soak: the daemon, its load, what is done to it, and the sum at the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.registry import format_of
from tests.live.daemons import Daemon
from tests.live.faults import Space, cpus, program_lives, wait_until
from tests.truth.soak.books import Book, Books
from tests.truth.soak.cost import Costs
from tests.truth.soak.load import CHUNK, Load, playing

CONFIG = """
[capture.calls]
locations = ["RECEIVE_CALL"]
columns = ["classic", "cpu", "serial", "time_ns"]
netns = ["{space}"]
ports = {ports}
output = "{folder}"
low_water = {low_water}
buffer_size = "{buffer_size}"
[capture.calls.rotation]
every = "{every_s}s"
size = "32M"
keep_files = 16
"""
MORE = """
[capture.more]
schemata = ["sched"]
limits = {{ SCHEDIN = {limit} }}
output = "{folder}-more"
[capture.more.rotation]
size = "16M"
keep_files = 4
"""
DISK_BYTES = 768 << 20
KILLS, RELOADS, RESTARTS, HALF_HOUR_S = 20, 50, 3, 1800.0
KILL_UNTIL = 0.7
"""Of the time; the processes that live then are left alone, to see whether they grow."""
PATIENCE_S = 60.0
UNSURE_S = 2.5
"""A killed capture had not written what it drained in so long."""


class Soak:
    """A soak of so many seconds, with the files in a disk of its own, in memory."""

    def __init__(
        self, folder: Path, seconds: float, seed: int, *, say: Callable[[str], object] = print
    ) -> None:
        self._folder, self._seconds, self._seed = folder, seconds, seed
        self._disk = folder / "disk"
        self._output = self._disk / "calls"
        self._say = say
        self._chance = random.Random(seed)
        self._machine = threading.Lock()
        """Held while no load may begin."""
        self._problems: list[str] = []
        self._costs = Costs()
        self._settings: dict[str, Any] = {
            "low_water": 50, "buffer_size": "1M", "limit": 100, "more": "", "extra": [],
            "every_s": 10 if seconds >= 120 else 2,
        }  # fmt: skip
        self._gaps: list[tuple[int, int]] = []
        """When no capture was attached, or one had drained what it never wrote (ns)."""
        self._overlaps: list[tuple[int, int]] = []
        """When two captures may have recorded."""
        self._done: dict[str, int] = {}

    def run(self) -> list[str]:
        """Run it, and print a report; what was wrong."""
        with ExitStack() as stack:
            self._space = stack.enter_context(Space())
            self._disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "soak", self._disk],
                           check=True)  # fmt: skip
            stack.callback(lambda: subprocess.run(["umount", "--lazy", self._disk], check=True))
            with self._machine:  # the load waits for the daemon
                loads, stop = stack.enter_context(
                    playing(self._space, cpus(), self._seed, self._machine)
                )
                self._loads = loads
                self._daemon = stack.enter_context(Daemon(self._folder, watchdog_s=60))
                self._configure()
                self._start()
            books = Books(self._output, loads)
            try:
                self._play()
                stop.set()
                time.sleep(2)
                self._settle()
                done = self._daemon.finish()
                if done.code:
                    self._problems.append(f"the daemon's exit code is {done.code}")
            except BaseException:
                self._say(self._daemon.stderr)
                raise
            finally:
                stop.set()
                books.finish()
            self._report(books, loads)
        return self._problems

    # What is done

    def _play(self) -> None:
        """The events, spread over the time."""
        share = self._seconds / HALF_HOUR_S
        begin = time.monotonic()
        kills = max(2, round(KILLS * share))
        events: list[tuple[float, Callable[[], None]]] = [
            (KILL_UNTIL * (at + 0.5) / kills, self._kill) for at in range(kills)
        ]
        restarts = max(1, round(RESTARTS * share))
        events += [(KILL_UNTIL * (at + 0.9) / restarts, self._restart) for at in range(restarts)]
        reloads = max(len(self._changes), round(RELOADS * share))
        events += [((at + 0.3) / reloads, self._reload) for at in range(reloads)]
        events.append((0.45, self._fill_disk))
        for due, event in sorted(events, key=lambda pair: pair[0]):
            while time.monotonic() < begin + due * self._seconds:
                self._sample(begin)
                time.sleep(min(1.0, max(0.0, begin + due * self._seconds - time.monotonic())))
            event()
            name = event.__name__.strip("_").replace("_", " ")
            self._done[name] = self._done.get(name, 0) + 1
        while time.monotonic() < begin + self._seconds:
            self._sample(begin)
            time.sleep(1)

    def _sample(self, begin: float) -> None:
        captures = self._daemon.status()
        pids = {"supervisor": self._daemon.process.pid, "capture": captures["calls"]["pid"]}
        self._costs.look(time.monotonic() - begin, pids)

    def _configure(self) -> None:
        values = self._settings
        ports = [*(load.port for load in self._loads), *values["extra"]]
        text = CONFIG.format(
            space=self._space.path, ports=ports, folder=self._output, **{
                name: values[name] for name in ("low_water", "buffer_size", "every_s")
            },
        )  # fmt: skip
        if values["more"]:
            text += MORE.format(limit=values["limit"], folder=self._output)
        self._daemon.configure(text + values.get("wrong", ""))

    def _start(self) -> int:
        self._daemon.told.clear()
        self._daemon.start()
        return time.monotonic_ns()

    def _settle(self) -> None:
        """Until every capture is attached."""

        def attached() -> bool:
            states = {one["state"] for one in self._daemon.status().values()}
            return states == {"is attached"}

        wait_until(attached, "all captures are attached", PATIENCE_S, 0.05)

    def _kill(self) -> None:
        """SIGKILL of the capture: another goes on where it was."""
        self._settle()
        pid = self._daemon.status()["calls"]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self._daemon.status()["calls"]["pid"] not in {pid, None},
                   "another process", PATIENCE_S, 0.05)  # fmt: skip
        self._settle()

    def _restart(self) -> None:
        """SIGKILL of the daemon and, as systemd does it, of all its processes; it starts again."""
        self._settle()
        begin = time.monotonic_ns()
        workers = [one["pid"] for one in self._daemon.status().values()]
        self._daemon.process.kill()
        for pid in workers:
            os.killpg(pid, signal.SIGKILL)  # each has a session of its own
        self._daemon.process.wait()
        _wait_for_end(workers)
        stored = bool(getattr(self._daemon, "stored", ()))  # what systemd would hold
        ready = self._start()
        if not stored:
            self._gaps.append((begin - int(UNSURE_S * 1e9), ready))

    @property
    def _changes(self) -> list[dict[str, Any]]:
        low_water, limit = self._chance.randrange(30, 70), self._chance.randrange(200, 2000)
        return [
            {"extra": [1]}, {"extra": []},
            {"low_water": low_water},
            {"more": "yes"},
            {"limit": limit}, {"limit": 10},
            {"more": ""},
            {"wrong": "[capture.calls.x]"}, {"wrong": ""},
            {"buffer_size": "512K"}, {"buffer_size": "1M"},
        ]  # fmt: skip

    def _reload(self) -> None:
        """Another configuration; the next of _changes."""
        self._settle()
        changes = self._changes
        self._settings.update(changes[self._done.get("reload", 0) % len(changes)])
        before = self._daemon.status()["calls"]["pid"]
        begin = time.monotonic_ns()
        self._configure()
        done = self._daemon.command("reload")
        if done.code != (2 if self._settings.get("wrong") else 0):
            self._problems.append(f"reload: exit code {done.code}: {done.stderr}")
        if b"relieved" in done.stdout:
            _wait_for_end([before])
            self._settle()
            self._overlaps.append((begin, time.monotonic_ns()))

    def _fill_disk(self) -> None:
        """No room for a while."""
        end = time.monotonic() + min(20.0, self._seconds / 8)
        ballast = self._disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            taken = 0
            while time.monotonic() < end:
                left = os.statvfs(self._disk).f_bavail * os.statvfs(self._disk).f_frsize
                with suppress(OSError):  # a capture took some meanwhile
                    if left:
                        os.posix_fallocate(file.fileno(), taken, left)
                        taken += left
                time.sleep(0.05)
        ballast.unlink()

    # The sum

    def _report(self, books: Books, loads: Sequence[Load]) -> None:
        problems = self._problems
        problems += books.problems
        events = ", ".join(f"{name} {count}" for name, count in self._done.items())
        self._say(f"{self._seconds / 60:.1f} minutes: {events}")
        self._say(f"{books.segments} segments of {books.captures} captures")
        missing, in_gaps = 0, 0
        for book in books.books:
            absent, away = self._missing(book)
            missing += absent
            in_gaps += away
            self._say(f"{book.load.name}: {book.load.made():,} calls, {book.records:,} records; "
                      f"{absent:,} calls missing, {away:,} more while no capture ran")  # fmt: skip
            if book.twice:
                problems.append(f"{book.load.name}: {book.twice} calls stand twice in one capture")
        counted = sum(books.counted.values())
        overlap = sum(self._calls(load, self._overlaps) for load in loads)
        self._say(f"counted as lost: {counted:,} {books.counted}")
        if not missing <= counted <= missing + in_gaps + overlap:
            problems.append(f"{missing:,} calls are missing, {counted:,} are counted as lost")
        for report in format_of(self._output).verify(self._output):
            if report.problems or report.exit_code not in (0, 3):
                problems.append(f"verify: {report.path}: {report.problems[:3]} {report.error}")
        self._costs_and_leftovers()
        for problem in problems:
            self._say(f"WRONG: {problem}")
        if problems:
            self._say(self._daemon.stderr)
        self._say("not passed" if problems else "passed")

    def _costs_and_leftovers(self) -> None:
        for line in self._costs.report(self._problems):
            self._say(line)
        if alive := [number for number in self._costs.programs if program_lives(number)]:
            self._problems.append(f"{len(alive)} BPF programs are left")
        if left := sorted(os.listdir(self._folder / "run")):
            self._problems.append(f"left in the folder of sockets: {left}")
        if hidden := [name for name in os.listdir(self._output) if name.startswith(".")]:
            self._problems.append(f"not sealed: {hidden}")
        if "Traceback" in self._daemon.stderr:
            self._problems.append("the daemon printed a traceback")

    def _missing(self, book: Book) -> tuple[int, int]:
        """How many calls no file has: while a capture ran, and in gaps."""
        absent = book.missing()
        away = np.zeros(len(absent), dtype=bool)
        for begin, end in self._gaps:
            first, last = book.load.by(np.array([begin, end]))
            away |= (absent >= first - CHUNK) & (absent <= last + CHUNK)
        return int((~away).sum()), int(away.sum())

    def _calls(self, load: Load, spans: Sequence[tuple[int, int]]) -> int:
        return sum(int(np.diff(load.by(np.array(span)))[0]) for span in spans)



def _wait_for_end(pids: Sequence[int]) -> None:
    paths = [Path(f"/proc/{pid}/fd/0") for pid in pids]
    wait_until(lambda: not any(path.exists() for path in paths), f"{pids} end", PATIENCE_S, 0.05)
