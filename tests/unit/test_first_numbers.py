# SPDX-License-Identifier: Apache-2.0
"""Analyses say the same of a connection whatever sequence numbers it began with.

tests/live/test_first_numbers_live.py does the same with losses, and with all columns.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpkmon.formats.base.sequence import NO_NUMBER, ahead, ahead_of, has_numbers, unwrap
from tests.full import first
from tests.kept.make import unpack
from tests.unit.renumbering import EDGES, answers, renumbered


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
