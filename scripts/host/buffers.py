# SPDX-License-Identifier: Apache-2.0
"""U5: buffers that are too small: what is lost adds up, and can be left out of the report."""

from __future__ import annotations

import json

from scripts.experiments.context import Context, tell
from scripts.host import floods
from scripts.host.checks import agree, bound, figures_of, tables_of
from tcpkmon.collector import capturing
from tcpkmon.collector.commands.history.monitor import GROUPS

NAME = "U5"
TITLE = "U5: lost events"
RING_MB = 16384 / (1 << 20)
"""The least."""
RUNS = 5


def measure(context: Context) -> None:
    context.say(f"{NAME}: page faults into rings of 16 KiB")
    log = context.folder / "small"
    options = ["--quiet", "--locations", ",".join(GROUPS[3][2])]
    with capturing.start("paging", log, buffer_mb=RING_MB, force=True, options=options):
        for _ in range(RUNS):
            floods.faults()
    told = json.loads(tell("verify", "--json", log))
    lost = sum(one["lost_total"] for one in told["files"] if "dump.cpu" in one["path"])
    whole, part = (
        json.loads(tell("condense", "--json", *words, log))["head"]
        for words in ((), ("--discard-lossy", "0"))
    )
    results = context.results
    bound(results, NAME, "events lost, by the ledger", lost, least=1)
    agree(results, NAME, "sum of the buffers' lost events: the ledger's", whole["lost"], lost)
    agree(results, NAME, "buffers left out by default", whole["discarded_buffers"], 0)
    left_out = part["discarded_buffers"]
    bound(results, NAME, "buffers left out by --discard-lossy 0", left_out, least=1)
    agree(results, NAME, "events reported and left out: all", part["events"]
          + part["discarded_events"], whole["events"])  # fmt: skip


figures, tables = figures_of(NAME), tables_of(NAME)
