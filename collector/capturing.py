# SPDX-License-Identifier: Apache-2.0
"""Controls Klogger captures from Python: start and stop them, mark, switch, run a workload.

This is the control half of Klogger's Perl module; formats/analysis/log.py is the other half. A
capture is a process `collect`, which is controlled through its control socket.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tcpkmon.collector.control import choosing, client
from tcpkmon.collector.linux import isolated
from tcpkmon.collector.linux.waiting import readable
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

_MB = 1 << 20
INTERRUPTED_S = 5.0


class Control:
    """A running capture of any process; see attach(). Needs root, or its control group.

    Each call raises TcpkmonError when the capture refuses it, or has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def status(self) -> dict[str, Any]:
        """The values of `tcpkmon status`: events, their counts, losses, buffers."""
        return self._client().status()

    def enable(self, *events: str) -> None:
        """Switch these events on; without any: switch logging on."""
        self._client().enable(events or None)

    def disable(self, *events: str) -> None:
        """Switch these events off; without any: switch logging off, until enable()."""
        self._client().disable(events or None)

    def mark(self, number: int) -> None:
        """Log MARK with this number (0 to 2^64 - 1) and this process's PID."""
        self._client().mark(number)

    def set_buffer_size(self, megabytes: float) -> float:
        """Give each CPU a buffer of at most that size; returns its size. Only after disable()."""
        result = self._client().set_buffer_bytes(int(megabytes * _MB))
        return float(result["buffer_bytes"]) / _MB

    def set_low_water(self, percent: int) -> None:
        """Drain the buffers when less than this share of one is free. Only after disable()."""
        self._client().set_low_water(percent)

    def _client(self) -> client.Client:
        return client.Client(choosing.choose(self.pid))


def attach(which: int | str | None = None) -> Control:
    """The capture of that PID or name, or the only one. UsageError: there is none, or several."""
    return Control(choosing.choose(which).pid)


@dataclass(frozen=True)
class Ended:
    """How a capture ended: its exit code, and its stderr (not escaped for a terminal)."""

    exit_code: int
    messages: str


class Capture(Control):
    """A capture that this process started; see start(). The end of a `with` stops it."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Any) -> None:
        super().__init__(process.pid)
        self.output = output
        self._process = process
        self._errors = errors
        self._ended: Ended | None = None

    def __fspath__(self) -> str:
        """Its output, so that tcpkmon.open() and the like take the capture itself."""
        return os.fspath(self.output)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def run_workload(self, command: Sequence[str], mark: int | None = None) -> int:
        """Run a command to its end during the capture; its exit code (-N: signal N ended it).

        mark: set a mark of this number before the command and after it. UsageError when the
        command cannot run.
        """
        if mark is not None:
            self.mark(mark)
        try:
            code = subprocess.run(list(command), check=False).returncode
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror}") from error
        if mark is not None:
            self.mark(mark)
        return code

    def stop(self, within_s: float | None = None) -> Ended:
        """Stop the capture, and wait until its log is complete.

        Raises the error that it ended with. Losses are an error only with --fail-on-loss.
        within_s: after so long it is killed, which is an error.
        """
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            raise TcpkmonError(f"the capture did not end within {within_s:g} s") from error
        return self.wait()

    def wait(self) -> Ended:
        """Wait until the capture ends by itself, after duration_s for example. Raises as stop()."""
        if self._ended is None:
            self._ended = self._wait()
            if self._ended.exit_code:
                raise _error(self._ended)
        return self._ended

    def _wait(self) -> Ended:
        code = self._process.wait()
        self._errors.seek(0)
        with self._errors:
            return Ended(code, self._errors.read().decode(errors="backslashreplace"))

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
            return
        if isinstance(error, KeyboardInterrupt):
            # The capture got the Ctrl-C too. After a second signal it would not drain all.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(INTERRUPTED_S)
        with suppress(TcpkmonError):  # the first error is the one to raise
            self.stop()


def start(
    schemata: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    duration_s: float | None = None,
    buffer_mb: float | None = None,
    low_water: int | None = None,
    force: bool = False,
    detached: bool = False,
    options: Sequence[str] = (),
) -> Capture:
    """Start a capture of schemata into the folder `output`; returns when all events are attached.

    schemata: names of shipped schemata, or folders. force: replace a log in that folder.
    detached: it goes on when this process and its terminal are gone. options: more options of
    `collect`. Needs root. When the capture cannot start, it raises the error and leaves nothing
    behind.
    """
    listed = [schemata] if isinstance(schemata, (str, os.PathLike)) else list(schemata)
    arguments = ["--format", "klogger", "-o", os.fspath(output)]
    for schema in listed:
        arguments += ["--schema", os.fspath(schema)]
    if duration_s is not None:
        arguments += ["--duration", f"{duration_s * 1000:.0f}ms"]
    if buffer_mb is not None:
        arguments += ["--buffer-size", str(buffer_mb)]
    if low_water is not None:
        arguments += ["--low-water", str(low_water)]
    arguments += ["--force"] * force + list(options)
    return launch(arguments, Path(output), detached=detached)


def launch(
    arguments: Sequence[str],
    output: Path,
    *,
    detached: bool = False,
    within_s: float | None = None,
) -> Capture:
    """Start `collect` with these arguments, of which `-o output` is one; see start().

    within_s: after so long it is killed, which is an error.
    """
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        ready, theirs = os.pipe()
        stack.callback(os.close, ready)
        try:
            process = subprocess.Popen(
                isolated.command(
                    "tcpkmon.collector.commands.collect", "--ready-fd", str(theirs), *arguments
                ),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                pass_fds=(theirs,), start_new_session=detached,
            )  # fmt: skip
        finally:
            os.close(theirs)
        capture = Capture(process, Path(output), os.fdopen(os.dup(errors.fileno()), "rb"))
        try:
            if not readable([ready], within_s):
                process.kill()
                raise TcpkmonError(f"the capture did not start within {within_s:g} s")
            is_ready = os.read(ready, 1) != b""  # no byte: it has ended
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if not is_ready:
        raise _error(capture._wait())
    return capture


def run_workload(
    command: Sequence[str],
    schemata: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    **options: Any,
) -> int:
    """Capture schemata while a command runs; the command's exit code. See start()."""
    with start(schemata, output, **options) as capture:
        return capture.run_workload(command)


def _error(ended: Ended) -> TcpkmonError:
    """The error of a capture that failed, from its exit code and its stderr."""
    lines = [line.removeprefix("collect: ") for line in ended.messages.splitlines()]
    message = "\n".join(lines) or f"the capture ended with exit code {ended.exit_code}"
    return client.ERRORS.get(ended.exit_code, TcpkmonError)(message)
