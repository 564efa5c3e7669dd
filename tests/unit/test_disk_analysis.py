# SPDX-License-Identifier: Apache-2.0
"""Requests and queues of a disk log, over events that are made by hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tcpkmon.formats.analysis import device_name, open_log, queues, requests
from tests.unit.log_files import LogMaker

FIELDS = """
    int tid; int tgid; uint uid; ulonglong cgroup; ulonglong request; uint device
    ulonglong sector; uint bytes; disk_operation operation; uint flags; disk_class priority_class
"""
TEXT = f"""
enum disk_operation {{ READ, WRITE }}
enum disk_class {{ NONE, REALTIME }}
enum disk_status {{ OK }}
event DISK_INSERT {{ {FIELDS} }}
event DISK_ISSUE {{ {FIELDS} }}
event DISK_REQUEUE {{ {FIELDS} }}
event DISK_COMPLETE {{ {FIELDS} disk_status error; int last }}
event DISK_MERGE {{ {FIELDS} int front }}
event DISK_QUEUE {{ {FIELDS} int length; int chunk; int count
    string128 positions // @raw
}}
"""
DEVICE = 254 << 20 | 1


def write(folder: Path, events: list[tuple[int, str, dict[str, Any]]], **changes: Any) -> Path:
    maker = LogMaker(TEXT, **changes)
    for at, name, values in events:
        maker.add(f"DISK_{name}", {"device": DEVICE, **values}, at=at)
    maker.write(folder / "kernlog.dump.cpu0")
    return folder


def test_requests_have_their_times(tmp_path: Path) -> None:
    one, two, three = ({"request": n, "sector": 8 * n, "tid": n, "bytes": 4096} for n in (1, 2, 3))
    events = [
        (1, "COMPLETE", {"request": 0, "last": 1}),
        (2, "INSERT", {"request": 0}), (3, "INSERT", {"request": 0}),
        (4, "MERGE", {"request": 0}), (5, "COMPLETE", {"request": 0, "bytes": 512}),
        (10, "INSERT", one), (12, "INSERT", two), (13, "INSERT", three),
        (14, "MERGE", {**three, "request": 3}), (20, "ISSUE", one), (21, "REQUEUE", one),
        (25, "ISSUE", one), (30, "ISSUE", two), (40, "COMPLETE", {**one, "bytes": 1024}),
        (50, "COMPLETE", {**one, "bytes": 3072, "last": 1}), (60, "COMPLETE", {**two, "last": 1}),
        (61, "INSERT", {"request": 4}),
    ]  # fmt: skip
    with open_log(write(tmp_path, events)) as log:
        found = requests(log)
    assert found["request"].tolist() == [1, 2]
    assert found["tid"].tolist() == [1, 2]
    assert found["bytes"].tolist() == [4096, 4096]
    assert found.queued_ns.tolist() == [15, 18]
    assert found.served_ns.tolist() == [25, 30]
    assert (found.open, found.merged, found.unknown) == (1, 1, 1)
    assert found.busy_ns() == 60 - 25
    assert found.busy_ns("inserted_ns") == 60 - 10
    assert found.mean_depth(110) == 0.5
    assert len(found.where(request=2)) == 1
    assert device_name(DEVICE) == "254:1"


def test_the_queue_is_rebuilt(tmp_path: Path) -> None:
    names = {"request": 2, "sector": 64, "priority_class": "REALTIME"}
    events = [
        (1, "INSERT", {"request": 1, "sector": 80}), (2, "INSERT", names),
        (3, "MERGE", {"sector": 72, "bytes": 4096, "front": 1}),
        (4, "INSERT", {"request": 3, "sector": 8}), (5, "ISSUE", {"request": 1}),
        (6, "INSERT", {"request": 4}), (7, "REQUEUE", {"request": 1, "sector": 72}),
        (8, "INSERT", {"request": 5}),
    ]  # fmt: skip
    with open_log(write(tmp_path, events)) as log:
        found = [(queue.request, queue.positions) for queue in queues(log)]
        assert not any(queue.exact for queue in queues(log))
    assert found == [
        (1, ()), (2, (80,)), (3, (-65, 72)), (4, (-65, 8)), (5, (-65, 0, 8, 72)),
    ]  # fmt: skip


def test_the_queue_as_it_was_read(tmp_path: Path) -> None:
    def chunk(number: int, *sectors: int) -> dict[str, Any]:
        data = struct.pack(f"<{len(sectors)}q", *sectors).ljust(128, b"\0")
        return {"request": 9, "sector": 1, "length": 18, "chunk": number, "count": len(sectors),
                "positions": data}  # fmt: skip

    events = [
        (1, "QUEUE", chunk(0, -9, *range(100, 115))), (2, "QUEUE", chunk(1, 50, 60)),
        (3, "QUEUE", {"request": 10, "length": -1}), (4, "ISSUE", {"request": 9}),
        (5, "QUEUE", {"request": 11, "length": -1}),
    ]  # fmt: skip
    settings = {"schema": ["disk"], "locations": {"DISK_QUEUE": "btf:block_rq_insert"}}
    with open_log(write(tmp_path, events, settings=settings)) as log:
        found = list(queues(log))
        rebuilt = list(queues(log, rebuild=True))
    assert [(queue.exact, queue.length) for queue in found] == [(True, 18), (False, 1), (False, 1)]
    assert found[0].positions == (-9, 50, 60, *range(100, 115))
    assert [queue.positions for queue in found[1:]] == [(1,), (0,)]
    assert [queue.positions for queue in rebuilt] == [(), (1,), (0,)]
