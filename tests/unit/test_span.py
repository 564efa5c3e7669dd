# SPDX-License-Identifier: Apache-2.0
"""What lies between two marks of a capture that runs on, and when it is proven."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tcpkmon.formats.analysis.check import find_span, write_span
from tcpkmon.formats.base.control import Mark
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.psc.reader import open_capture
from tests.unit.psc_files import CaptureBuilder

BEGIN, END = 71, 72
Step = Callable[[CaptureBuilder], None]


def built(path: Path, step: Step, where: str = "inside", **options: object) -> Path:
    """Marks around five snapshots, checkpoints around them; the step is somewhere."""
    maker = CaptureBuilder(**options)  # type: ignore[arg-type]

    def here(place: str) -> None:
        if place == where:
            step(maker)

    maker.snapshots(0, 1, 3)
    here("long before")
    maker.checkpoint()
    maker.snapshots(1, 2, 2)
    maker.put(Mark(BEGIN, ""))
    maker.snapshots(0, 1, 2)
    here("inside")
    maker.snapshots(1, 2, 3)
    maker.put(Mark(END, ""))
    maker.snapshots(1, 2, 4)
    maker.checkpoint()
    here("later")
    maker.snapshots(0, 1, 1)
    return maker.write(path)


def miss(maker: CaptureBuilder) -> None:
    maker.missed[1] = (2, 1)


LOSSES: dict[str, Step] = {
    "ring_full": lambda maker: maker.lose("ring_full", count=4),
    "without its entry": lambda maker: maker.lose("ring_full", count=4, entry=False),
    "table_full": lambda maker: maker.lose("table_full", count=4),
    "late": lambda maker: maker.lose("late", count=4),
    "damaged": lambda maker: maker.lose("damaged", count=4),
    "disk_full": lambda maker: maker.lose_writing("disk_full", count=4),
}


@pytest.mark.parametrize("big_endian", [False, True])
def test_the_rows_between_the_marks(tmp_path: Path, big_endian: bool) -> None:
    path = built(tmp_path / "run.pm", lambda maker: None, big_endian=big_endian)
    with open_capture(path) as capture:
        span = find_span(capture, BEGIN, END, 0)
        assert span is not None and span.proof.proven and span.proof.lost == 0
        write_span(capture, span, tmp_path / "span.pm")
        whole = capture.rows(span.start, span.stop)
    with open_capture(tmp_path / "span.pm") as cut:
        assert cut.rows().tobytes() == whole.tobytes() and cut.lost == 0
        marks = [(row, entry.number) for row, entry in cut.controls() if isinstance(entry, Mark)]
        assert marks == [(0, BEGIN), (len(cut) - 1, END)]
        assert (~cut.control()).sum() == 5


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_is_told_where_it_is(tmp_path: Path, kind: str) -> None:
    for where, lost in (("inside", 4), ("long before", 0), ("later", 0)):
        path = built(tmp_path / f"{where}.pm", LOSSES[kind], where)
        with open_capture(path) as capture:
            span = find_span(capture, BEGIN, END, 0)
        assert span is not None
        assert (span.proof.lost, span.proof.proven) == (lost, not lost), (where, span.proof)
        assert span.proof.verdict == ("4 lost" if lost else "nothing lost")


def test_what_else_is_no_proof(tmp_path: Path) -> None:
    cases: dict[str, tuple[Step, dict[str, object]]] = {
        "3 lost": (miss, {}),
        "what is recorded was changed": (lambda maker: maker.switch(1, False), {}),
        "losses of some locations are not counted":
            (lambda maker: None, {"settings": {"unproven": {"RTO": "kprobe"}}}),
    }  # fmt: skip
    for verdict, (step, options) in cases.items():
        with open_capture(built(tmp_path / "run.pm", step, **options)) as capture:
            span = find_span(capture, BEGIN, END, 0)
        assert span is not None and not span.proof.proven and span.proof.verdict == verdict


def test_what_is_not_there_yet(tmp_path: Path) -> None:
    path = built(tmp_path / "run.pm", lambda maker: None)
    with open_capture(path) as capture:
        size, whole = capture.entry_dtype.itemsize, path.read_bytes()
        head = len(whole) - size * len(capture)
        last = max(row for row, _ in capture.controls())
    for rows, is_there in ((last + 1, True), (last, False), (last - 12, False), (0, False)):
        path.write_bytes(whole[: head + rows * size])
        with open_capture(path) as capture:
            assert (find_span(capture, BEGIN, END, 0) is not None) == is_there
    path.write_bytes(whole)
    with open_capture(path) as capture:
        assert find_span(capture, BEGIN, END + 1, 0) is None
        with pytest.raises(UsageError, match="lacks the mark"):
            find_span(capture, BEGIN - 1, END, 0)
