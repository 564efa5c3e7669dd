# SPDX-License-Identifier: Apache-2.0
"""A run of some measurements, from the programs that it needs to the results."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.experiments import machine, peers
from scripts.experiments.context import ROOT, Context
from scripts.experiments.load import compile_load
from scripts.experiments.results import Results
from tcpkmon.collector.loader.prepare import check_privilege
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError

UNFINISHED = "the rest of this section"


def chosen(only: str | None, known: Collection[str], what: str) -> list[str]:
    """The names in --only, in their usual order; [] without it."""
    wanted = [name.strip() for name in (only or "").split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        raise UsageError(f"no such {what}: {unknown[0]}", f"there are {', '.join(known)}")
    return [name for name in known if name in wanted]


@contextlib.contextmanager
def context_of(
    results: Results, folder: str | None, programs: Sequence[str]
) -> Iterator[Context]:
    """A run with these programs, installed, and the load, compiled."""
    with tempfile.TemporaryDirectory(prefix="tcpkmon-bench-", dir=folder or "/var/tmp") as place:
        context = Context(results.rounds, results.quick, Path(place), results)
        context.missing = peers.install(programs, context.say)
        for name, reason in context.missing.items():
            context.say(f"{name}: {reason}")
        results.machine = machine.describe(ROOT)
        context.load_program = compile_load(context.folder)
        yield context


def measure(
    results: Results,
    measures: Mapping[str, Callable[[Context], None]],
    folder: str | None,
    programs: Sequence[str],
) -> None:
    """Runs these, by the names of their sections, and adds what they took to the results."""
    check_privilege()
    with context_of(results, folder, programs) as context:
        for name, one in measures.items():
            begun = time.monotonic()
            try:
                one(context)
            except (TcpkmonError, ValueError, OSError, subprocess.SubprocessError) as error:
                # The values so far are kept.
                context.say(f"{name}: {error}")
                results.skip(name, UNFINISHED, str(error))
            results.seconds[name] = round(time.monotonic() - begun, 1)
        total = sum(results.seconds.values())
        context.say(f"done: {total:.0f} s of measuring")
    each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in results.seconds.items())
    results.machine["time taken"] = f"{total:.0f} s ({each})"


def is_whole(results: Results) -> bool:
    """Whether each section was measured to its end."""
    return not any(UNFINISHED in cases for cases in results.skipped.values())


def read(path: str) -> Results:
    """The results that --json wrote."""
    try:
        return Results.from_json(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{path}: {error}") from None
