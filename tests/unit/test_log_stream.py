# SPDX-License-Identifier: Apache-2.0
"""What the stream into a Klogger log hands to its spool: copies, of some size, of a CPU each."""

from __future__ import annotations

import numpy as np
import pytest

from tcpkmon.collector.ring.batch import Batch
from tcpkmon.collector.sequencer.buffer_pool import Pool
from tcpkmon.collector.sequencer.cpu_queue import FOREVER_NS, Queues
from tcpkmon.collector.sequencer.part import COPY_BYTES
from tcpkmon.collector.writer.log_batch import copies
from tests.unit.test_sequencer import FULL, make_rows

ROWS = COPY_BYTES // FULL.itemsize


@pytest.mark.parametrize(
    ("counts", "batches"),
    [
        ((), []),
        ((1,), [1]),
        ((3, 5, 7), [3, 5, 7]),
        ((ROWS, 1), [ROWS, 1]),
        ((1, ROWS, 2), [1, ROWS, 2]),
        ((2 * ROWS,), [ROWS, ROWS]),
    ],
)
def test_batches(counts: tuple[int, ...], batches: list[int]) -> None:
    queues = Queues(FULL)
    memory = []
    for cpu, count in enumerate(counts):
        serials = np.arange(1, count + 1)
        memory.append(make_rows(FULL, cpu, serials, serials))
        queues.push(Batch(cpu, memory[-1], 0))
    made = list(copies(queues.take(FOREVER_NS), Pool()))
    for rows in memory:
        rows.view(np.uint8)[:] = 0xDD
    assert [len(batch) for batch in made] == batches
    found: dict[int, list[int]] = {cpu: [] for cpu in range(len(counts))}
    for batch in made:
        assert batch.rows.flags.c_contiguous
        found[batch.cpu] += batch.rows.view(FULL)["serial"].tolist()
    assert found == {cpu: list(range(1, count + 1)) for cpu, count in enumerate(counts)}
