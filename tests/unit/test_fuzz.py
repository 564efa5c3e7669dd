# SPDX-License-Identifier: Apache-2.0
"""scripts/fuzz finds what is planted, and each input that it found before stays mended."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcpkmon.collector.control import server
from tests.full import first
from tests.fuzz import main, targets, worker
from tests.fuzz.mutate import mend, mutate
from tests.fuzz.seeds import CORPUS, KINDS, seeds
from tests.fuzz.targets import TARGETS, Target
from tests.unit.log_builder import clean_log

ROOT = Path(__file__).resolve().parents[2]
CORPUS_BYTES = 1 << 20
SLOW = {"picture"}


@pytest.fixture(autouse=True)
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCPKMON_FUZZ_TMP", str(tmp_path))
    monkeypatch.setattr(server, "ROUND_S", 0.0)  # the target sets it, for its whole process
    targets._folder.cache_clear()
    yield
    targets._folder.cache_clear()


QUICK = [name for name in TARGETS if name not in SLOW]


@pytest.mark.parametrize("name", first(30, (name for at in range(3) for name in QUICK[at::3])))
def test_what_fuzzing_starts_from_is_read(name: str) -> None:
    for data in seeds(TARGETS[name].kind).values():
        TARGETS[name].run(data)


def test_the_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= CORPUS_BYTES
    assert all(path.parent.name in KINDS for path in files)


def test_checksums_are_right_again() -> None:
    whole = clean_log().finish().data()
    assert mend(whole) == whole
    at = whole.index(b"KLOGDUMP") + 60
    broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    assert mend(broken) not in (whole, broken)


def raise_in_formats(data: bytes) -> None:
    if b"!" in data:
        from tcpkmon.formats.base.escape import for_terminal

        for_terminal(None)  # type: ignore[arg-type]


def contradict(data: bytes) -> None:
    if b"!" in data:
        raise AssertionError(f"exit code {len(data)}")


def hang(data: bytes) -> None:
    while b"!" in data:
        pass


def take_memory(data: bytes) -> None:
    if b"!" in data:
        assert b"1" * (1200 << 20)


def crash(data: bytes) -> None:
    if b"!" in data:
        import ctypes

        import scipy.ndimage  # its many extension modules are in a crash's log

        assert scipy.ndimage
        ctypes.string_at(0)


@pytest.mark.parametrize(
    ("plant", "found", "shown"),
    [
        (raise_in_formats, "schema.AttributeError.escape.", "Traceback"),
        pytest.param(contradict, "schema.wrong.exit-code", "Traceback", marks=pytest.mark.full),
        pytest.param(hang, "schema.hang", "test_fuzz.py", marks=pytest.mark.full),
        pytest.param(take_memory, "schema.memory", "1024 MiB", marks=pytest.mark.full),
        (crash, "schema.crash.exit-11", "Segmentation fault"),
    ],
)
def test_what_is_planted_is_found_and_shrunk(
    plant, found, shown, tmp_path, monkeypatch, capfd
) -> None:
    monkeypatch.setitem(TARGETS, "schema", Target("schema", 1, plant))
    monkeypatch.setattr(main, "seeds", lambda kind: {"one": b"a", "two": b"bcd" * 50 + b"!"})
    monkeypatch.setattr(main, "atheris", None)
    if plant is hang:
        monkeypatch.setattr(main, "HANG_S", 2.0)
    where = ["--found", str(tmp_path / "found"), "--jobs", "1"]
    assert main.main(["--only", "schema", "--runs", "2", *where]) == 1
    (path,) = [one for one in (tmp_path / "found").iterdir() if one.suffix != ".txt"]
    assert path.name.startswith(found)
    assert b"!" in path.read_bytes()
    if "wrong" in found or "Error" in found:
        assert path.read_bytes() == b"!"
    assert shown in path.with_name(f"{path.name}.txt").read_text()
    assert f"scripts/fuzz --reproduce {main.os.path.relpath(path)}" in capfd.readouterr().out
    assert main.main(["--reproduce", str(path)]) == 1
    assert shown in capfd.readouterr().out


@pytest.mark.full
def test_inputs_are_chosen_by_what_they_cover(tmp_path: Path) -> None:
    """A schema's keywords are met by coverage, not by chance: it reaches deeper with each run."""
    pytest.importorskip("atheris")
    done = subprocess.run(
        [sys.executable, "-I", ROOT / "scripts" / "fuzz", "--only", "schema", "--runs", "200",
         "--corpus", tmp_path / "corpus", "--found", tmp_path / "found"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by coverage" in done.stdout
    assert len(list((tmp_path / "corpus" / "schema").iterdir())) > len(seeds("schema"))


@pytest.mark.full  # so does scripts/test, for longer
def test_lines_run_under_the_sanitizers(tmp_path: Path) -> None:
    arguments = ["--only", "lines", "--runs", "10", "--found", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-I", ROOT / "scripts" / "fuzz", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sanitized-lines" in done.stdout


@pytest.mark.full
def test_what_reads_outside_of_its_rows_is_found(tmp_path, monkeypatch, capfd) -> None:
    for path in main.LINES.parent.glob("*.[ch]"):
        text = path.read_text()
        text = text.replace("at > size || size - at < plan->size || ", "at > size + 8 || ")
        (tmp_path / path.name).write_text(text)
    assert (tmp_path / "lines.c").read_text() != main.LINES.read_text()
    monkeypatch.setattr(main, "LINES", tmp_path / "lines.c")
    found = tmp_path / "found"
    words = ["--only", "lines", "--runs", "4", "--seed", "3", "--found", str(found)]
    assert main.main(words) == 1
    reports = [path.read_text() for path in found.glob("sanitized-lines.*.txt")]
    assert any("AddressSanitizer: heap-buffer-overflow" in report for report in reports)


def test_changes_are_the_same_for_the_same_seed() -> None:
    inputs = list(seeds("psc").values())

    def changed() -> list[bytes]:
        chance = worker.random.Random(7)
        return [mutate(inputs[0], inputs, chance, 5000) for _ in range(200)]

    first = changed()
    assert first == changed()
    assert len(set(first)) > 150
    assert max(map(len, first)) <= 5000


def test_a_second_look_before_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the worker writes just now may be torn: one look at it says nothing."""
    watch = worker.Watch()
    watch.enter(b"x")
    job = worker.Job("x", TARGETS["schema"], [], Path(), Path(), 1, 1, 1.0, watch=watch)
    child = main.os.fork()
    if not child:
        time.sleep(60)
        main.os._exit(0)
    try:
        running = main.Running(job, child, 0.0)
        monkeypatch.setattr(main, "_WALL_S", -1.0)
        assert main._ended(running) is None
        assert running.seen == watch.look()
    finally:
        main.os.kill(child, 9)
        main.os.waitpid(child, 0)
