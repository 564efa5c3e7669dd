# SPDX-License-Identifier: Apache-2.0
"""--dataset: sealed segments get into a dataset, once, by its owner, whatever is killed or full."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.plan.rotation import Rotation
from tcpkmon.collector.session.keeper import Keeper
from tcpkmon.formats.dataset import Store, add, check
from tests.unit.makers import make
from tests.unit.test_dataset import rows_of
from tests.unit.test_lasting import wait_for, worker_of

pytest.importorskip("pyarrow")
OWNER = 12345


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, OWNER, OWNER)
    return folder


@contextmanager
def keeping(paths: list[Path], place: Path, **more: Any) -> Iterator[Keeper]:
    fd = os.open(paths[0].parent, os.O_RDONLY)
    rotation = Rotation(every_s=1, dataset=str(place), **more)
    try:
        with redirect_stderr(sys.__stderr__):  # they have descriptor 2 alone
            keeper = Keeper(rotation, fd, str(paths[0].parent), None)
        with keeper:
            yield keeper
    finally:
        os.close(fd)


def by_hand(paths: list[Path], place: Path) -> dict[str, int]:
    store = Store(str(place))
    for path in paths:
        add(store, path)
    return rows_of(store)


def names_in(place: Path) -> list[str]:
    store = Store(str(place))
    parts = store.parts("table=settings")
    return sorted(name for part in parts for name in store.read(part)["file"].to_pylist())


@pytest.mark.parametrize("archive", ["", "zst"])
def test_each_segment_is_added(tmp_path: Path, place: Path, archive: str) -> None:
    """Two are there before, the others are sealed meanwhile; what adds them is killed."""
    paths = make(tmp_path / "out", segments=6, count=20)
    told = by_hand(paths, tmp_path / "other")
    away = tmp_path / "away"
    away.mkdir()
    for path in paths[2:]:
        path.rename(away / path.name)
    with keeping(paths, place, archive=archive) as keeper:
        for path in paths[2:]:
            (away / path.name).rename(path)
            status = path.stat()
            keeper.sealed(path.name, (status.st_dev, status.st_ino))
            os.kill(worker_of(keeper._processes[0]), signal.SIGKILL)
        wait_for(lambda: len(names_in(place)) == len(paths))
    assert rows_of(Store(str(place))) == told
    assert names_in(place) == [path.name for path in paths]
    assert not [text for text in check(Store(str(place))) if "missing" in text or "again" in text]
    assert not [path for path in place.rglob("*") if path.is_file() and path.name[0] == "."]
    if os.geteuid() == 0:
        assert {path.stat().st_uid for path in place.rglob("*")} == {OWNER}


def test_a_place_that_cannot_be_written_is_tried_again(
    tmp_path: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = make(tmp_path / "out", segments=3, count=20)
    os.rename(paths[2], tmp_path / "later")
    (place / "table=settings").write_text("in the way")
    said = ""

    def says(count: int) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.count("is not added to the dataset") == count

    with keeping(paths, place) as keeper:
        wait_for(lambda: says(2))  # what was there before
        keeper.sealed(paths[0].name)
        wait_for(lambda: says(3))
        (place / "table=settings").unlink()
        (tmp_path / "later").rename(paths[2])
        keeper.sealed(paths[2].name)
        wait_for(lambda: len(names_in(place)) >= 2)
    assert {paths[0].name, paths[2].name} <= {*names_in(place)}
    assert str(place) in said and "/proc/self" not in said, said


def test_a_damaged_segment_is_told_and_left(
    tmp_path: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = make(tmp_path / "out", segments=3, count=20)
    paths[1].write_bytes(b"not a capture" * 100)
    with keeping(paths, place):
        pass
    said = capfd.readouterr().err
    assert said.count(f"{paths[1].name} is not added to the dataset") == 1, said
    assert "Traceback" not in said and "/proc/self" not in said, said
    assert names_in(place) == [paths[0].name, paths[2].name]


def test_links_and_files_of_others_are_not_read(
    tmp_path: Path, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, for another user's folder")
    paths = make(tmp_path / "out", segments=3, count=20)
    victim = tmp_path / "victim.pm"
    paths[1].rename(victim)
    paths[1].symlink_to(victim)
    os.chown(paths[2], OWNER + 1, OWNER + 1)
    os.chown(tmp_path / "out", OWNER + 1, OWNER + 1)
    with keeping(paths, place):
        pass
    said = capfd.readouterr().err
    assert "is a symbolic link" in said and "is another user's" in said, said
    assert names_in(place) == [paths[0].name]


def test_what_was_opened_is_written_to(tmp_path: Path, place: Path) -> None:
    """Its owner puts another folder in its place after it was opened."""
    paths = make(tmp_path / "out", segments=2, count=20)
    opened, elsewhere = tmp_path / "opened", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o777)
    os.rename(paths[1], tmp_path / "later")
    with keeping(paths[:1], place) as keeper:
        wait_for(lambda: names_in(place))
        place.rename(opened)
        place.symlink_to(elsewhere)
        (tmp_path / "later").rename(paths[1])
        keeper.sealed(paths[1].name)
        wait_for(lambda: len(names_in(opened)) == 2)
    assert not [*elsewhere.iterdir()]
