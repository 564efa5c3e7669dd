# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what reads files and requests from others: scripts/fuzz.

Each target of tests/fuzz/targets.py runs in a child process. This process watches it: 5 s of CPU
time for one input is a hang. A target that writes text in C runs a second time, in a child with
the address and undefined sanitizers.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from unittest.mock import patch

from tests.fuzz.coverage import atheris, instrumented

with instrumented():
    from tests.fuzz import worker
    from tests.fuzz.seeds import CORPUS, KINDS, seeds
    from tests.fuzz.targets import TARGETS, Target
    from tests.fuzz.worker import HANG_S, Job, Watch

ROOT = Path(__file__).resolve().parents[2]
LINES = ROOT / "formats" / "lines" / "lines.c"
FULL_RUNS = 1_000_000
SANITIZED = "sanitized-"
_SANITIZED_SHARE = 0.2
_WALL_S = 120.0
"""An input that waits so long hangs too, even if it takes no CPU time."""
_POLL_S = 0.1
_MOST_TRIES = 50
_MODULES = (
    "tcpkmon.formats.analysis",
    "tcpkmon.formats.anonymise",
    "tcpkmon.formats.commands.decode",
    "tcpkmon.formats.commands.export",
    "tcpkmon.formats.commands.pmgraph",
    "tcpkmon.formats.commands.repair",
    "tcpkmon.formats.commands.verify",
    "tcpkmon.formats.base.table_file",
    "tcpkmon.formats.export.table_folder",
    "tcpkmon.formats.klogger.logs",
    "tcpkmon.formats.klogger.lines",
    "tcpkmon.formats.klogger.tables",
    "tcpkmon.formats.pmgraph.figure",
    "tcpkmon.formats.pmgraph.gaps",
    "tcpkmon.formats.pmgraph.pages",
    "tcpkmon.formats.pmgraph.quantities",
    "tcpkmon.formats.pmgraph.terminal",
    "tcpkmon.formats.pmgraph.text",
    "tcpkmon.formats.pmgraph.xgraph",
    "tcpkmon.formats.psc.lines",
    "tcpkmon.formats.psc.reader",
    "tcpkmon.formats.psc.tables",
    "tcpkmon.formats.schema",
    "tcpkmon.formats.verify",
    "tcpkmon.collector.control.server",
)


@dataclass
class Running:
    """A job under way, and its process."""

    job: Job
    pid: int
    began_s: float
    seen: tuple[float, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    asked.found.mkdir(parents=True, exist_ok=True)
    if asked.job:
        worker.work(_sanitized_job(asked))
    with (
        patch.dict(os.environ),  # tests call this, too
        tempfile.TemporaryDirectory(prefix="tcpkmon-fuzz-", dir=_memory_folder()) as folder,
    ):
        os.environ["TCPKMON_FUZZ_TMP"] = folder
        if asked.reproduce:
            return _reproduce(asked, Path(folder))
        with instrumented():
            for name in _MODULES:
                importlib.import_module(name)
        jobs = _jobs(asked, Path(folder))
        guided = "by coverage (atheris)" if atheris else "at random (no atheris here)"
        _say(f"{len(jobs)} jobs, inputs chosen {guided}, seed {asked.seed}")
        done = _run(jobs, asked)
        return _report(done, asked)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("fuzz", description="Fuzz the readers, the control protocol "
                                     "and the configuration language.")  # fmt: skip
    today = int(f"{datetime.now(timezone.utc):%Y%m%d}")
    add = parser.add_argument
    add("--seconds", type=float, default=60, help="how long, in all (default 60)")
    add("--full", action="store_true", help="a million runs, however long they take")
    add("--runs", type=int, help="as many runs as this, however long they take")
    add("--only", metavar="TARGET,...", help=f"of {', '.join(TARGETS)}")
    add("--seed", type=int, default=today, help="of the changes (default: today's date)")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: the CPUs)")
    add("--found", type=Path, default=ROOT / "tests" / "fuzz" / "found", help="for findings")
    add("--corpus", type=Path, help="a folder that keeps what coverage found, for the next run")
    add("--reproduce", type=Path, metavar="FILE", help="run a finding, or a file of the corpus")
    add("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    asked.found = asked.found.resolve()
    asked.began = int(time.time())  # as coarse as the times of files may be
    if asked.full:
        asked.runs = FULL_RUNS
    chosen = asked.only.split(",") if asked.only else list(TARGETS)
    if unknown := [name for name in chosen if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    asked.chosen = chosen
    return asked


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# Jobs


def _jobs(asked: argparse.Namespace, folder: Path) -> list[Job]:
    """A job for each target; then the sanitized ones, which begin with what those found."""
    corpus = asked.corpus or folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    inputs = {kind: list(seeds(kind).values()) for kind in KINDS}
    sanitizer = _can_sanitize(folder)
    guided = atheris is not None
    wanted: list[tuple[str, Target, float, bool]] = []
    for name in asked.chosen:
        one = TARGETS[name]
        if name != "lines" or not sanitizer:
            wanted.append((name, one, one.share, guided and name != "lines"))
    for name in asked.chosen:
        one = TARGETS[name]
        if one.in_c and sanitizer:
            share = one.share * (1 if name == "lines" else _SANITIZED_SHARE)
            wanted.append((SANITIZED + name, one, share, False))
    total = sum(share for _, _, share, _ in wanted)
    rounds = -(-len(wanted) // asked.jobs)
    return [
        Job(
            name, one, inputs[one.kind], asked.found, corpus / name.removeprefix(SANITIZED),
            asked.seed + number,
            runs=math.ceil(asked.runs * share / total) if asked.runs else 1 << 40,
            seconds=1e9 if asked.runs else asked.seconds / rounds,
            guided=by_coverage,
        )
        for number, (name, one, share, by_coverage) in enumerate(wanted)
    ]  # fmt: skip


def _can_sanitize(folder: Path) -> bool:
    """Compile lines.c with the sanitizers, under the name that find_library() looks for."""
    if shutil.which("gcc") is None:
        _say("no gcc: nothing runs under the sanitizers")
        return False
    library = folder / f"_lines{sysconfig.get_config_var('EXT_SUFFIX')}"
    os.environ["TCPKMON_FUZZ_LINES"] = str(library)
    subprocess.run(
        ["gcc", "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         LINES, "-o", library],
        check=True,
    )  # fmt: skip
    return True


def _preloaded() -> str:
    """The sanitizer's library, and that of C++: without it, the first exception that Arrow throws
    ends the process, as the sanitizer looked for what throws before Arrow was loaded."""
    asked = [["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    found = [subprocess.run(one, capture_output=True, text=True, check=True) for one in asked]
    return " ".join(one.stdout.strip() for one in found)


def _sanitized_job(asked: argparse.Namespace) -> Job:
    """The job of this process, whose program started it with the sanitizers' library."""
    from tcpkmon.formats.lines import native

    name, runs, seconds, memory, corpus = asked.job.split(",", 4)
    native.__file__ = os.environ["TCPKMON_FUZZ_LINES"]  # find_library() looks beside it
    target = TARGETS[name]
    inputs = [asked.reproduce.read_bytes()] if asked.reproduce else seeds(target.kind).values()
    return Job(
        SANITIZED + name, target, list(inputs), asked.found, Path(corpus), asked.seed, int(runs),
        float(seconds), replay=bool(asked.reproduce), watch=Watch(int(memory)),
    )  # fmt: skip


# Running them


def _start(job: Job, asked: argparse.Namespace) -> Running:
    job.watch.again()
    pid = os.fork()
    if pid:
        return Running(job, pid, time.monotonic())
    try:
        if job.name.startswith(SANITIZED):
            _become_sanitized(job, asked)
        worker.work(job)
    finally:
        os._exit(1)


def _become_sanitized(job: Job, asked: argparse.Namespace) -> None:
    os.set_inheritable(job.watch.fd, True)
    name = job.name.removeprefix(SANITIZED)
    told = f"{name},{job.runs},{job.seconds},{job.watch.fd},{job.work}"
    arguments = [sys.executable, "-I", str(ROOT / "scripts" / "fuzz"), "--job", told]
    arguments += ["--found", str(job.found), "--seed", str(job.seed)]
    if job.replay:
        arguments += ["--reproduce", str(asked.reproduce)]
    options = "detect_leaks=0:allocator_may_return_null=1"
    environment = os.environ | {"LD_PRELOAD": _preloaded(), "ASAN_OPTIONS": options}
    environment["TCPKMON_FUZZ_SANITIZED"] = "1"
    os.execve(sys.executable, arguments, environment)


def _run(jobs: Sequence[Job], asked: argparse.Namespace) -> list[tuple[Job, float]]:
    """Run all jobs, and return each with the seconds that it took. Hangs and crashes are found."""
    waiting, running = list(jobs), list[Running]()
    took = {job.name: 0.0 for job in jobs}
    while waiting or running:
        while waiting and len(running) < asked.jobs:
            running.append(_start(waiting.pop(0), asked))
        time.sleep(_POLL_S)
        for one in list(running):
            ended = _ended(one)
            if ended is None:
                continue
            running.remove(one)
            spent = time.monotonic() - one.began_s
            took[one.job.name] += spent
            one.job.seconds -= spent
            one.job.seed += 1
            left = one.job.watch.look()[0] < one.job.runs and one.job.seconds > 1
            if not ended and left and not one.job.replay:
                one.job.tries += 1
                if one.job.tries < _MOST_TRIES:
                    waiting.insert(0, one.job)
                else:
                    _say(f"{one.job.name} ended {_MOST_TRIES} times: not started again")
    return [(job, took[job.name]) for job in jobs]


def _ended(one: Running) -> bool | None:
    """Whether a job is done; False: start it again; None: it runs."""
    before, one.seen = one.seen, one.job.watch.look()
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    if pid:
        code = os.waitstatus_to_exitcode(status)
        if code in (0, worker.AGAIN):
            return not code
        _note(one.job, f"crash.exit{code}")
        return False
    if before != one.seen or one.job.watch.input() is None:
        return None
    _, _, cpu_s, at_s = one.seen
    # The clock of another process: see clock_getcpuclockid().
    spent = time.clock_gettime(~one.pid << 3 | 2) - cpu_s
    if spent <= HANG_S and time.monotonic() - at_s <= _WALL_S:
        return None
    if one.job.watch.look() != one.seen:  # this process had no CPU meanwhile
        return None
    os.kill(one.pid, signal.SIGUSR1)  # faulthandler writes where it is
    time.sleep(0.5)
    os.kill(one.pid, signal.SIGKILL)
    os.waitpid(one.pid, 0)
    _note(one.job, "hang")
    return False


def _note(job: Job, what: str) -> None:
    """A finding that the worker could not write: the input that ran, and its log's end."""
    log = job.work.with_suffix(".log").read_text(errors="replace")
    log = re.sub("^Extension modules: .*", "", log, flags=re.MULTILINE)[-8000:]  # of faulthandler
    data = job.watch.input()
    frames = re.findall(r'File ".*/(?:formats|collector)/.*?(\w+)\.py", line (\d+) in (\w+)', log)
    where = "." + ".".join(frames[0]) if frames else ""
    job.watch.again()
    job.watch.runs += 1
    job.watch.findings += 1
    job.watch.leave()
    worker.write_finding(job, what + where, data or b"", log)


# Reports


def _report(done: Sequence[tuple[Job, float]], asked: argparse.Namespace) -> int:
    total = failed = 0
    for job, took in done:
        runs, findings, _, _ = job.watch.look()
        total += runs
        failed += findings
        bad = f", {findings:,} FAILED" if findings else ""
        _say(f"{job.name:24} {runs:9,} runs {runs / max(took, 0.01):9,.0f}/s{bad}")
    every = (path for path in asked.found.iterdir() if path.suffix != ".txt")
    listed = sorted(path for path in every if path.stat().st_mtime >= asked.began)
    for path in listed:
        reason = path.with_name(path.name + ".txt").read_text().rstrip().splitlines()[-1]
        _say(f"found: {reason[:200]}")
        _say(f"       scripts/fuzz --reproduce {os.path.relpath(path)}")
    _say(f"{total:,} runs, seed {asked.seed}, {failed:,} failed, {len(listed)} kinds of findings")
    return 1 if failed else 0


def _reproduce(asked: argparse.Namespace, folder: Path) -> int:
    """Run a finding's target, or each target of the kind of a file in the corpus."""
    path = asked.reproduce.resolve()
    name = path.name.partition(".")[0]
    kind = path.parent.name if path.is_relative_to(CORPUS) else ""
    names = [name] if name.removeprefix(SANITIZED) in TARGETS else asked.chosen
    asked.found = folder / "found"
    asked.found.mkdir()
    if name.startswith(SANITIZED):
        _can_sanitize(folder)
    jobs = [
        Job(one, target, [path.read_bytes()], asked.found, folder / one, asked.seed, 1, 60.0,
            replay=True)
        for one in names
        if not kind or TARGETS[one].kind == kind
        if (target := TARGETS[one.removeprefix(SANITIZED)])
    ]  # fmt: skip
    _run(jobs, asked)
    found = sorted(asked.found.glob("*.txt"))
    for report in found:
        _say(f"{report.stem}\n{report.read_text()}")
    _say(f"{len(jobs)} target(s) ran, {len(found)} failed")
    return 1 if found else 0


def _say(text: str) -> None:
    print(f"fuzz: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
