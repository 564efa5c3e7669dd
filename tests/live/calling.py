# SPDX-License-Identifier: Apache-2.0
"""Run as a program by tests/live/test_log_verify_live.py: makes counted getppid calls when asked.

python calling.py   <- lines "CPU COUNT"   -> "COUNT", when made (0: until the next line)
"""

from __future__ import annotations

import os
import select
import sys

_CHUNK = 200


def call(cpu: int, count: int) -> int:
    """Makes `count` calls on a CPU; 0: until there is more to read. Returns how many it were."""
    os.sched_setaffinity(0, {cpu})
    getppid = os.getppid
    if count:
        for _ in range(count):
            getppid()
        return count
    made = 0
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        for _ in range(_CHUNK):
            getppid()
        made += _CHUNK
    return made


def main() -> None:
    """Obeys standard input until its end."""
    while line := sys.stdin.readline():
        cpu, count = (int(word) for word in line.split())
        if count < 0:
            continue
        print(call(cpu, count), flush=True)


if __name__ == "__main__":
    main()
