# SPDX-License-Identifier: Apache-2.0
"""Fills the fields of records that hold the name of a kernel function, or what a sleep there means.

A program cannot look up names, so it stores an address. Tags in the declaration say what follows
from it:

    ulonglong place;        // where it sleeps
    string40 symbol;        // the function at the address before @function
    sleep_class class;      // what it waits for @sleep_class
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.collector.linux.kallsyms import Kallsyms
from tcpkmon.formats.schema import Event, Place, Schema, place_fields

_CLASSES = (
    ("TTY", "n_tty_|tty_|pty_|con_|do_con_|uart_"),
    ("PIPE", "(anon_)?pipe_|wait_for_partner|fifo_"),
    ("FUTEX", "(__)?futex_"),
    ("TIMER", "(hr|high_res_)?timer_|hrtimer_|do_nanosleep|common_nsleep|alarm_|msleep|usleep_"),
    ("POLL", "poll_schedule_timeout|do_select|do_poll|do_sys_poll|ep_poll|do_epoll_|io_cqring_"),
    ("WAIT", r"do_wait\b|kernel_wait|wait_for_vfork_done|kernel_clone|kthread_stop|do_exit"),
    ("SOCKET", "(__)?(sk|skb|sock|inet|inet6|tcp|udp|unix|raw|packet|netlink|vsock)_|__lock_sock"),
    ("DISK", "(__)?(io|bio|blk|blkdev|block|buffer|bh|folio|page|filemap|iomap|wait_on_buffer|"
     "wait_on_page|wait_on_bit|lock_buffer|sync|submit_bio|rq_qos|wbt|balance_dirty|swap|jbd2|ext4|"
     "xfs|btrfs|f2fs|nfs|nvme|scsi|dm|md|loop|fuse)(_|$)"),
)  # fmt: skip
"""By the beginning of a function's name; the first that fits."""
_PATTERNS = [(name, re.compile(pattern.encode())) for name, pattern in _CLASSES]


def sleep_class(function: bytes) -> str:
    """What a thread that sleeps in this function waits for; empty where its name does not tell."""
    return next((name for name, pattern in _PATTERNS if pattern.match(function)), "")


@dataclass(frozen=True)
class _Target:
    """A field to fill: the offset of the address in the payload, and the field itself."""

    address: int
    place: Place
    classes: dict[str, int] | None
    """The values of the enum, for a class."""


class FunctionNames:
    """The fields to fill of all events of a capture. Make it while names are readable.

    events: with their numbers.
    """

    def __init__(self, schema: Schema, events: Iterable[tuple[int, Event]]) -> None:
        every = ((number, _find(schema, event)) for number, event in events)
        self._targets = {number: targets for number, targets in every if targets}
        self._symbols = Kallsyms()
        self._known: dict[int, bytes] = {}
        if self._targets:
            try:
                self._symbols.name(0)  # reads them: later this process may not
            except OSError:
                self._targets.clear()

    def fill(self, numbers: NDArray[Any], rows: NDArray[Any], start: int) -> None:
        """Fill the fields of n records in place: event numbers, rows, offset of the payload."""
        for number, targets in self._targets.items():
            where = np.flatnonzero(numbers == number)
            for target in targets if len(where) else ():
                self._fill(target, rows, where, start)

    def _fill(self, target: _Target, rows: NDArray[Any], where: NDArray[Any], start: int) -> None:
        addresses = rows.getfield(np.dtype("=u8"), start + target.address)[where]
        unique, which = np.unique(addresses, return_inverse=True)
        names = [self._name(address) for address in unique.tolist()]
        at = start + target.place.offset
        if target.classes is None:
            width = target.place.type.width
            texts = np.array(names, f"S{width}")
            rows.getfield(np.dtype(f"S{width}"), at)[where] = texts[which]
            return
        values = np.array([target.classes.get(sleep_class(name), -1) for name in names])[which]
        told = values >= 0
        rows.getfield(np.dtype("=i4"), at)[where[told]] = values[told]

    def _name(self, address: int) -> bytes:
        """The function that an address is in; a return address can be the first after it."""
        if address not in self._known:
            self._known[address] = self._symbols.name(address - 1) if address else b""
        return self._known[address]


def _find(schema: Schema, event: Event) -> list[_Target]:
    """The fields to fill of an event, each with the last 64-bit number before it."""
    targets: list[_Target] = []
    address = None
    for place in place_fields(schema, event)[0]:
        tags = place.field.tags
        if place.type.kind == "int" and place.type.width == 8:
            address = place.offset
        elif address is not None and "function" in tags and place.type.kind == "string":
            targets.append(_Target(address, place, None))
        elif address is not None and "sleep_class" in tags and place.type.kind == "enum":
            members = schema.enum(place.field.type).members
            targets.append(_Target(address, place, {one.name: one.value for one in members}))
    return targets
