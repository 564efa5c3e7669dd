# SPDX-License-Identifier: Apache-2.0
"""Gives the connections of a capture other first sequence numbers, as if TCP had chosen these."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray

import tcpkmon
from tcpkmon.formats.psc.reader import Capture

EDGES = (0, 2**31 - 1, 2**31, 2**32 - 1)
OWN = ("snd_una", "snd_max", "snd_nxt", "snd_fack", "write_seq", "high_seq", "undo_marker",
       "tlp_high_seq", "snd_up")  # fmt: skip
PEERS = ("rcv_nxt", "copied_seq")
_SENT = {"RETRANSMIT": ("seg_seq", "callvalue"), "RETRANSMIT_SYNACK": ("seg_seq",),
         "TRANSMIT": ("seg_seq",), "RESET_SENT": ("seg_seq",)}  # fmt: skip
"""Of segments that this end sends; those of others have numbers of the peer."""
_SYN_SENT, _ESTABLISHED = 2, 1


def renumbered(path: Path, into: Path, opener: int, other: int) -> Path:
    """A copy in which the ends that called connect() begin with one number, those that accepted
    with the other. Each end is known by its own records alone: both need not be there. A number 0
    in the original is none, and stays."""
    with tcpkmon.open(path) as capture:
        assert isinstance(capture, Capture)
        data = bytearray(path.read_bytes())
        rows = np.frombuffer(data, capture.entry_dtype, len(capture), capture.data_offset)
        names = {capture.location_name(code): code for code in range(224)}
        is_own = ~capture.control()
        _renumber(rows, np.flatnonzero(is_own), names, opener, other)
    into.write_bytes(data)
    return into


def _renumber(
    rows: NDArray[Any], at: NDArray[Any], names: dict[str, int], opener: int, other: int
) -> None:
    for conn_id in np.unique(rows["conn_id"][at]).tolist():
        mine = at[rows["conn_id"][at] == conn_id]
        change = rows["location"][mine] == names["STATE_CHANGE"]
        opens = mine[change & (rows["callvalue"][mine] == _ESTABLISHED)][:1]
        if not conn_id or not len(opens):
            continue
        active = bool((rows["state"][mine] == _SYN_SENT).any())
        own, peers = (opener, other) if active else (other, opener)
        if active and rows["lport"][opens] == rows["rport"][opens]:
            peers = own  # it is connected to itself
        iss = int(rows["snd_max"][opens[0]]) - 1
        irs = int(rows["rcv_nxt"][opens[0]]) - 1 - int(rows["seg_len"][opens[0]])
        for name in (*OWN, *PEERS):
            if name in (rows.dtype.names or ()):
                _shift(rows, mine, name, own - iss if name in OWN else peers - irs)
        location = rows["location"][mine]
        sent = np.isin(location, [names[name] for name in _SENT])
        for name in ("seg_seq", "seg_ack"):
            if name in (rows.dtype.names or ()):
                by_own = sent == (name == "seg_seq")
                _shift(rows, mine[by_own], name, own - iss)
                _shift(rows, mine[~by_own], name, peers - irs)
        again = mine[location == names["RETRANSMIT"]]
        _shift(rows, again, "callvalue", own - iss)


def _shift(rows: NDArray[Any], at: NDArray[Any], name: str, by: int) -> None:
    known = at[rows[name][at] != 0]
    rows[name][known] = (rows[name][known].astype(np.int64) + by) % (1 << 32)


def answers(
    path: Path, folder: Path, more: Sequence[Sequence[str]] = ()
) -> dict[str, bytes]:
    """What each analysis says of a PSC file, by its words; files that it writes are in `folder`,
    which has that file alone. more: the words of further commands, but for the file."""
    found = {}
    here = path.name
    (folder / "other").write_bytes(path.read_bytes())
    drawn = ("snd_max", "snd_una", "snd_fack", "rcv_nxt")
    for words in (
        ["why", "-v", here], ["why", "--json", here], ["why", "--intervals", "--json", here],
        ["connections", here], ["requests", "--json", here], ["conform", here],
        ["check", here, "bytes_acked > 0", "retrans_ratio < 1", "limit_share('rwnd') < 20%"],
        ["diff", "--json", f"a={here}", "b=other"], ["pair", "--table", "delays", here, "other"],
        ["report", "-o", "out", here], ["export", "--format", "perfetto", "-o", "out", here],
        ["pmgraph", "-x", "--show", ",".join(drawn), here],
        ["pmgraph", "--xplot", "out.xpl", here],
        *([*words, here] for words in more),
    ):  # fmt: skip
        for old in folder.iterdir():
            if old.name not in (here, "other"):
                old.unlink()
        module = import_module(f"tcpkmon.formats.commands.{words[0]}")
        before = os.getcwd()
        os.chdir(folder)
        try:
            done = CliRunner().invoke(module.command, words[1:], standalone_mode=False)
        finally:
            os.chdir(before)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        out = (one for one in sorted(folder.iterdir()) if one.name not in (here, "other"))
        written = [one.read_bytes() for one in out]
        found[" ".join(words)] = b"\0".join([done.output.encode(), *written])
    return found
