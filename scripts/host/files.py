# SPDX-License-Identifier: Apache-2.0
"""H4: reads of a file, cold and again, and read-ahead, beside mincore()."""

from __future__ import annotations

import os
import random

from scripts.experiments.context import Context
from scripts.host.checks import agree, figures_of, tables_of
from scripts.host.monitor import recording
from tcpkmon.formats.analysis import Event, open_log
from tests.live.file_workload import PAGE, make_cold, resident

NAME = "H4"
TITLE = "H4: buffered reads"
PAGES = 2048
READS, QUICK_READS, IN_ORDER = 1000, 200, 100


def measure(context: Context) -> None:
    reads = int(context.pick(READS, QUICK_READS))
    context.say(f"{NAME}: {reads} cold reads of a page, and again")
    fd = make_cold(context.folder / "cold", PAGES)
    if resident(fd):
        context.results.skip(NAME, "all", "this file system keeps its files in memory")
        return
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    places = [page * PAGE for page in random.Random(4).sample(range(PAGES), reads)]
    with recording(context.folder, "disk") as log:
        for _ in range(2):
            for place in places:
                os.pread(fd, PAGE, place)
        in_cache = resident(fd)
    found = _reads(log, fd)
    results = context.results
    agree(results, NAME, "cold reads", len(found[:reads]), reads)
    agree(results, NAME, "of these hits", sum(one["hit"] for one in found[:reads]), 0)
    agree(results, NAME, "of the same again hits", sum(one["hit"] for one in found[reads:]), reads)
    agree(results, NAME, "pages added to the cache, mincore",
          sum(one["added"] for one in found) // PAGE, in_cache)  # fmt: skip
    os.close(fd)
    fd = make_cold(context.folder / "cold2", PAGES)
    with recording(context.folder, "disk") as log:
        for page in range(IN_ORDER):
            os.pread(fd, PAGE, page * PAGE)
        in_cache = resident(fd)
    ahead = sum(one["added"] for one in _reads(log, fd)) // PAGE - IN_ORDER
    agree(results, NAME, f"pages read ahead of {IN_ORDER} in order, mincore", ahead,
          in_cache - IN_ORDER)  # fmt: skip
    os.close(fd)


def _reads(log: object, fd: int) -> list[Event]:
    inode = os.fstat(fd).st_ino
    with open_log(str(log)) as events:
        where = [f"inode={inode}", f"tgid={os.getpid()}"]
        return list(events.choose("FILE_READ", where=where))


figures, tables = figures_of(NAME), tables_of(NAME)
