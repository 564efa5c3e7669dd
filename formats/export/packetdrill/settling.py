# SPDX-License-Identifier: Apache-2.0
"""Leaves room for what TCP decides by less than a millisecond.

Between ACKs that come close after each other, the kernel may put off a small send until the next
one: by its estimate of when that comes (tcp_tso_should_defer()). A script that is played is never
so exact. So what was sent in a train of ACKs is expected at the train's end, in its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tcpkmon.formats.base.tcp import CA_STATES, CaState
from tcpkmon.formats.export.packetdrill.walking import Event

TRAIN_NS = 2_000_000
"""ACKs are of one train if the next one comes sooner."""
_MOST_BYTES = 60_000
"""Of a packet in a script."""
_CA_STATE, _UNACKED = "tcpi_ca_state", "tcpi_unacked"
_CA = tuple(f"TCP_CA_{name}" for name in CA_STATES)


def settle(events: Sequence[Event], most_ns: int) -> Iterator[Event]:
    """The events in the order in which a script has them; of what is asserted, what changed.

    most_ns: how long a send is expected later than it was."""
    held: list[Event] = []
    told: dict[str, int] = {}
    last_ns: int | None = None
    is_open = True
    for event in events:
        arrives, asserts = event.text.startswith("<"), bool(event.values)
        close = last_ns is not None and event.at_ns - last_ns < TRAIN_NS
        if held and event.at_ns - held[0].at_ns > most_ns:
            close = False
        if asserts:
            is_open = event.values.get(_CA_STATE, 0) <= CaState.DISORDER
        if event.text.startswith("> .") and not event.note and is_open:
            held.append(event)
            continue
        if not ((arrives or asserts) and close and is_open):
            yield from _flush(held, last_ns)
        if asserts:
            # Whether something was put off shows in this one.
            left = {name: value for name, value in event.values.items()
                    if told.get(name) != value and not (name == _UNACKED and close and is_open)}
            told |= left
            if left:
                yield Event(event.at_ns, event.at_ns, _asserts(left))
            continue
        if arrives:
            last_ns = event.at_ns
        yield event
    yield from _flush(held, last_ns)


def _flush(held: list[Event], last_ns: int | None) -> Iterator[Event]:
    """What was held, from the last arrival on, as times of a script never fall.

    What belongs together is one line, as the kernel cuts it at other places."""
    while held:
        first, count = held[0], 1
        seq, end, ack = _numbers(first.text)
        while count < len(held) and _numbers(held[count].text)[::2] == (end, ack):
            if (more := _numbers(held[count].text)[1]) - seq > _MOST_BYTES:
                break
            end = more
            count += 1
        begin = max(first.at_ns, last_ns or 0)
        text = f"> . {seq}:{end}({end - seq}) ack {ack} <...>"
        yield Event(begin, max(held[count - 1].until_ns, begin), text)
        del held[:count]


def _numbers(text: str) -> tuple[int, int, int]:
    """From where to where a segment is, and what it acknowledges."""
    found = re.fullmatch(r"> \. (\d+):(\d+)\(\d+\) ack (\d+) <\.\.\.>", text)
    assert found is not None
    return int(found[1]), int(found[2]), int(found[3])


def _asserts(values: dict[str, int]) -> str:
    lines = (
        f"assert {name} == {_CA[value] if name == _CA_STATE else value}, {name}"
        for name, value in values.items()
    )
    return "\n".join(("%{", *lines, "}%"))
