# SPDX-License-Identifier: Apache-2.0
"""What the measurement system of HP-UX (1986 to 1988) called the events of today's schemata."""

NAMES = {
    "SLEEP": "sleep",
    "SCHEDOUT": "swtch",
    "TRAP": "trap",
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
IDS = {
    "syscall": ("RESHUFFLE",),
    "disc_io_id": ("DISK_INSERT", "DISK_ISSUE", "DISK_COMPLETE"),
    "disc2_io_id": ("DISK_INSERT", "DISK_ISSUE", "DISK_COMPLETE"),
    "bread_read": ("FILE_READ",),
    "breada_read": ("FILE_READ",),
    "breada_reada": ("FILE_READAHEAD",),
}
"""Ids of 1988 that another id, or several, stand for today: a system call that touched the run
queue changed a priority; all drivers of disks share one queue; breada read a block, and another one
ahead of it."""
GONE = {
    "disc_ctd_id": "the requests of cartridge tapes: Linux has no event of tape drives",
}
"""Ids of 1988 that no event stands for today, and why."""
