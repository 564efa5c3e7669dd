# SPDX-License-Identifier: Apache-2.0
"""Short-lived processes in control groups of their own, which are gone when they are.

    grouped_workload.py PORT GROUPS PROCESSES CONNECTIONS      prints the path of the group of each
                                                               connection by its client's port: JSON
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

IDS = "0123456789abcdef" * 4
POD = "0f3c5bd2-8e1a-4c11-9d0e-52a4c7b1f0aa"
NAMES = (
    "system.slice/nginx{n}.service", "user.slice/user-1000.slice/session-{n}.scope",
    "system.slice/docker-{n:02d}" + IDS[2:] + ".scope",
    "kubepods-burstable-pod" + POD.replace("-", "_") + ".slice/cri-containerd-{n:02d}"
    + IDS[2:] + ".scope",
    "machine.slice/libpod-{n:02d}" + IDS[2:] + ".scope/container",
)  # fmt: skip


def root_of(mountinfo: str) -> Path | None:
    """Where cgroup2 is mounted."""
    points = [line.split()[4] for line in mountinfo.splitlines() if " - cgroup2 " in line]
    return Path(points[0]) if points else None


def run(group: Path, port: int, connections: int) -> list[int]:
    """Client ports of so many connections that a process makes in the group."""
    into, out = os.pipe()
    if not (pid := os.fork()):
        (group / "cgroup.procs").write_text("0")
        ports = []
        for _ in range(connections):
            with socket.create_connection(("127.0.0.1", port)) as client:
                ports.append(client.getsockname()[1])
                client.sendall(b"x" * 100)
        os.write(out, json.dumps(ports).encode())
        os._exit(0)
    os.close(out)
    told = os.read(into, 1 << 16)
    os.close(into)
    os.waitpid(pid, 0)
    return list(json.loads(told))


def main(port: int, groups: int, processes: int, connections: int) -> None:
    """Play it all."""
    root = root_of(Path("/proc/self/mountinfo").read_text())
    assert root is not None
    top = root / f"tcpkmontest{os.getpid()}.slice"
    truth: dict[int, str] = {}
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:
        for number in range(groups):
            group = top / NAMES[number % len(NAMES)].format(n=number)
            group.mkdir(parents=True)
            for _ in range(processes):
                for one in run(group, port, connections):
                    truth[one] = "/" + str(group.relative_to(root))
                for _ in range(connections):
                    server.accept()[0].close()
            place = group
            while place != root:
                try:
                    place.rmdir()
                except OSError:  # a socket's process still goes, or it has others
                    break
                place = place.parent
    for folder, _, _ in os.walk(top, topdown=False):
        os.rmdir(folder)
    print(json.dumps(truth))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
