# SPDX-License-Identifier: Apache-2.0
"""What is changed while a capture runs is in its file, with the moment, whoever changed it."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from tcpkmon.collector.control.client import Client
from tcpkmon.collector.control.client import Collector as Listening
from tcpkmon.collector.linux import bpf
from tcpkmon.formats.base.changes import ChangeKind
from tcpkmon.formats.base.control import Change
from tcpkmon.formats.psc.reader import open_capture
from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.live.faults import WAIT_S, Collector, Space, map_fd, wait_until

NAME = "SEGMENT_RECEIVED"
CONTROL_BYTES = 256 * 5  # struct klogger_control


def client_of(collector: Collector) -> Client:
    return Client(Listening(collector.pid, Path("/run/tcpkmon", f"{collector.pid}.sock")), WAIT_S)


@pytest.mark.parametrize("words", first(1, [(), (("--format", "klogger"),)]))
def test_a_switch_is_in_the_file(space: Space, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "x"
    with Collector("--netns", space.path, "-o", str(path), *words).ready() as collector:
        client = client_of(collector)
        before_ns = time.monotonic_ns()
        client.disable([NAME])
        off_ns = time.monotonic_ns()
        client.enable([NAME])
        client.disable()
        client.set_buffer_bytes(1 << 20)
        client.set_low_water(50)
        client.enable()
        on_ns = time.monotonic_ns()
        done = collector.finish()
    assert done.code == 0, done.stderr
    report = format_of(path).verify(path)[-1]
    assert report.exit_code == 0, report.problems
    assert "while it was switched on" in report.verdict or words
    assert report.off[0].startswith(f"{NAME} was off from 20"), report.off
    assert " more were off from " in report.off[-1]
    if words:
        return
    with open_capture(path) as capture:
        changes = [entry for _, entry in capture.controls() if isinstance(entry, Change)]
        span = capture.off[0]
    assert before_ns < span.begin_ns < off_ns < (span.end_ns or 0) < on_ns
    found = {(change.kind, change.old, change.new) for change in changes}
    assert {(ChangeKind.RING, 4 << 20, 1 << 20), (ChangeKind.LOW_WATER, 75, 50)} <= found
    assert not any(change.by_others for change in changes)


def test_what_others_switch_is_noticed(space: Space, tmp_path: Path) -> None:
    path = tmp_path / "x.pm"
    with Collector("--netns", space.path, "-o", str(path)).ready() as collector:
        client = client_of(collector)
        number = next(e["number"] for e in client.status()["events"] if e["name"] == NAME)
        (control,) = [m for m in collector.maps(2, 4) if m.value_bytes == CONTROL_BYTES]
        fd, key = map_fd(control.id), struct.pack("=I", 0)
        value = bytearray(bpf.map_lookup(fd, key, CONTROL_BYTES) or b"")
        assert value[number] == 1
        value[number] = 0
        bpf.map_update(fd, key, bytes(value))

        def is_off() -> bool:
            (found,) = [e for e in client.status()["events"] if e["name"] == NAME]
            return found["enabled"] is False

        wait_until(is_off, "the collector noticed")
        client.disable(["RETRANSMIT"])  # does not switch it on again
        assert is_off()
        done = collector.finish()
    assert done.code == 0, done.stderr
    report = format_of(path).verify(path)[-1]
    assert report.exit_code == 0, report.problems
    assert report.off[0].startswith(f"{NAME} was off from ")
    assert report.off[0].endswith("to the end; not tcpkmon switched it")
