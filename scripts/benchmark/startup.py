# SPDX-License-Identifier: Apache-2.0
"""Section 4: from the command to its first record, and the memory that a capture takes."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

import formats
from collector import compiler, preparing
from collector.compiler import Image
from formats.control import EXISTING
from scripts.benchmark.context import Context, cpus
from scripts.benchmark.tools import COLLECT, WAIT_S

NAME = "start-up"
TITLE = "Start-up and memory"
CACHED = "program in the cache"
FRESH = "program compiled anew"
SUBJECTS = ("first record_s", "ready_s", "rss_mib", "compile_s")


def measure(context: Context) -> None:
    """Captures traffic that runs all the time, from an empty cache and from a filled one."""
    cache = context.folder / "cache"
    with context.lab() as (_, load):
        load.pin(*cpus())
        _start(context, cache)
        for number in range(context.rounds):
            context.say(f"{NAME}: round {number + 1} of {context.rounds}")
            for case in (CACHED, FRESH):
                if case == FRESH:
                    shutil.rmtree(cache, ignore_errors=True)
                # A little traffic all the time: start-up is measured, not the flood.
                load.start("receive 30 2000") if False else None
                found = _start(context, cache)
                for subject, value in found.items():
                    context.results.add(NAME, subject, case, value)
            context.results.add(NAME, "compile_s", FRESH, _compile_seconds())
