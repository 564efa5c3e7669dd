# SPDX-License-Identifier: Apache-2.0
"""What a capture may cost, and the steps in which it leaves out events to stay below that.

    step    leaves out
    1 ..    events, a group for a step: of the schema tcp LOCATIONS; of others those that their
            schema marks with the tags @shed1, @shed2 ...
    then    segments of the schema tcp that changed none of WATCHED, as --when-changed does
    then    connections, by a hash of their id: what stays is 1/2, 1/4 ... 1/64 of them. The id is
            conn_id, or the field with the tag @sample

A step that a capture has no use for is not one of its steps. Those in force are always the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.collector.plan.options import SIZE, TIME, option, quantity
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.schema import Event

LOCATIONS = (
    ("SEND_CALL", "RECEIVE_CALL", "RCV_SPACE_ADJUST"),
    ("TRANSMIT", "ACK_PROCESSED"),
    ("CONG_STATE", "LOSS_PROBE", "REO_TIMEOUT", "ZERO_WINDOW_PROBE", "CWND_UNDO"),
)
"""The application's calls, what other segments tell too, states and timers. Begin and end of
connections, segments received, retransmissions, resets, drops and errors stay."""
WATCHED = (
    "state", "ca_state", "snd_cwnd", "snd_ssthresh", "retrans_out", "lost_out", "sacked_out",
)  # fmt: skip
SEGMENTS = {"SEGMENT_RECEIVED", "SEGMENT_CLOSING", "TRANSMIT", "ACK_PROCESSED"}
"""The locations with the flag CHANGES in bpf/schemata/tcp.bpf.c."""
SAMPLES = 6
"""The last step leaves 1 / 2 ** SAMPLES of the connections."""
SAMPLE_TAG = "sample"
"""Of the field of an event that says which connection it is of; 0: of none."""
_SHED_TAG = re.compile(r"shed([1-9])")
_GOLDEN = 0x9E3779B97F4A7C15
_HASH_SHIFT = 64 - SAMPLES


def parse_cpu(text: str) -> float:
    """CPUs of a text such as 5% or 150%. UsageError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", text.strip())
    if not match or not 0 < float(match[1]) < 1e6:
        raise UsageError(f"not a share of a CPU: {text!r}", "write 5%; 100% is one CPU")
    return float(match[1]) / 100


@dataclass(frozen=True)
class Budget:
    """Limits; None: there is none. cpu: 1.0 is one CPU; disk_bytes: a second.

    back_after_s: a step is taken back when so long less than 70 % was in use.
    """

    # fmt: off
    cpu: float | None = option(
        "--max-cpu PCT%", quantity(parse_cpu), "A budget: above this share of one CPU (5%) leave "
        "out events, step by step: kinds of events, unchanged segments, a part of the "
        "connections.", True)
    disk_bytes: int | None = option(
        "--max-disk-rate SIZE", SIZE, "The same above this size a second: 10M.", True)
    memory_bytes: int | None = option(
        "--max-memory SIZE", SIZE, "The same above this resident memory: 512M.", True)
    back_after_s: float = option(
        "--back-after TIME", TIME, "Take a step back when less than 70 % of the budget was used "
        "for so long. Default: 10s.", True, default=10.0)
    # fmt: on

    def check(self) -> None:
        """Raises UsageError where there is no limit, or one makes no sense."""
        if self.cpu is self.disk_bytes is self.memory_bytes is None:
            raise UsageError("a budget without a limit", "set max_cpu, max_disk_rate or max_memory")
        if not 0 < self.back_after_s < math.inf:
            raise UsageError("--back-after: no time", "write 10s")

    def describe(self, steps: Iterable[Step]) -> dict[str, Any]:
        """For the header's settings."""
        return {
            "max_cpu_percent": None if self.cpu is None else round(100 * self.cpu, 3),
            "max_disk_rate": self.disk_bytes,
            "max_memory": self.memory_bytes,
            "back_after_s": self.back_after_s,
            "steps": [step.text for step in steps],
        }


@dataclass(frozen=True)
class Step:
    """What a step leaves out: these locations and events; unchanged segments; or all but
    1 / 2 ** sample of the connections."""

    text: str
    locations: tuple[str, ...] = ()
    unchanged: bool = False
    sample: int = 0


def make_steps(
    recorded: Collection[str],
    watch: Sequence[str],
    events: Sequence[Event] = (),
    has_tcp: bool = True,
) -> tuple[Step, ...]:
    """The steps of a capture; recorded: its locations and events, by name. watch: columns of its
    step for unchanged segments; () for none. events: of other schemata than tcp."""
    marked = [(event.name, number) for event in events if (number := _number_of(event))]
    groups = [
        (*(LOCATIONS[at] if has_tcp and at < len(LOCATIONS) else ()),
         *(name for name, number in marked if number == at + 1))
        for at in range(9)
    ]  # fmt: skip
    sampled = {event.name for event in events if is_sampled(event)}
    return tuple(_steps(set(recorded), watch, groups, None if has_tcp else sampled))


def _steps(
    left: set[str], watch: Sequence[str], groups: Iterable[Sequence[str]], sampled: set[str] | None
) -> Iterator[Step]:
    """sampled: the events that a sample leaves out; None: there are always some."""
    for group in groups:
        names = tuple(name for name in group if name in left)
        if names and len(names) < len(left - {"EXISTING"}):
            left -= set(names)
            yield Step(", ".join(names), locations=names)
    if watch and left & SEGMENTS:
        yield Step(f"segments that leave {', '.join(watch)} as they were", unchanged=True)
    for sample in range(1, SAMPLES + 1) if sampled is None or left & sampled else ():
        yield Step(f"all but 1/{2**sample} of the connections", sample=sample)


def is_sampled(event: Event) -> bool:
    """Whether a sample of connections leaves out records of this event."""
    return any(SAMPLE_TAG in field.tags for field in event.fields)


def _number_of(event: Event) -> int:
    """The step that leaves the event out, from 1; 0: none does."""
    found = [int(match[1]) for tag in event.tags if (match := _SHED_TAG.fullmatch(tag))]
    return min(found, default=0)


def sample_bits(sample: int) -> int:
    """The bits of a connection's hash that are 0 in a sample of 1 / 2 ** sample."""
    return ((1 << sample) - 1) << _HASH_SHIFT


def is_in_sample(conn_id: int, sample: int) -> bool:
    """Whether the programs record this connection: klogger_sheds() of bpf/include/klogger.h."""
    return not conn_id * _GOLDEN & sample_bits(sample)
