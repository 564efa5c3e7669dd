# SPDX-License-Identifier: Apache-2.0
"""The page of MAGNeT's experiments: what is made of the results, without a kernel."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_pton

import numpy as np
import pytest

from scripts.experiments import interleaved
from scripts.experiments.figure import Figure, Value, table_of
from scripts.experiments.results import Results
from scripts.experiments.student import change, interval
from scripts.magnet import (
    cascade,
    layers,
    loss,
    modulation,
    overhead,
    packets,
    page,
    pcap,
    state,
    stream,
)
from scripts.magnet.page import EXPERIMENTS, command
from scripts.magnet.recording import Recording, covered, first_times
from scripts.magnet.wire import FAST, SLOW, TRANSFERS
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import DamagedError, FileError, UsageError


def made(times: dict[str, float] | None = None) -> Results:
    """Results of each experiment; times: by case of M1, how many times as long it took."""
    results = Results(machine={"CPU model": "A | B", "CPU": "family 1, model 2; 2 CPUs"}, rounds=3)
    for case in overhead.CASES:
        for number in range(3):
            for work in TRANSFERS:
                longer = (times or {}).get(case, 1.001) * (1 + 0.0001 * (number - 1))
                for subject in (work, interleaved.cpu_subject(work)):
                    results.add(overhead.NAME, subject, case, 1 / longer)
                    results.add(overhead.NAME, subject, interleaved.bare(case), 1)
            for subject in ("records", "lost", "bytes", interleaved.READER):
                results.add(overhead.NAME, subject, case, 0 if case == overhead.OFF else 7)
    for case in (SLOW, FAST, *loss.FLOODS, *loss.TINY.values()):
        lost = 5 if case in loss.TINY.values() else 0
        for subject, value in zip(loss.SUBJECTS, (900, 50, lost, lost, 0), strict=True):
            results.add(loss.NAME, subject, case, value)
    for case in packets.OPTIONS:
        for part, value in ((packets.KERNEL, 1.2), (packets.READER, 0.6), (packets.RECORDS, 4.8)):
            results.add(packets.NAME, part, case, value)
    for case in stream.PAPER:
        for number in range(3):
            results.add(stream.NAME, case, "s", 1.001 + 0.0001 * number)
            results.add(stream.NAME, stream.BARE + case, "s", 1)
    results.add(modulation.NAME, modulation.BYTES, "written", 20_480)
    results.add(modulation.NAME, modulation.RISING, "all layers", 20_480)
    for layer in (*modulation.SENT, *modulation.RECEIVED):
        results.add(modulation.NAME, modulation.BYTES, layer, 20_480)
        results.add(modulation.NAME, modulation.PATH, layer, 1.5)
        for number in range(2):
            size = 10_240 if layer.startswith("SOCK") else 1500
            results.add(modulation.NAME, modulation.AT, layer, 200.0 * number)
            results.add(modulation.NAME, modulation.SIZE, layer, size)
    for step, (size, pause) in cascade.PAPER.items():
        for subject, value in ((cascade.BYTES, size), (cascade.INTERVAL, pause)):
            results.add(cascade.NAME, subject, step, value)
        results.add(cascade.NAME, cascade.COUNT, step, 9)
    for case in (state.RECORD, state.ORACLE):
        results.add(state.NAME, "IPv4: tcp_snd_wnd", case, 64)
    results.add(state.NAME, state.WRONG, "IPv4, DEV_SEND", 0)
    results.add(state.NAME, "packets", "IPv4, DEV_SEND", 33)
    for subject in (layers.READER, layers.QUEUE, layers.HOLE, f"{layers.FAILED}, Broken pipe"):
        for case in (layers.PUT, layers.FOUND):
            results.add(layers.NAME, subject, case, 50)
    for subject in (layers.READER_PART, layers.OTHERS):
        for case in ("GSO on", "GSO off"):
            results.add(layers.NAME, subject, case, 50)
    for part in layers.PARTS:
        results.add(layers.NAME, f"{layers.PART}, {part}", layers.PUT, 50)
        results.add(layers.NAME, f"{layers.PART}, {part}", layers.FOUND, 51)
    for layer in (*modulation.SENT, *modulation.RECEIVED):
        for case in (layers.PUT, layers.FOUND):
            results.add(layers.NAME, f"{layers.OWN}, {layer}", case, 9)
    results.seconds = dict.fromkeys(EXPERIMENTS, 1.0)
    return results


def figure_of(results: Results, start: str) -> Figure:
    found = [one for each in EXPERIMENTS.values() for one in each.figures(results)]
    return next(one for one in found if one.experiment.startswith(start))


def test_all_is_as_wanted_where_it_is() -> None:
    found = [one for each in EXPERIMENTS.values() for one in each.figures(made())]
    assert {one.experiment.partition(",")[0].partition(":")[0] for one in found} == set(EXPERIMENTS)
    beside = "against tcpdump"
    assert all(one.reached is not False for one in found if beside not in one.experiment)


@pytest.mark.parametrize("case, most", [
    (overhead.OFF, overhead.MOST_OFF), (overhead.RECEIVER, overhead.MOST_ON),
])  # fmt: skip
def test_a_target_that_is_missed_is_told(case: str, most: float) -> None:
    for percent, reached in ((most - 0.1, True), (most + 0.1, False)):
        results = made({case: 1 / (1 - percent / 100)})
        figure = figure_of(results, f"M1, {FAST}: throughput lost, {case}")
        assert figure.reached is reached
        assert f"{percent:.2f} %" in figure.now
        text = page.PAPER.markdown(results)
        assert ("**no**" in text.partition(case)[2].partition("\n")[0]) is not reached


def test_beside_tcpdump() -> None:
    name = f"M1, {SLOW}: {overhead.SENDER}, against"
    slow = {overhead.TCPDUMP[overhead.SENDER]: 1.5}
    assert figure_of(made(slow), name).reached
    assert figure_of(made({overhead.SENDER: 1.5}), name).reached is False


def test_a_wrong_figure_of_each_experiment_is_told() -> None:
    def spoiled(name: str, subject: str, case: str, value: float) -> Results:
        results = made()
        results.values[name][subject][case][-1] = value
        return results

    tiny = next(iter(loss.TINY.values()))
    for results, start in (
        (spoiled(loss.NAME, loss.LOST, SLOW, 1), f"M2: lost of a saturated {SLOW}"),
        (spoiled(loss.NAME, loss.PROOF, FAST, 3), f"M2: lost of a saturated {FAST}"),
        (spoiled(loss.NAME, loss.MISSING, tiny, 4), f"M2: {tiny}"),
        (spoiled(packets.NAME, packets.KERNEL, packets.LEAN, 5), "M3"),
        (spoiled(modulation.NAME, modulation.BYTES, "TCP_RECV", 9), "M5: bytes at"),
        (spoiled(modulation.NAME, modulation.SIZE, "DEV_SEND", 1501), "M5: packets"),
        (spoiled(modulation.NAME, modulation.AT, "SOCK_SEND", 300), "M5: the application"),
        (spoiled(modulation.NAME, modulation.RISING, "all layers", 20_479), "M5: bytes whose"),
        (spoiled(layers.NAME, layers.OTHERS, "GSO on", 52), "M8: the same with GSO"),
        (spoiled(layers.NAME, f"{layers.PART}, hole", layers.FOUND, 54), "M8: the parts"),
        (spoiled(layers.NAME, f"{layers.OWN}, IP_RECV", layers.FOUND, 7), "M8: 9 connections"),
        (spoiled(cascade.NAME, cascade.BYTES, cascade.STEPS[2], 1016), "M6: mean size"),
        (spoiled(cascade.NAME, cascade.INTERVAL, cascade.STEPS[1], 0.2), "M6: mean interval"),
        (spoiled(state.NAME, "IPv4: tcp_snd_wnd", state.RECORD, 63), "M7: magnet_tcp"),
        (spoiled(state.NAME, state.WRONG, "IPv4, DEV_SEND", 1), "M7: flags"),
        (spoiled(layers.NAME, layers.READER, layers.FOUND, 49), "M8: the reader"),
        (spoiled(layers.NAME, layers.QUEUE, layers.FOUND, 53), "M8: a queue"),
        (spoiled(layers.NAME, layers.HOLE, layers.FOUND, 47), "M8: a hole"),
        (spoiled(layers.NAME, f"{layers.FAILED}, Broken pipe", layers.FOUND, 0), "M8: size"),
    ):
        assert figure_of(results, start).reached is False, start
        assert figure_of(made(), start).reached, start


def test_the_page_has_each_experiment_and_the_paper(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    written = page.PAPER.write(made(), tmp_path)
    assert [path.name for path in written] == ["magnet.md", "magnet.png"]
    text = written[0].read_text()
    assert written[1].stat().st_size > 10_000
    for one in EXPERIMENTS.values():
        assert f"## {one.title}\n" in text
    for part in ("A \\| B", "of 2 CPUs", "36.74 %", "x 1.0011", "3284, 1016, 919 B",
                 "## What recording costs", "250 |", "3 rounds"):  # fmt: skip
        assert part in text, part


def test_a_page_is_made_of_a_whole_run(tmp_path: Path) -> None:
    results = made()
    results.quick = True
    with pytest.raises(UsageError, match="these are quick"):
        page.PAPER.write(results, tmp_path)
    results = made()
    del results.seconds["M6"]
    with pytest.raises(UsageError, match="these lack M6"):
        page.PAPER.write(results, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words, said", [
    (("--docs", "--quick"), "of a whole run"), (("--docs", "--only", "M1"), "of a whole run"),
    (("--only", "M9"), "no such experiment: M9"), (("--rounds", "1"), "2<=x<=100"),
])  # fmt: skip
def test_wrong_arguments(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, list(words), "magnet-experiments") == UsageError.exit_code
    assert said in capsys.readouterr().err


def test_saved_results_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "saved.json"
    saved.write_text(made().to_json())
    assert run(command, ["--read", str(saved)], "magnet-experiments") == 0
    assert "36.74 %" in capsys.readouterr().out
    saved.write_text("{}}")
    assert run(command, ["--read", str(saved)], "magnet-experiments") == FileError.exit_code


def test_what_was_not_measured_is_left_out() -> None:
    results = Results(rounds=2)
    results.skip("M4", "tcpdump", "not there")
    (section,) = page.PAPER.sections(results)
    assert section == ("M4: a paced stream", [], ["Skipped: tcpdump: not there"])


def test_confidence_intervals() -> None:
    # Student's t of 9 degrees of freedom: 2.262 for 95 %.
    logarithms = [0.01 * one for one in range(10)]
    found = change(logarithms)
    low, high = interval(found)
    assert math.log(high / found.ratio) / found.error == pytest.approx(2.2622, rel=1e-3)
    assert math.log(found.ratio / low) / found.error == pytest.approx(2.2622, rel=1e-3)
    value = Value.of([math.log(1.25)] * 3).percent_lost()
    assert (value.value, value.low, value.high) == pytest.approx((20, 20, 20))


def test_missed_by_no_more_than_noise_is_unclear() -> None:
    value = Value(5.0, 4.0, 6.0, 3)
    assert value.figure("x", "", "", 6, "").reached
    unclear = value.figure("x", "", "", 4.5, "")
    assert (unclear.reached, unclear.unclear) == (False, True)
    assert not value.figure("x", "", "", 3.9, "").unclear
    assert table_of([unclear], "2001").rows[0][-1] == "~"


def test_bytes_are_counted_once() -> None:
    def ranges(*pairs: tuple[int, int]) -> dict[str, np.ndarray]:
        low, high = (np.array([pair[n] for pair in pairs], np.uint32) for n in (0, 1))
        return {"seq_lo": low, "seq_hi": high}

    assert covered(ranges((100, 200), (150, 250), (300, 310), (120, 130)), 100) == 160
    top = (1 << 32) - 50
    assert covered(ranges((top, 50), (50, 60), (top, top + 10)), top) == 110
    assert covered(ranges((7, 7)), 7) == 0


def test_when_a_byte_was_first_there() -> None:
    columns = {
        "seq_lo": np.array([(1 << 32) - 5, 0, 7], np.uint32),
        "seq_hi": np.array([0, 5, 7], np.uint32),
        "time_ns": np.array([30, 10, 1], np.uint64),
    }
    found = first_times(columns, np.array([(1 << 32) - 5, 1 << 32, 4, 7]))
    assert found.tolist() == [30, 10, 10, math.inf]


def test_the_busiest_connection() -> None:
    found = Recording({"SOCK_SEND": {
        "connection": np.array([3, 9, 3, 4]), "size": np.array([5, 8, 6, -32]),
    }})  # fmt: skip
    assert found.busiest("SOCK_SEND") == 3
    assert found.of("SOCK_SEND", 9)["size"].tolist() == [8]
    assert found.busiest("SOCK_RECV") == 0
    assert len(found.of("SOCK_RECV")["size"]) == 0


def frame4(flags: int, data: int) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", 1, 2, 1000, 7, 8 << 4, flags, 0, 0, 0) + bytes(12)
    ip = struct.pack(">BBHHHBBH", 0x45, 3, 52 + data, 77, 0x4000, 64, 6, 0)
    return bytes(14) + ip + inet_pton(AF_INET, "10.0.0.1") + inet_pton(AF_INET, "10.0.0.2") + tcp


def frame6(data: int) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", 1, 2, 1000, 7, 8 << 4, 16, 0, 0, 0) + bytes(12)
    ends = inet_pton(AF_INET6, "fd00::2"), inet_pton(AF_INET6, "fd00::1")
    return bytes(14) + struct.pack(">IHBB", 6 << 28 | 5 << 20, 32 + data, 6, 63) + b"".join(
        ends
    ) + tcp  # fmt: skip


def pcap_of(*frames: bytes) -> bytes:
    raw = struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 1)
    for number, frame in enumerate(frames):
        raw += struct.pack("=4I", number, 250, len(frame), len(frame)) + frame
    return raw


def test_the_packets_of_tcpdump(tmp_path: Path) -> None:
    path = tmp_path / "pcap"
    udp = bytearray(frame4(16, 0))
    udp[14 + 9] = 17
    path.write_bytes(pcap_of(frame4(2, 0), bytes(udp), frame4(24, 300), frame6(10)))
    syn, data, other = pcap.read(path, "10.0.0.1", "fd00::1")
    # The sequence number of the first byte is behind that of the SYN.
    assert syn.key == (4, 3, 77, 0x4000, 64, 6, 1001, 7, 2, 0)
    assert (data.seq_lo, data.size, data.outgoing) == (1000, 300, True)
    assert data.at_ns == 2 * 10**9 + 250_000
    assert other.key == (6, 5, 0, 0, 63, 6, 1000, 7, 16, 10)
    assert not other.outgoing
    path.write_bytes(bytes(24))
    with pytest.raises(DamagedError):
        list(pcap.read(path, "10.0.0.1", "fd00::1"))
