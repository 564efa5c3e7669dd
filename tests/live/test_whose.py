# SPDX-License-Identifier: Apache-2.0
"""Each connection of short-lived processes in short-lived control groups is named as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from capturing import capturing_each
from grouped_workload import POD, root_of

import tcpkmon
from tcpkmon.formats.base.group_names import group_of

PORT = 27_000 + os.getpid() % 500  # tests run in several processes at once
GROUPS, PROCESSES, CONNECTIONS = 20, 5, 10


@pytest.fixture(autouse=True)
def cgroup2() -> None:
    root = root_of(Path("/proc/self/mountinfo").read_text())
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no control group of version 2 can be made here")


def test_a_thousand_connections(tmp_path: Path) -> None:
    few = ("--ports", str(PORT), "--locations", "STATE_CHANGE,DESTROY")
    options = {
        "all": (*few, "--columns", "default,cgroup"),
        "unit": (*few, "--unit", "nginx1*.service"),
        "pod": (*few, "--pod", POD),
    }
    script = Path(__file__).with_name("grouped_workload.py")
    command = [sys.executable, str(script), *map(str, (PORT, GROUPS, PROCESSES, CONNECTIONS))]
    with capturing_each(tmp_path, options) as captures:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = {name: one.stop() for name, one in captures.items()}
    truth = {int(port): path for port, path in json.loads(done.stdout).items()}
    assert len(truth) == GROUPS * PROCESSES * CONNECTIONS
    for outcome in found.values():
        outcome.check_complete()
    owners = ("unit", "container", "pod")
    table = tcpkmon.open(tmp_path / "all.pm").table("connections").to_pylist()
    told = {row["lport"]: tuple(row[name] for name in owners) for row in table
            if row["rport"] == PORT}  # fmt: skip
    expected = {}
    for port, path in truth.items():
        group = group_of(path)
        expected[port] = tuple(getattr(group, name) or None for name in owners)
    assert told == expected
    assert {one[0] for one in told.values()} >= {"nginx0.service", "session-1.scope"}
    notes = subprocess.run(
        [sys.executable, "-m", "tcpkmon.collector.commands.tcpkmon", "verify",
         str(tmp_path / "all.pm")], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "without a name" not in notes.stdout + notes.stderr
    for name, chosen in (
        ("unit", {p for p, path in truth.items() if "/nginx1" in path}),
        ("pod", {p for p, path in truth.items() if "pod0f3c5bd2" in path}),
    ):
        records = found[name].records
        ports = set(records["lport"][records["rport"] == PORT].tolist())
        assert chosen and chosen <= ports, name  # too new a group is recorded, too
        assert len(ports) < len(truth), name
