# SPDX-License-Identifier: Apache-2.0
"""The least that a machine must do: a counted transfer is recorded, proven, and as ss has it."""

from __future__ import annotations

import re
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.verify import verify_file
from tests.live.capturing import Records, capturing_each, connected, look, wait_until, within

ROUNDS, SIZE = 20, 10_000
TYPED = "SEGMENT_RECEIVED,RETRANSMIT,STATE_CHANGE,DESTROY"
"""At tracepoints: 6.1 of arm64 has nothing but kprobes at functions, which prove nothing there."""
IN_SS = {
    "snd_cwnd_segs": r"cwnd:(\d+)", "mss": r" mss:(\d+)", "rcv_mss": r"rcvmss:(\d+)",
    "bytes_acked": r"bytes_acked:(\d+)", "bytes_received": r"bytes_received:(\d+)",
    "segs_in": r"segs_in:(\d+)", "segs_out": r"segs_out:(\d+)", "snd_wnd": r"snd_wnd:(\d+)",
    "rcv_ssthresh": r"rcv_ssthresh:(\d+)", "sk_rcvbuf": r",rb(\d+)",
}  # fmt: skip


def test_a_counted_transfer(lab: Lab, tmp_path: Path) -> None:
    every = ("--columns", "all", "--locations", "RECEIVE_CALL")
    options = {"typed": (*within(lab), "--locations", TYPED), "calls": (*within(lab), *every)}
    with capturing_each(tmp_path, options) as running:
        with connected(lab) as pair:
            for _ in range(ROUNDS):
                pair.exchange(SIZE)
            command = ["ss", "-tinmH", f"sport = :{pair.client_port}"]
            wait_until(lambda: "unacked" not in lab.a.command(command))
            look(pair.client)
            said, port = lab.a.command(command), pair.client_port
        typed, calls = running["typed"].stop(), running["calls"].stop()
    typed.check_complete()
    calls.check_complete()
    proof = verify_file(tmp_path / "typed.pm").as_json()
    assert proof["exit_code"] == 0, proof["verdict"]
    last = calls.records.where(lport=port)
    for column, pattern in IN_SS.items():
        found = re.search(pattern, said)
        assert found and last.last(column) == int(found[1]), column
    check_bytes(typed.records, port)


def check_bytes(records: Records, port: int) -> None:
    """The segments that both ends received have all bytes of both directions, in order."""
    for end in (records.where(lport=port), records.where(rport=port)):
        segments = end.at("SEGMENT_RECEIVED")
        # A starved CPU is late to acknowledge: what is sent again then comes twice.
        starts = (segments["seg_seq"] - segments["seg_seq"][0]).tolist()  # 32 bits wide
        seen = 0
        for start, size in sorted(zip(starts, segments["seg_len"].tolist(), strict=True)):
            assert start <= seen
            seen = max(seen, start + size)
        assert seen == ROUNDS * SIZE
        assert (segments["seq_no"][1:] > segments["seq_no"][:-1]).all()
        assert len(end.at("DESTROY")) == 1
