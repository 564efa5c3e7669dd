# SPDX-License-Identifier: Apache-2.0
"""What the measurement system of HP-UX (1986 to 1988) called the events of today's schemata."""

NAMES = {
    "SLEEP": "sleep",
    "SCHEDOUT": "swtch",
    "ADD_TO_RUNQ": "setrq",
    "REMOVE_FROM_RUNQ": "remrq",
    "RESHUFFLE": "shuffle",
    "EXEC": "exec",
    "EXIT": "exit",
    "DISK_INSERT": "disc_queue",
    "DISK_ISSUE": "disc_start",
    "DISK_COMPLETE": "disc_done",
    "DISK_QUEUE": "timeshare_insert",
    "FILE_READ": "bread",
    "FILE_READAHEAD": "breada",
    "FILE_WRITE": "bwrite",
    "PAGE_DIRTY": "bdwrite",
    "SYSCALL_START": "syscallstart",
    "SYSCALL_EXIT": "syscallexit",
    "SAMPLE": "sampler",
}
"""The old name by the new one. The three names of disk records are ours: the manual calls all three
disc_io_id."""
