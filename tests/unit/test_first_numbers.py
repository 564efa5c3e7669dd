# SPDX-License-Identifier: Apache-2.0
"""Analyses say the same of a connection whatever sequence numbers it began with.

tests/live/test_first_numbers_live.py does the same with losses, and with all columns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tcpkmon
from tcpkmon.formats.base.sequence import NO_NUMBER, ahead, ahead_of, has_numbers, unwrap
from tcpkmon.formats.psc.reader import Capture
from tests.full import first
from tests.kept.make import unpack

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


def plain(numbers: list[int], known: list[bool], before: int, bits: int) -> list[int]:
    """unwrap() of one stream, a number at a time."""
    found: list[int] = []
    last = before
    for number, is_known in zip(numbers, known, strict=True):
        if is_known:
            half = 1 << bits - 1
            last = number if last == NO_NUMBER else (
                last + (number - last + half) % (2 * half) - half)  # fmt: skip
        found.append(last)
    later = next((one for one in found if one != NO_NUMBER), NO_NUMBER)
    return [later if one == NO_NUMBER else one for one in found]


@st.composite
def streams(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], list[bool], int]]]:
    bits = draw(st.sampled_from([8, 16, 32]))
    edges = st.sampled_from([0, 1, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits) - 1])
    number = st.one_of(edges, st.integers(0, (1 << bits) - 1))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        numbers = draw(st.lists(number, min_size=1, max_size=6))
        known = [draw(st.booleans()) for _ in numbers]
        before = draw(st.one_of(st.just(NO_NUMBER), st.integers(0, 1 << 40)))
        found.append((numbers, known, before))
    return bits, found


@given(streams())
def test_numbers_of_several_streams_count_on(
    given_: tuple[int, list[tuple[list[int], list[bool], int]]],
) -> None:
    bits, found = given_
    firsts = np.cumsum([0, *(len(numbers) for numbers, _, _ in found)])[:-1]
    numbers = np.array([one for stream in found for one in stream[0]], np.uint32)
    known = np.array([one for stream in found for one in stream[1]])
    before = np.array([stream[2] for stream in found])
    wanted = [one for stream in found for one in plain(*stream, bits)]
    assert unwrap(numbers, before, firsts, known, bits).tolist() == wanted


def test_numbers_of_64_bits_stay_as_they_are() -> None:
    numbers = np.array([5, 1 << 63, 7, (1 << 64) - 1], np.uint64)
    assert (unwrap(numbers, bits=64).view(np.uint64) == numbers).all()


def test_who_has_no_numbers_yet() -> None:
    rows = {"location": np.array([4, 4, 1, 4, 4, 11]), "state": np.array([7, 2, 2, 2, 3, 7]),
            "callvalue": np.array([2, 3, 0, 1, 1, 0])}  # fmt: skip
    assert has_numbers(rows).tolist() == [False, False, False, True, True, False]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A capture of a loopback, with calls, and what is said of it with ordinary numbers."""
    folder = tmp_path_factory.mktemp("kept")
    unpack("psc-plain", folder)
    original = folder / "psc-plain.pm"
    home = tmp_path_factory.mktemp("ordinary")
    return original, answers(renumbered(original, home / "a.pm", 1000, 500_000), home)


@pytest.mark.parametrize(("opener", "other"), first(2, [
    (2**32 - 1, 2**32 - 1), *zip(EDGES, (*EDGES[1:], EDGES[0]), strict=True)
]))  # fmt: skip
def test_each_analysis_says_the_same(
    tmp_path: Path, said: tuple[Path, dict[str, bytes]], opener: int, other: int
) -> None:
    original, wanted = said
    found = answers(renumbered(original, tmp_path / "a.pm", opener, other), tmp_path)
    assert [words for words in wanted if found[words] != wanted[words]] == []


NUMBERS = [0, 1, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1000, 2**32 - 1]


@pytest.mark.parametrize("kind", [np.uint32, np.int64, np.uint64])
def test_the_shorter_way_round(kind: type) -> None:
    now, before = (part.ravel() for part in np.meshgrid(NUMBERS, NUMBERS))
    wanted = [(a - b + 2**31) % 2**32 - 2**31 for a, b in zip(now.tolist(), before.tolist(),
                                                              strict=True)]  # fmt: skip
    found = ahead_of(now.astype(kind), before.astype(kind))
    assert found.dtype == np.int64
    assert found.tolist() == wanted
    assert [ahead(*pair) for pair in zip(now.tolist(), before.tolist(), strict=True)] == wanted


def test_numbers_that_went_on_past_their_end() -> None:
    assert ahead_of(np.array([5, 2**32 - 5]), np.array([3 * 2**32 + 2, 2**33 + 1])).tolist() == [
        3, -6,
    ]  # fmt: skip
