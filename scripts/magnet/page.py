# SPDX-License-Identifier: Apache-2.0
"""All experiments, the command scripts/magnet-experiments, and docs/magnet.md with its picture."""

from __future__ import annotations

from pathlib import Path

from scripts.experiments.command import make_command
from scripts.experiments.paper import Paper, listed
from scripts.experiments.report import NONE, Section, Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.magnet import cascade, layers, loss, modulation, overhead, packets, state, stream
from scripts.magnet.wire import ANY, FAST, PACKETS, SLOW
from tcpkmon.formats import drawing

EXPERIMENTS = listed(overhead, loss, packets, stream, modulation, cascade, state, layers)
SHOWN_MS = 1000
SHOWN_PERCENT = (-5.0, 40.0)
"""Of the picture; more only where a mean is beyond."""
INTRODUCTION = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `sudo scripts/magnet-experiments --docs`: change scripts/magnet, not this page. -->
# The experiments of MAGNeT

MAGNeT (2001) recorded what each layer of the network stack does with an application's data, by a
patched kernel. `collect --schema magnet` records the same events on a kernel as it is. This page
has the experiments of its paper, run on {model}, with the paper's figures beside.
`sudo scripts/magnet-experiments --docs` makes it again.

Both ends are network namespaces of one machine of {cpus} CPUs, joined by a veth pair: they share
the CPUs with the collector, while in 2001 each end was a machine. "At the receiver" and "at the
sender" are filters (`--netns`). 100 Mbit/s and 1 Gbit/s: tbf at the sender. At 100 Mbit/s, and
where it says so, the stack makes packets of 1500 bytes, as in 2001; else a packet may have 64 KB
until it reaches the device, and one record counts its segments (gso_segs). M1 and M4: {rounds}
rounds, each case in turn with the others; M3: {half}. M1 to M4 write MAGNeT files with lean
records, unless it says otherwise; M5 to M8 Klogger logs. Rings have 4 MiB a CPU.

![What the layers do with writes of 10 KiB; throughput lost](images/{picture})

Left: the first second of M5. Middle: one of its writes, a line for each packet. Right: M1 with 95 %
confidence intervals, grey: 2001.
"""


def costs_of(results: Results) -> Table | None:
    """What an event costs, how much slower transfers are, and how many events a second are kept."""
    rows = []
    for part, what in ((packets.KERNEL, "in the kernel"), (packets.READER, "the collector's CPU")):
        cells = [packets.event_ns(results, part, case) for case in packets.OPTIONS]
        if all(cell is not None for cell in cells):
            rows.append([f"{what}, ns an event", *(number(cell or 0, 0) for cell in cells)])
    for work in (FAST, ANY, PACKETS):
        losses = [overhead.lost(results, case, work) for case in (overhead.LEAN, overhead.FULL)]
        known = [one.text(1, " %") for one in losses if one is not None]
        if len(known) == len(losses):
            rows.append([f"throughput lost, both ends recorded: {work}", *known])
    for case in loss.FLOODS:
        rate, lost = (results.median(loss.NAME, one, case) for one in (loss.RATE, loss.LOST))
        if rate is not None:
            text = f"{number(rate, 0)}, {number(lost or 0, 0)} lost"
            rows.append([f"events/s, {case}", text, NONE])
    if not rows:
        return None
    return Table("What recording costs", ("", "lean record", "--data"), rows,
                 "An event: kernel and collector of M3, divided by the events. Throughput: M1. "
                 "Events/s: M2, as fast as this machine makes them.")  # fmt: skip


def more(results: Results) -> list[Section]:
    """The costs, where they were measured."""
    costs = costs_of(results)
    return [(costs.title, [costs], [])] if costs else []


def words(results: Results) -> dict[str, object]:
    return {"half": packets.rounds_of(results.rounds)}


def draw(results: Results, path: Path) -> None:
    """M5, the path of one of its writes, and the losses of M1 beside those of 2001."""
    with drawing.styled():
        figure = drawing.new_figure()
        figure.set_size_inches(12, 3.8)
        axes = figure.subplots(1, 3)
        for draw_one, one in zip((_draw_sizes, _draw_path, _draw_losses), axes, strict=True):
            draw_one(results, one)
        drawing.save_figure(figure, path, force=True)


def _draw_sizes(results: Results, axes: drawing.Axes) -> None:
    shown = {"SOCK_SEND": "o", "DEV_SEND": "|", "SOCK_RECV": "x"}
    for (layer, mark), colour in zip(shown.items(), drawing.PALETTE, strict=False):
        at = modulation.column(results, modulation.AT, layer)
        size = modulation.column(results, modulation.SIZE, layer)
        early = at < SHOWN_MS
        axes.plot(at[early], size[early], mark, color=colour, label=layer, fillstyle="none")
    axes.set(xlabel="ms", ylabel="bytes", title="M5: 10 KiB every 200 ms, by layer")
    axes.legend(loc="upper center", ncols=len(shown), bbox_to_anchor=(0.5, 0.93))


def _draw_path(results: Results, axes: drawing.Axes) -> None:
    """A line for each packet, from layer to layer."""
    layers = results.values.get(modulation.NAME, {}).get(modulation.PATH, {})
    for packet, times in enumerate(zip(*layers.values(), strict=True)):
        colour = drawing.PALETTE[packet % len(drawing.PALETTE)]
        axes.plot(times, range(len(layers)), ".-", color=colour, linewidth=0.9, markersize=4)
    axes.set_yticks(range(len(layers)), list(layers))
    axes.invert_yaxis()
    axes.set(xlabel="us since the application's call", title="M5: the packets of one write")


def _draw_losses(results: Results, axes: drawing.Axes) -> None:
    rows = [(work, case) for work in (SLOW, FAST) for case in overhead.PAPER[work]]
    shown = [*SHOWN_PERCENT]
    for place, (work, case) in enumerate(rows):
        first = place == 0
        loss = overhead.lost(results, case, work)
        axes.barh(place, overhead.PAPER[work][case], 0.6, color="0.8",
                  label="2001" if first else None)  # fmt: skip
        if loss is not None:
            shown.append(loss.value)
            around = [[loss.value - loss.low], [loss.high - loss.value]]
            axes.errorbar(loss.value, place, xerr=around, fmt="o", markersize=3, capsize=2.5,
                          color=drawing.PALETTE[0], label="here" if first else None)  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{work}: {case}" for work, case in rows])
    axes.set(xlabel="percent", title="M1: throughput lost", xlim=(min(shown), max(shown)))
    axes.invert_yaxis()
    axes.legend()


PAPER = Paper(
    "magnet-experiments", "2001", EXPERIMENTS, ("tcpdump", "cc"), "magnet.md", "magnet.png",
    INTRODUCTION, words, draw, more,
)  # fmt: skip
command = make_command(
    PAPER,
    """Run the experiments of MAGNeT's paper of 2001, on a machine that does nothing else.

    Two network namespaces are both ends; as root. Exits with 1 if an experiment failed to run.
    """,
    "M1, M3 and M4",
    "in two minutes",
)
