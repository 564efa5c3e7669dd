# SPDX-License-Identifier: Apache-2.0
"""The reader on PSC files written by hand: each byte is accounted for in psc_samples.py."""

from __future__ import annotations

from pathlib import Path

import tcpkmon
from tcpkmon.formats.base.byteorder import Endian
from tcpkmon.formats.psc.columns import Column
from tests.unit.psc_samples import LITTLE, PDP, save

SECOND_NS = 1_000_000_000


def test_little_endian_file_without_mods_and_endian(tmp_path: Path) -> None:
    with tcpkmon.open(save(tmp_path, LITTLE)) as capture:
        header = capture.header
        assert (header.version, header.mods, header.endian) == ("0.9", 1, Endian.LITTLE)
        assert (header.entry_size, header.mclsize) == (24, 0)
        assert header.extras == {99: [b"\x01\x02\x03"]}
        assert header.columns == (
            Column("seq_no", 0, 4, 0, 0, 0),
            Column("time", 4, 8, 0, 0, 0),
            Column("lport", 12, 2, 2, 0, 1),
            Column("rport", 14, 2, 2, 0, 1),
            Column("snd_fack", 16, 0, 2, 4, 0),
            Column("snd_cwnd", 16, 4, 2, 0, 0),
            Column("flags", 20, 4, 2, 0, 2),
        )
        assert capture.names == ("seq_no", "time", "lport", "rport", "snd_cwnd", "flags")
        assert len(capture) == 3
        assert capture.column("seq_no").tolist() == [4294967294, 4294967295, 2]
        assert capture.seq().tolist() == [4294967294, 4294967295, 4294967298]
        assert capture.time_ns().tolist() == [
            943185216 * SECOND_NS + 1000,
            943185216 * SECOND_NS + 100_000_000,
            943185217 * SECOND_NS,
        ]
        assert capture.column("lport").tolist() == [1055, 1055, 1056]
        assert capture.column("rport").tolist() == [5050, 5050, 5051]
        assert capture.column("snd_cwnd").tolist() == [1460, 2920, 4294967295]
        assert capture.column("flags").tolist() == [b"AB", b"\xff\x00\x0a\x1b", b""]
        assert capture.column("flags").tobytes() == b"AB\0\0\xff\x00\x0a\x1b\0\0\0\0"
        assert [tuple(gap) for gap in capture.gaps()] == [(4294967295, 4294967298, 2, 2)]
        assert capture.lost == 2
        assert capture.mono_ns() is None
        assert capture.schema is None and capture.clock is None and capture.settings == {}
        assert not capture.control().any()
        assert (capture.warnings, capture.damaged, capture.complete) == ([], False, False)


def test_pdp_endian_file(tmp_path: Path) -> None:
    with tcpkmon.open(save(tmp_path, PDP)) as capture:
        assert capture.header.endian == Endian.PDP
        assert capture.column("seq_no").tolist() == [0x0A0B0C0D]
        assert capture.time_ns().tolist() == [943185216 * SECOND_NS + 100_000_000]
        assert capture.column("lport").tolist() == [1055]
        assert capture.column("wide").tolist() == [0x0102030405060708]
        assert capture.column("short").tolist() == [0x1234]
        assert capture.column("byte").tolist() == [127]
        assert len(capture.array) == 1
