# SPDX-License-Identifier: Apache-2.0
"""tcpkmon daemon with `dataset`: a real capture's segments get into a dataset of another user."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tcpkmon.collector.linux.privileges import mask_of
from tcpkmon.formats.dataset import Store, add, check
from tests.live.daemons import Daemon
from tests.live.faults import Flood, Space, wait_until
from tests.live.test_segments_live import descendants

OWNER = 12345
CAPTURE = """
[capture.calls]
locations = ["default", "RECEIVE_CALL"]
netns = ["{space}"]
ports = [{port}]
output = "@/calls"

[capture.calls.rotation]
every = "1s"
archive = "zst"
dataset = "@/fleet"
"""


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def adders(daemon: Daemon) -> list[tuple[int, int]]:
    """What has the dataset's owner: the guard and its worker, with their depth."""
    found = []
    for pid, depth in descendants(daemon.process.pid):
        try:
            if status_of(pid)["Uid"].split()[1] == str(OWNER):
                found.append((pid, depth))
        except FileNotFoundError:
            continue
    return sorted(found, key=lambda one: one[1])


def segments_in(store: Store) -> list[int]:
    numbers = [one for part in store.parts("table=settings")
               for one in store.read(part, ["number"])["number"].to_pylist()]  # fmt: skip
    return sorted(numbers)


@pytest.mark.full
def test_segments_get_into_a_dataset(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    place = tmp_path / "fleet"
    place.mkdir()
    os.chown(place, OWNER, OWNER)
    store = Store(str(place))
    with Space() as space, Daemon(tmp_path) as daemon, Flood(space) as flood:
        daemon.configure(CAPTURE.format(space=space.path, port=flood.port))
        daemon.start()
        wait_until(lambda: len(adders(daemon)) == 2, "guard and worker are the dataset's owner")
        for pid, _ in adders(daemon):
            told = status_of(pid)
            assert int(told["CapPrm"], 16) == mask_of(["CAP_DAC_READ_SEARCH"])
            assert told["NoNewPrivs"] == "1" and told["Seccomp"] == "2"
        flood.begin(0, rate=2000)
        wait_until(lambda: len(segments_in(store)) > 1, "two segments are added")
        os.kill(adders(daemon)[-1][0], signal.SIGKILL)
        daemon.says("the process that adds to the dataset ended by SIGKILL; another goes on")
        before = len(segments_in(store))
        wait_until(lambda: len(segments_in(store)) > before + 1, "it goes on")
        flood.halt()
        done = daemon.finish()
    assert done.code == 0 and "is not added" not in done.stderr, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "calls/index.jsonl").read_text().splitlines()]
    sealed = [line["number"] for line in lines if line["what"] == "sealed"]
    assert segments_in(store) == sealed == [*range(1, len(sealed) + 1)] and len(sealed) > 3
    assert not [text for text in check(store) if "missing" in text or "again" in text]
    assert {path.stat().st_uid for path in place.rglob("*")} == {OWNER}
    by_hand = Store(str(tmp_path / "other"))
    files = sorted((tmp_path / "calls").glob("*.pm.zst"))
    assert len(files) == len(sealed)
    for path in files:
        assert add(by_hand, path).rows
    parts = [part for part in by_hand.parts() if part.table != "settings"]
    assert [part for part in store.parts() if part.table != "settings"] == parts
    for part in parts:  # settings and paths differ by the name: it was added, then archived
        one, other = store.read(part), by_hand.read(part)
        if "path" in one.column_names:
            assert set(one["path"].to_pylist()) < {line["name"] for line in lines}
            one, other = one.drop_columns(["path"]), other.drop_columns(["path"])
        assert one.equals(other), part
    assert sum(by_hand.read(part).num_rows for part in by_hand.parts("table=connections"))
