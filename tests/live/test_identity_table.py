# SPDX-License-Identifier: Apache-2.0
"""The table of connections in the kernel, and the rows in front of it that count what is there."""

from __future__ import annotations

import numpy as np
import pytest
from bpf_entries import entries_of

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import Prepared, prepare
from tcpkmon.collector.plan.filters import Filters, parse
from tcpkmon.collector.plan.request import Request
from tests.full import first
from tests.live.capturing import join, listening, wait_until

ROW = np.dtype([("sk", "=u8"), ("id", "=u8"), ("comm", "S16"), ("pid", "=u4"), ("ports", "=u4"),
                ("looked", "=u4"), ("entered", "=u4"), ("unused", "=u8", 2)])  # fmt: skip
"""struct known of bpf/include/tcp_known.h."""


def started(prepared: Prepared, lab: Lab, ports: str | None = None) -> Kernel:
    filters = parse(namespaces=[lab.a.name, lab.b.name], ports=ports)
    kernel = Kernel(prepared, filters)
    filters.close()
    kernel.load()
    kernel.loaded.attach()
    kernel.switch_on()
    return kernel


def in_table(kernel: Kernel) -> int:
    spec = next(spec for spec in kernel._prepared.image.maps if spec.name == "connections")
    fd = kernel.loaded.maps["connections"]
    return len(entries_of(fd, spec.key_size, spec.value_size))


def counted(kernel: Kernel) -> int:
    rows = entries_of(kernel.loaded.maps["known_sockets"], 4, ROW.itemsize)
    return int(np.frombuffer(b"".join(rows.values()), ROW)["entered"].sum())


@pytest.mark.parametrize("kind", first(1, ["btf", "raw"]))
def test_the_rows_count_what_is_in_the_table(kind: str, lab: Lab) -> None:
    prepared = prepare(Request(Filters(), "-", existing=False, kinds=(kind,)))
    with started(prepared, lab) as kernel, listening(lab.b, lab.b.address4) as listener:
        # Two ends each, and the listener.
        pairs = [join(lab.a, listener, lab.b.address4) for _ in range(20)]
        assert in_table(kernel) == counted(kernel) == 41
        for pair in pairs:
            pair.close()
        wait_until(lambda: in_table(kernel) == counted(kernel) == 1)


@pytest.mark.parametrize("most", first(1, [32, 64]))
def test_as_many_have_an_identity_as_were_asked_for(most: int, lab: Lab) -> None:
    """The records of all others are counted as lost."""
    prepared = prepare(Request(Filters(), "-", existing=False, connections=most))
    with started(prepared, lab) as kernel, listening(lab.b, lab.b.address4) as listener:
        pairs = [join(lab.a, listener, lab.b.address4) for _ in range(20)]
        assert in_table(kernel) == min(most, 41)
        assert (kernel.heads()["accounts"]["table_full"].sum() > 0) == (most < 41)
        for pair in pairs:
            pair.close()
        wait_until(lambda: in_table(kernel) <= 1)
        with_room = join(lab.a, listener, lab.b.address4)
        assert in_table(kernel) == 3, "there is room again"
        with_room.close()
