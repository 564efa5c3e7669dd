# SPDX-License-Identifier: Apache-2.0
"""The causes of losses: the ledger's counters, and their names in reports."""

KERNEL_CAUSES = {
    "ring_full": "ring full",
    "no_ring": "no ring",
    "other": "no turn",
    "table_full": "table full",
    "no_slot": "no slot",
}
"""Records that the kernel could not hand over."""
COLLECTOR_CAUSES = {
    "late": "late",
    "queue_full": "queue full",
    "disk_full": "disk full",
    "write_error": "write error",
}
"""Records that the collector dropped."""
KILLED = "killed"
"""Records that a process had read which was killed before it wrote them: known by CPU alone."""
