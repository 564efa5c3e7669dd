# SPDX-License-Identifier: Apache-2.0
"""Reads each segment once it is sealed: which calls are in it, and what it says was lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tcpkmon.formats.base.segments import find_segments
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.verify import verify_file
from tests.live.faults import RECEIVE_CALL
from tests.truth.soak.load import I64, Load

ROUND_S = 0.5


class Book:
    """Which calls of a load were recorded: by number, the last capture that has it, from 1."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.by = np.zeros(1 << 16, dtype=np.uint16)
        self.records = 0
        self.twice = 0
        """Calls that stand twice in one capture."""

    def add(self, numbers: I64, capture: int) -> None:
        """Enter the calls of one segment."""
        while len(numbers) and numbers.max() >= len(self.by):
            self.by = np.concatenate([self.by, np.zeros_like(self.by)])
        self.records += len(numbers)
        self.twice += len(numbers) - len(np.unique(numbers))
        self.twice += int((self.by[numbers] == capture).sum())
        self.by[numbers] = capture

    def missing(self) -> I64:
        """The numbers of the calls that no file has."""
        made = self.load.made()
        self.add(np.zeros(0, dtype=np.int64), 0)
        known = self.by[:made]
        return np.concatenate([np.flatnonzero(known == 0), np.arange(len(known), made)])


class Books:
    """All segments of a folder, read as they are sealed, before retention takes them."""

    def __init__(self, folder: Path, loads: Sequence[Load]) -> None:
        self.books = [Book(load) for load in loads]
        self.segments = 0
        self.counted: dict[str, int] = {}
        """Calls that the files say are not in them, by cause."""
        self.problems: list[str] = []
        self._folder = folder
        self._read: set[str] = set()
        self._captures: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def captures(self) -> int:
        """How many captures wrote the segments."""
        return len(self._captures)

    def finish(self) -> None:
        """Read what is left."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            stopping = self._stop.is_set()
            if self._folder.is_dir():
                self._look()
            if stopping:
                return
            self._stop.wait(ROUND_S)

    def _look(self) -> None:
        for segment in find_segments(self._folder):
            if segment.sealed and segment.name not in self._read:
                self._read.add(segment.name)
                try:
                    # The name may go at any time; the file stays while it is open.
                    with segment.path(self._folder).open("rb") as file:
                        self._enter(segment.name, f"/proc/self/fd/{file.fileno()}")
                except FileNotFoundError:
                    self.problems.append(f"{segment.name} was deleted before it was read")
                except Exception as error:
                    self.problems.append(f"{segment.name}: {error!r}")

    def _enter(self, name: str, path: str) -> None:
        report = verify_file(path)
        if report.problems:
            self.problems.append(f"{name}: {report.problems[0].what}")
        for row in report.rows:
            if row.location == RECEIVE_CALL:
                for cause, number in (*row.lost.items(), ("limited", row.limited)):
                    self.counted[cause] = self.counted.get(cause, 0) + number
        with open_capture(path) as capture:
            key = str(capture.settings["segment"]["capture"])
            number = self._captures.setdefault(key, len(self._captures) + 1)
            calls = capture.column("location") == RECEIVE_CALL
            ports = [capture.column(name)[calls] for name in ("lport", "rport")]
            lengths = capture.column("callvalue")[calls].astype(np.int64)
            mono = capture.mono_ns()
            assert mono is not None, os.fspath(path)
            mono = mono[calls].astype(np.int64)
        self.segments += 1
        for book in self.books:
            here = ((ports[0] == book.load.port) | (ports[1] == book.load.port)) & (lengths > 0)
            book.add(book.load.numbers(lengths[here], mono[here]), number)
