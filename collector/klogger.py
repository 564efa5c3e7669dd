# SPDX-License-Identifier: Apache-2.0
"""Controls Klogger captures from Python: start and stop them, mark, switch, run a workload inside.

What was the control half of Klogger's Perl module; formats/analysis/log.py is the other. A
capture is a `collect` of its own, which is asked through its control socket.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from collector.control import client
from formats.base.errors import TcpkmonError, UsageError

# The same modules as here, and none from the folder that it happens to run in.
_COLLECT = """
import sys
sys.path[:] = sys.argv.pop(1).split(":")
sys.argv[0] = "collect"
from collector.commands.collect import main
main()
"""
_MB = 1 << 20
INTERRUPTED_S = 5.0


class Control:
    """A capture that runs, whoever started it; see attach(). Needs root, or its control group.

    Each call raises TcpkmonError with what the capture answers, or when it has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def status(self) -> dict[str, Any]:
        """What `tcpkmon status` shows: events, their counts, losses, buffers."""
        return self._client().status()

    def enable(self, *events: str) -> None:
        """Log these events again; none named: log again at all."""
        self._client().enable(events or None)

    def disable(self, *events: str) -> None:
        """Do not log these events; none named: log nothing, until enable()."""
        self._client().disable(events or None)

    def mark(self, number: int) -> None:
        """Log MARK with this number (0 to 2^64 - 1) and this process's PID."""
        self._client().mark(number)

    def set_buffer_size(self, megabytes: float) -> float:
        """Give each CPU a buffer of at most that size; the size it has now. After disable()."""
        told = self._client().set_buffer_bytes(int(megabytes * _MB))
        return float(told["buffer_bytes"]) / _MB

    def set_low_water(self, percent: int) -> None:
        """Empty the buffers when less than this share of one is free. After disable()."""
        self._client().set_low_water(percent)

    def _client(self) -> client.Client:
        return client.Client(client.choose(self.pid))


def attach(pid: int | None = None) -> Control:
    """The capture of that PID, or the only one that runs. UsageError when that is not clear."""
    return Control(client.choose(pid).pid)


@dataclass(frozen=True)
class Ended:
    """How a capture ended: its exit code, and what it said on stderr (not fit for a terminal)."""

    exit_code: int
    messages: str


class Capture(Control):
    """A capture that this process started; see start(). At the end of a `with` it is stopped."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Any) -> None:
        super().__init__(process.pid)
        self.output = output
        self._process = process
        self._errors = errors
        self._ended: Ended | None = None

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._process.poll() is None

    def run_workload(self, command: Sequence[str], mark: int | None = None) -> int:
        """Run a command to its end while the capture goes on; its exit code (-N: by signal N).

        mark: a number that is marked when the command starts, and again when it has ended.
        Raises UsageError if it cannot be run.
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

    def stop(self) -> Ended:
        """End the capture in order, and wait until its log is complete.

        Raises the error that it ended with; losses are none (but with --fail-on-loss).
        """
        if self._ended is None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
            self._ended = self._wait()
            if self._ended.exit_code:
                raise _error(self._ended)
        return self._ended

    def wait(self) -> Ended:
        """Wait until a capture ends by itself: after duration_s, say."""
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
            # Ctrl-C reached the capture too, and a second signal would make it hurry.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(INTERRUPTED_S)
        with suppress(TcpkmonError):  # what went wrong first is what matters
            self.stop()


def start(
    schemata: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    duration_s: float | None = None,
    buffer_mb: float | None = None,
    low_water: int | None = None,
    force: bool = False,
    options: Sequence[str] = (),
) -> Capture:
    """Start to log schemata into the folder `output`; returns when all events are attached.

    schemata: names of shipped ones or folders of one's own. force: replace a log that is there.
    options: more options of `collect`. Needs root. Raises the error that the capture ended with
    if it could not start; nothing is left behind then.
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
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        ready, told = os.pipe()
        stack.callback(os.close, ready)
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _COLLECT, ":".join(sys.path)),
                    *("--ready-fd", str(told), *arguments),
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                pass_fds=(told,),
            )  # fmt: skip
        finally:
            os.close(told)
        capture = Capture(process, Path(output), os.fdopen(os.dup(errors.fileno()), "rb"))
        try:
            is_ready = os.read(ready, 1) != b""  # a byte when attached, none when it has ended
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
    """Log schemata while a command runs, and stop; the command's exit code. See start()."""
    with start(schemata, output, **options) as capture:
        return capture.run_workload(command)


def _error(ended: Ended) -> TcpkmonError:
    """What the capture said last, as the error that it was."""
    lines = [line.removeprefix("collect: ") for line in ended.messages.splitlines()]
    message = "\n".join(lines) or f"the capture ended with exit code {ended.exit_code}"
    return client.ERRORS.get(ended.exit_code, TcpkmonError)(message)
