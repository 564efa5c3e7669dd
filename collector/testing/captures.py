# SPDX-License-Identifier: Apache-2.0
"""The value of the fixture tcpkmon: starts captures around blocks of a test."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tcpkmon.collector import capturing
from tcpkmon.collector.commands.arguments import arguments_of
from tcpkmon.collector.testing.baseline import Baseline
from tcpkmon.collector.testing.captured import Captured
from tcpkmon.collector.testing.watch import Choose, Watch, choice_of_ports
from tcpkmon.formats.base.errors import PrivilegeError, TcpkmonError, UsageError

_FOLDER_FORMAT = "klogger"
_LATENCY = {"schema": ("tcp", "magnet"), "using": "driver", "format": "klogger"}
"""What latency=True stands for."""


class Captures:
    """Captures of one test. paths: those that have begun, in order.

    baseline: the file of values that captures are compared with, None for none; store: values are
    stored in it instead. require: a test that cannot capture fails, where it would be skipped.
    collector: without root, the capture to look at, by PID or name.
    """

    def __init__(
        self, folder: Path, test: str, *, baseline: Path | None = None, store: bool = False,
        require: bool = False, collector: str | None = None,
    ) -> None:  # fmt: skip
        self.paths: list[Path] = []
        self._folder = folder
        self._baseline = None if baseline is None else Baseline(baseline, test, store)
        self._require = require
        self._collector = collector

    def capture(
        self, name: str = "", *, latency: bool = False, **options: Any
    ) -> AbstractContextManager[Captured]:
        """Capture while a block runs: all is attached when it begins, all is drained at its end.

        name: of the file, and of its values in the baseline. latency: also what .latency needs.
        options: those of collect. Skips the test where this process may not capture. Raises
        UsageError for a wrong option; the block raises the errors of collect.
        """
        __tracebackhide__ = True
        if os.path.basename(name) != name:
            raise UsageError(f"{name!r} is no name of a file")
        name = name or "capture" + (f"-{len(self.paths) + 1}" if self.paths else "")
        arguments = arguments_of({**_LATENCY, **options} if latency else options)
        if os.geteuid() != 0:
            return self._watch(name, options, latency)
        is_folder = _FOLDER_FORMAT in arguments
        path = self._folder / (name if is_folder else f"{name}.pm")
        return self._run(name, path, ["--quiet", "--force", "-o", str(path), *arguments])

    @contextmanager
    def _run(self, name: str, path: Path, words: Sequence[str]) -> Iterator[Captured]:
        __tracebackhide__ = True
        try:
            running = capturing.launch(words, path)
        except PrivilegeError as error:
            self._refuse(str(error))
        self.paths.append(path)
        capture = Captured(path, name, self._baseline, running)
        with running:
            yield capture
        capture.finish()

    def _watch(
        self, name: str, options: dict[str, Any], latency: bool
    ) -> AbstractContextManager[Captured]:
        __tracebackhide__ = True
        try:
            ports = choice_of_ports(options, latency)
            watch = Watch.choose(self._collector)
        except PrivilegeError as error:
            self._refuse(str(error))
        return self._run_beside(name, watch, ports)

    @contextmanager
    def _run_beside(self, name: str, watch: Watch, ports: Choose) -> Iterator[Captured]:
        path = self._folder / f"{name}.pm"
        capture = Captured(path, name, self._baseline, watch)
        watch.begin()
        try:
            yield capture
        except BaseException:
            with suppress(TcpkmonError, OSError):  # the first error is the one to raise
                watch.finish(path)
                self.paths.append(path)
            raise
        proof = watch.finish(path)
        self.paths.append(path)
        capture.finish(proof, ports)

    def _refuse(self, why: str) -> NoReturn:
        __tracebackhide__ = True
        why = f"tcpkmon cannot capture: {why}"
        if self._require:
            pytest.fail(f"{why} (--tcpkmon-require)", pytrace=False)
        pytest.skip(why)
