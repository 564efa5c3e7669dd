# SPDX-License-Identifier: Apache-2.0
"""Who owns the folder of root's capture reads by it no file that he could not read before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tcpkmon.collector.commands.metrics_file import TextFile
from tcpkmon.collector.linux import isolated, trusted_files
from tcpkmon.collector.session import keeper
from tcpkmon.collector.session.archive import Archive
from tcpkmon.collector.session.retention import Retention
from tcpkmon.collector.testing.baseline import Baseline, check_file
from tcpkmon.collector.writer.output_file import Output
from tcpkmon.collector.writer.own_files import append_line, swappable
from tcpkmon.collector.writer.segment_folder import SegmentFolder
from tcpkmon.formats.base.errors import FileError, TcpkmonError
from tcpkmon.formats.base.files import open_plain
from tcpkmon.formats.base.segments import find_segments, hidden
from tests.full import IS_FULL
from tests.unit.makers import LogMaker, index_of, make
from tests.unit.test_supervisor import killed_segment

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it needs a second user")

ATTACKER = 64_321
RACE_S = 6.0 if IS_FULL else 0.5
"""How long the attacker tries; hundreds of times in a second."""
NAME = "a-20260101T000000Z-000001.pm"
SWAPS = """
import os, sys
name, secret = sys.argv[1:]
while True:
    for step in (lambda: os.rename(name, ".kept"), lambda: os.symlink(secret, name),
                 lambda: os.unlink(name), lambda: os.rename(".kept", name)):
        try:
            step()
        except OSError:
            pass
"""

RACES = """
import ctypes, os, sys
what, name, outside = sys.argv[1:]
exchange = ctypes.CDLL(None).renameat2
while True:
    try:
        if what == "folder":
            exchange(-100, b"his", -100, b"link", 2)
        elif what == "file":
            os.symlink(f"{outside}/{name}", ".link")
            os.rename(".link", f"his/{name}")
            os.unlink(f"his/{name}")
        else:
            for one in os.listdir("his"):
                if one != name:
                    os.rename(f"his/{one}", ".aside")
                    os.symlink(f"{outside}/{one}", f"his/{one}")
    except OSError:
        pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The attacker's own, and root may write there."""
    made = tmp_path / "out"
    made.mkdir(mode=0o755)
    os.chown(made, ATTACKER, ATTACKER)
    for above in (tmp_path, *tmp_path.parents[:3]):
        if above.stat().st_uid == 0 and above != Path("/tmp"):
            above.chmod(above.stat().st_mode | 0o011)
    return made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A capture of root's that nobody else may read."""
    (path,) = make(tmp_path / "root's", segments=1, count=30)
    path.chmod(0o600)
    return path


class Swapper:
    """A process of the attacker that puts a link to `secret` in a file's place, in a loop; or does
    what another script does with these words."""

    def __init__(self, folder: Path, *words: object, script: str = SWAPS) -> None:
        def become() -> None:
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)

        # Not that of an environment, which may be in a folder that is closed to others.
        command = ["/usr/bin/python3", "-c", script, *map(str, words)]
        self._process = subprocess.Popen(command, cwd=folder, preexec_fn=become)  # noqa: PLW1509

    def __enter__(self) -> Swapper:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def put(content: bytes, path: Path) -> None:
    """Make a file of root's."""
    new = path.with_name(".new")
    new.write_bytes(content)
    new.chmod(0o640)
    new.rename(path)


@pytest.fixture
def fd(folder: Path) -> Iterator[int]:
    made = os.open(folder, os.O_RDONLY)
    yield made
    os.close(made)


def test_no_archive_is_another_users_or_has_what_a_link_named(
    folder: Path, secret: Path, tmp_path: Path, fd: int
) -> None:
    pytest.importorskip("pyarrow")
    (path,) = make(tmp_path / "mine", segments=1, count=10)
    content, archive = path.read_bytes(), Archive("zst", fd)
    made = 0
    until_s = time.monotonic() + RACE_S
    with Swapper(folder, NAME, secret):
        while time.monotonic() < until_s:
            put(content, folder / NAME)
            new = folder / archive.take(NAME)
            with suppress(OSError):
                there = new.lstat()
                if new.name == NAME or not stat.S_ISREG(there.st_mode):
                    continue
                made += 1
                assert (there.st_uid, stat.S_IMODE(there.st_mode)) == (0, 0o640)
                with open_plain(new) as file:
                    assert file.read() == content
                new.unlink()
    assert made, "nothing was archived at all"
    assert secret.exists()


@pytest.mark.parametrize("swap", ["hard link", "fifo", "link", "another's", "archive's name"])
def test_nothing_else_is_archived(
    folder: Path, secret: Path, tmp_path: Path, fd: int, swap: str,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("pyarrow")
    before = secret.read_bytes()
    place = folder / NAME
    if swap == "hard link":
        os.link(secret, place)
    elif swap == "fifo":
        os.mkfifo(place)
    elif swap == "link":
        place.symlink_to(secret)
    elif swap == "another's":
        put(before, place)
        os.chown(place, ATTACKER + 1, ATTACKER + 1)
    else:
        put(before, place)
        place.with_name(f"{NAME}.zst").symlink_to(tmp_path / "victim")
    signal.alarm(20)
    assert Archive("zst", fd).take(NAME) == NAME
    signal.alarm(0)
    assert "is not archived" in capfd.readouterr().err
    assert place.lstat() and secret.read_bytes() == before
    assert not (tmp_path / "victim").exists()
    assert not [one for one in folder.iterdir() if one.is_file() and one.name.startswith(".")]


def test_what_was_sealed_is_what_is_archived(
    folder: Path, secret: Path, fd: int, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    put(secret.read_bytes(), folder / NAME)
    status = (folder / NAME).stat()
    known = status.st_dev, status.st_ino
    put(secret.read_bytes(), folder / "other")
    (folder / NAME).rename(folder / "kept")
    (folder / "other").rename(folder / NAME)
    assert Archive("zst", fd).take(NAME, known) == NAME
    assert "another file has the name" in capfd.readouterr().err
    (folder / "kept").rename(folder / NAME)
    os.link(folder / NAME, folder / "a backup of it")
    assert Archive("zst", fd).take(NAME, known) == f"{NAME}.zst"


def repair(folder: Path, name: str) -> str:
    """Repair as the daemon does; what it says."""
    words = isolated.command("tcpkmon.collector.daemon.repairing", str(folder), name)
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize("swap", ["hard link", "another's", "fifo"])
def test_nothing_else_is_repaired(folder: Path, secret: Path, swap: str) -> None:
    part = folder / hidden(NAME)
    if swap == "hard link":
        os.link(secret, part)
    elif swap == "another's":
        put(secret.read_bytes(), part)
        os.chown(part, ATTACKER + 1, ATTACKER + 1)
    else:
        os.mkfifo(part)
    assert "cannot be repaired" in repair(folder, NAME)
    assert [one.name for one in folder.iterdir()] == [part.name] and secret.exists()


def test_no_link_is_repaired_into_the_folder(folder: Path, secret: Path, tmp_path: Path) -> None:
    """In a loop, in one process; the segment's own owner and mode stay."""
    name = killed_segment(tmp_path / "mine")
    content = (tmp_path / "mine" / hidden(name)).read_bytes()
    try:
        from tcpkmon.collector.daemon.repairing import mend
    except ImportError:
        from tcpkmon.collector.daemon.mending import mend  # type: ignore[attr-defined,no-redef]
    from tcpkmon.formats.verify import verify_file

    known = verify_file(secret).part
    made, until_s = 0, time.monotonic() + RACE_S
    with (
        Swapper(folder, hidden(name), secret), patch("tcpkmon.collector.linux.privileges.settle"),
        patch("tcpkmon.collector.daemon.repairing.say", lambda text: None),
    ):  # fmt: skip
        while time.monotonic() < until_s:
            put(content, folder / hidden(name))
            with suppress(FileNotFoundError, FileError):
                mend(folder, [name])
            new = folder / name
            if new.exists():
                made += 1
                assert new.stat().st_mode & 0o777 == 0o640 and new.stat().st_uid == 0
                part = verify_file(new).part
                assert part is None or known is None or part.capture != known.capture
                new.unlink()
    assert made, "nothing was repaired at all"


@pytest.mark.timeout(60)
def test_a_pipe_in_the_work_folders_place_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    """The folder's owner renames what root works in."""
    from tcpkmon.collector.daemon.repairing import mend

    name = killed_segment(tmp_path / "mine")
    (folder / hidden(name)).write_bytes((tmp_path / "mine" / hidden(name)).read_bytes())
    work, moved = folder / f".{name}.mending", folder / "moved"

    def swap(source: str, out: str) -> None:
        Path(out).write_text("half of it")
        work.rename(moved)
        os.mkfifo(work)
        raise FileError("no more")

    with (
        patch("tcpkmon.collector.linux.privileges.settle"),
        patch("tcpkmon.collector.daemon.repairing.say", lambda text: None),
        patch("tcpkmon.formats.registry.format_of", lambda path: SimpleNamespace(repair=swap)),
        suppress(FileError),
    ):
        mend(folder, [name])
    assert stat.S_ISFIFO(work.lstat().st_mode), "what is not its own stays"
    assert not list(moved.iterdir())


def test_what_is_empty_is_removed_and_what_a_killed_repair_left(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    log = "a-20260101T000000Z-000001.klog"
    (folder / hidden(log)).mkdir()
    assert repair(folder, log) == "" and not list(folder.iterdir())
    (folder / hidden(log)).mkdir()
    (folder / hidden(log) / "kernlog.dump.cpu0").touch()
    (folder / f".{NAME}.mending").mkdir()
    (folder / f".{NAME}.mending" / NAME).touch()
    (folder / f".{NAME}.mended").touch()
    (folder / ".other.mended").touch()
    assert repair(folder, log) == ""
    assert [one.name for one in folder.iterdir()] == [".other.mended"]


def test_a_log_with_an_empty_file_is_repaired(tmp_path: Path) -> None:
    """Its capture was killed between the file of a CPU and its first bytes."""
    maker = LogMaker(tmp_path / "live")
    maker.records(10)
    maker.checkpoint()
    time.sleep(0.5)
    (part,) = (tmp_path / "live").glob(".*.part")
    folder = tmp_path / "out"
    shutil.copytree(part, folder / part.name)
    maker.close()
    (folder / part.name / "kernlog.dump.cpu7").touch()
    said = repair(folder, part.name[1:-5])
    assert "of a capture that was killed" in said, said
    assert [one.sealed for one in find_segments(folder)] == [True]
    assert index_of(folder)[0]["what"] == "repaired"


def test_the_index_is_no_other_file(folder: Path, secret: Path, fd: int) -> None:
    before = secret.read_bytes()
    os.link(secret, folder / "index.jsonl")
    with pytest.raises(OSError, match="another name"):
        append_line(fd, {"what": "sealed", "name": NAME})
    assert secret.read_bytes() == before
    (folder / "index.jsonl").unlink()
    lines = secret.with_name("lines")
    lines.write_text(json.dumps({"what": "sealed", "name": NAME}) + "\n")
    (folder / "index.jsonl").symlink_to(lines)
    with pytest.raises(OSError):
        append_line(fd, {"what": "sealed", "name": NAME})
    from tcpkmon.collector.plan.rotation import Rotation

    put(b"x", folder / NAME)
    assert not Retention(Rotation(every_s=1, keep_bytes=0), fd).apply()


def test_a_killed_keepers_archives_are_removed(
    folder: Path, fd: int, tmp_path: Path
) -> None:
    import fcntl

    names = {kind: f".a-20260101T000000Z-00000{number}.pm.zst.part"
             for number, kind in enumerate(("ours", "another's", "made now"), 1)}  # fmt: skip
    for name in (*names.values(), ".other.zst.part"):
        (folder / name).write_bytes(b"x")
    os.chown(folder / names["another's"], ATTACKER + 1, 0)
    with (folder / names["made now"]).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Archive("zst", fd).clear()
    left = {one.name for one in folder.iterdir()}
    assert left == {names["another's"], names["made now"], ".other.zst.part"}


@pytest.mark.parametrize("rotates", [False, True])
def test_one_rule_for_links(folder: Path, tmp_path: Path, rotates: bool) -> None:
    """None in the last place; above it none of another user's, nor in a folder that he may write.
    """

    def make_output(path: Path) -> str:
        try:
            made = SegmentFolder(path) if rotates else Output(path)
        except FileError as error:
            return error.message
        made.discard()
        return ""

    target, own = tmp_path / "target", tmp_path / "own"
    target.mkdir()
    own.mkdir()
    for place in (folder, own):
        (place / "link").symlink_to(target)
        (place / "last").symlink_to(target / "made")
    assert make_output(own / "link" / "new") == ""
    assert "link in a folder that others may write" in make_output(folder / "link" / "new")
    for place in (folder, own):
        (target / "made").mkdir(exist_ok=True)
        assert "is a symbolic link" in make_output(place / "last")
    own.chmod(0o1777)
    assert make_output(own / "link" / "new") == ""
    os.chown(own / "link", ATTACKER, ATTACKER, follow_symlinks=False)
    assert "link in a folder that others may write" in make_output(own / "link" / "new")
    os.symlink("..", folder / "up")
    assert "link in a folder" in make_output(folder / "up" / "target" / "new")
    assert not (target / "new").exists()


def test_another_users_index_and_files_make_retention_delete_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a folder that all may write to, as /tmp."""
    from tcpkmon.collector.plan.rotation import Rotation

    shared = tmp_path / "shared"
    first, second = make(shared, segments=2, count=20)
    shared.chmod(0o1777)
    os.chown(shared / "index.jsonl", ATTACKER, ATTACKER)
    fd = os.open(shared, os.O_RDONLY)
    try:
        assert not Retention(Rotation(every_s=1, keep_files=1), fd).apply()
        assert "another user's" in capfd.readouterr().err
        os.chown(shared / "index.jsonl", 0, 0)
        huge = shared / NAME.replace("2026", "2099")
        with huge.open("wb") as file:
            file.truncate(1 << 40)
        os.chown(huge, ATTACKER, ATTACKER)
        assert not Retention(Rotation(every_s=1, keep_bytes=1 << 30), fd).apply()
        assert Retention(Rotation(every_s=1, keep_files=1), fd).apply() == [first.name]
    finally:
        os.close(fd)
    assert second.exists() and huge.exists()


def test_a_folder_that_went_is_not_repaired_in_words(tmp_path: Path) -> None:
    """Who owns what is above it removes it, or puts a link there."""
    assert "is not repaired: No such file" in repair(tmp_path / "none", NAME)
    (tmp_path / "link").symlink_to(tmp_path)
    assert "is not repaired" in repair(tmp_path / "link", NAME)


def test_a_descriptor_in_proc_leads_where_the_kernel_says(tmp_path: Path) -> None:
    """Its text may be a path of another mount namespace, or of a folder that went."""
    gone = tmp_path / "gone"
    gone.mkdir()
    fd = os.open(gone, os.O_RDONLY)
    gone.rmdir()
    gone.mkdir()
    for path in (f"/proc/self/fd/{fd}", f"/proc/{os.getpid()}/fd/{fd}/"):
        opened = trusted_files.open_folder(path)
        assert os.path.samestat(os.fstat(opened), os.fstat(fd))
        os.close(opened)
    os.close(fd)


def test_roots_command_is_given_no_file_that_a_folder_above_can_swap(folder: Path) -> None:
    """The folder is root's own, the one above it is not: its owner can put another there."""
    mine = folder / "mine"
    mine.mkdir(mode=0o755)
    assert swappable(str(mine)) == str(folder)
    fd = os.open(mine, os.O_RDONLY)
    with pytest.raises(FileError, match=f"others may swap files in {folder};"):
        keeper._check_ours(str(mine), fd)
    os.chown(folder, 0, 0)
    assert swappable(str(mine)) is None  # /tmp is sticky
    keeper._check_ours(str(mine), fd)
    mine.rename(folder / "other")
    mine.mkdir(mode=0o755)
    with pytest.raises(FileError, match=f"others may swap files in {mine};"):
        keeper._check_ours(str(mine), fd)
    os.close(fd)
    folder.chmod(0o777)
    assert swappable(str(mine)) == str(folder)
    folder.chmod(0o1777)
    assert swappable(str(mine)) is None
    assert swappable(str(folder)) == str(folder)


def store_baseline(path: Path) -> None:
    check_file(path, True)
    Baseline(path, "test", True).compare("run", {"goodput": 1.0})


def write_metrics(path: Path) -> None:
    with TextFile(str(path)) as file:
        file.write(b"x 1\n")


def all_of(folder: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for path in (folder, *folder.iterdir()):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[path.name] = (content, status.st_mode, status.st_uid, status.st_nlink)
    return found


@pytest.mark.parametrize("what", ["folder", "file", "parts"])
@pytest.mark.parametrize("write", [store_baseline, write_metrics])
def test_no_race_leads_a_file_of_roots_elsewhere(
    folder: Path, tmp_path: Path, what: str, write: Callable[[Path], None]
) -> None:
    """He exchanges the folder, the file or its parts for links, while root looks and writes."""
    outside = tmp_path / "root's"
    outside.mkdir(mode=0o700)
    (outside / "base.json").write_text('{"tests": {"roots": {}}}')
    (outside / "base.json").chmod(0o600)
    (folder / "his").mkdir()
    (folder / "link").symlink_to(outside)
    os.chown(folder / "his", ATTACKER, ATTACKER)
    os.lchown(folder / "link", ATTACKER, ATTACKER)
    before, tries, made = all_of(outside), 0, 0
    until_s = time.monotonic() + RACE_S / 2
    with Swapper(folder, what, "base.json", outside, script=RACES):
        while time.monotonic() < until_s or not (tries > 20 or made):
            tries += 1
            with suppress(TcpkmonError, OSError):
                write(folder / "his" / "base.json")
                made += 1
    assert all_of(outside) == before
    for path in (one for one in folder.rglob("*") if one.is_file() and not one.is_symlink()):
        assert b"roots" not in path.read_bytes()
