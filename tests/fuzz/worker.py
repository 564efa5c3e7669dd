# SPDX-License-Identifier: Apache-2.0
"""Runs one target over many inputs in a process of its own, watched by tests/fuzz/main.py.

atheris chooses the inputs by what they cover; without it they are the corpus, changed at random.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import mmap
import os
import random
import re
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.coverage import atheris
from tests.fuzz.mutate import mend, mutate
from tests.fuzz.targets import Target

MOST_BYTES = 32 << 10
"""Inputs are no larger."""
HANG_S = 5.0
MEMORY_BYTES = 1 << 30
_SHRINK_S = 2.0
_PR_SET_PDEATHSIG = 1
AGAIN = 75
"""Exit code of a worker whose process is no measure any more: start another."""


class Watch:
    """Memory that worker and parent share: the input that runs, since when, and how many ran."""

    _HEAD = struct.Struct("=QQqdd")  # runs, findings, bytes of the input or -1, CPU time, time

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("watch", 0) if fd is None else fd
        os.truncate(self.fd, 4096 + MOST_BYTES)
        self.memory = mmap.mmap(self.fd, 4096 + MOST_BYTES)
        self.again()

    def again(self) -> None:
        """Go on counting where an earlier process stopped."""
        self.runs, self.findings, _, _ = self.look()
        self.leave()

    def enter(self, data: bytes) -> None:
        self.memory[4096 : 4096 + len(data)] = data
        self._note(len(data))

    def leave(self) -> None:
        self._note(-1)

    def _note(self, size: int) -> None:
        values = self.runs, self.findings, size, time.process_time(), time.monotonic()
        self._HEAD.pack_into(self.memory, 0, *values)

    def look(self) -> tuple[int, int, float, float]:
        """Runs, findings, CPU time and time at which the input began. May be torn: look twice."""
        runs, findings, _, cpu_s, at_s = self._HEAD.unpack_from(self.memory)
        return runs, findings, cpu_s, at_s

    def input(self) -> bytes | None:
        """The input that runs, None between two."""
        size = self._HEAD.unpack_from(self.memory)[2]
        return None if size < 0 else self.memory[4096 : 4096 + size]


@dataclass
class Job:
    """Inputs for one target: `runs` at most, `seconds` at most.

    inputs: what to start from. found: the folder for findings. work: atheris' corpus. guided:
    choose inputs by coverage. replay: run the inputs as they are, once.
    """

    name: str
    target: Target
    inputs: Sequence[bytes]
    found: Path
    work: Path
    seed: int
    runs: int
    seconds: float
    guided: bool = False
    replay: bool = False
    tries: int = 0
    watch: Watch = field(default_factory=Watch)


def work(job: Job) -> None:
    """Run the job in this process, and end the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # it ends with its parent
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
    log = os.open(job.work.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)
    random.seed(job.seed)
    runner = _Runner(job)
    if job.replay:
        for data in job.inputs:
            runner.run(data)
    elif job.guided:
        _guided(job, runner)
    else:
        _blind(job, runner)
    os._exit(0)


class _Runner:
    """Runs inputs, and writes down what is found."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._seen: set[str] = set()
        self._limit = _peak_bytes() + MEMORY_BYTES

    def run(self, data: bytes) -> None:
        job, watch = self._job, self._job.watch
        watch.enter(data)
        signature, text = self._try(data)
        watch.runs += 1
        if not signature and _peak_bytes() > self._limit:
            signature, text = "memory", f"more than {MEMORY_BYTES >> 20} MiB\n"
        watch.findings += bool(signature)
        watch.leave()
        if signature and signature not in self._seen:
            self._seen.add(signature)
            small = data if signature == "memory" or job.replay else self._shrink(data, signature)
            write_finding(job, signature, small, text)
        if signature == "memory":
            os._exit(AGAIN)

    def _try(self, data: bytes) -> tuple[str, str]:
        """What is wrong, and its traceback; empty if nothing is."""
        try:
            self._job.target.run(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return sign(error), traceback.format_exc()
        return "", ""

    def _shrink(self, data: bytes, signature: str) -> bytes:
        """A smaller input with the same finding, after two seconds at most."""
        end, size = time.monotonic() + _SHRINK_S, len(data) // 2
        while size:
            at = 0
            while at < len(data) and time.monotonic() < end:
                for less in (data[:at] + data[at + size :], mend(data[:at] + data[at + size :])):
                    self._job.watch.enter(less)
                    if self._try(less)[0] == signature:
                        data = less
                        break
                else:
                    at += size
            size //= 2
        self._job.watch.leave()
        return data


def sign(error: BaseException) -> str:
    """A name for a finding, the same for inputs that fail alike: where in our code it was."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if re.search("/(formats|collector)/", one.filename)]
    if isinstance(error, AssertionError) and frames[-1] not in ours:  # of a target
        words = re.sub(r"'.*?'|/\S*", "", str(error).partition("\n")[0].lower())
        return "wrong." + re.sub(r"[^a-z]+", "-", words)[:60].strip("-")
    last = (ours or frames)[-1]
    place = f"{Path(last.filename).stem}.{last.name.strip('<>')}.{last.lineno}"
    return f"{type(error).__name__}.{place}"


def write_finding(job: Job, signature: str, data: bytes, text: str) -> None:
    """FOUND/TARGET.SIGNATURE, and beside it the traceback; in place of an older one."""
    path = job.found / f"{job.name}.{signature}"
    path.write_bytes(data)
    path.with_name(f"{path.name}.txt").write_text(text)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _blind(job: Job, runner: _Runner) -> None:
    """The corpus, then its inputs changed at random."""
    end = time.monotonic() + job.seconds
    stored = job.work.iterdir() if job.work.exists() else ()
    inputs = [*job.inputs, *(path.read_bytes() for path in stored)]
    chance = random.Random(job.seed)
    for number in range(job.runs):
        if time.monotonic() > end:
            return
        data = inputs[number % len(inputs)]
        if number >= len(inputs):
            data = mutate(chance.choice(inputs), inputs, chance, MOST_BYTES)
        runner.run(data[:MOST_BYTES])


def _guided(job: Job, runner: _Runner) -> None:
    job.work.mkdir(exist_ok=True)
    for data in job.inputs:
        name = hashlib.sha1(data).hexdigest()  # as libFuzzer names its files
        (job.work / name).write_bytes(data[:MOST_BYTES])
    chance = random.Random(job.seed)

    def change(data: bytes, most: int, seed: int) -> bytes:
        chance.seed(seed)
        if chance.random() < 0.2:
            return mend(atheris.Mutate(data, most))[:most]
        return mutate(data, job.inputs, chance, most)

    end = time.monotonic() + job.seconds

    def one_input(data: bytes) -> None:
        if job.watch.runs >= job.runs or time.monotonic() > end:
            os._exit(0)
        runner.run(data)

    options: dict[str, object] = {
        "seed": job.seed % 2**32 or 1, "runs": min(job.runs, 2**31 - 1),
        "max_len": MOST_BYTES, "len_control": 0,
        "timeout": 10**6, "rss_limit_mb": 0,  # main.py watches instead
    }  # fmt: skip
    signals = ("usr1", "segv", "abrt", "bus", "fpe", "ill", "int", "term")
    options |= {f"handle_{name}": 0 for name in signals}  # they are faulthandler's
    options["artifact_prefix"] = f"{job.work}."
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup(
        [sys.argv[0], *arguments, str(job.work)], one_input, custom_mutator=change,
        internal_libfuzzer=True,
    )  # fmt: skip
    atheris.Fuzz()
