# SPDX-License-Identifier: Apache-2.0
"""The output file: its name, its mode, and that nothing is there before its first bytes."""

from __future__ import annotations

import errno
import os
import pty
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from failing_calls import FaultyCalls

from tcpkmon.collector.writer.output_file import Output, Owner, find_owner
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.files import create_file

NO_TMPFILE = [None, errno.EOPNOTSUPP]


def make_calls(code: int | None) -> FaultyCalls:
    """Calls on a file system with or without O_TMPFILE."""
    calls = FaultyCalls()
    if code is not None:
        real = calls.open

        def without_tmpfile(path: str, flags: int, *more: int, **named: int) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(code, os.strerror(code))
            return int(real(path, flags, *more, **named))

        calls.open = without_tmpfile  # type: ignore[method-assign]  # an instance's own
    return calls


def open_below(folder: Path) -> list[str]:
    """The files in a folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [name for name in found if name.startswith(str(folder))]


@pytest.fixture(params=NO_TMPFILE, ids=["tmpfile", "no-tmpfile"])
def calls(request: pytest.FixtureRequest) -> Iterator[FaultyCalls]:
    yield make_calls(request.param)


def finish(output: Output) -> None:
    os.write(output.fd, b" and more")
    os.close(output.fd)


def test_file_appears_with_its_first_bytes(tmp_path: Path, calls: FaultyCalls) -> None:
    path = tmp_path / "out.pm"
    output = Output(path, calls=calls)
    assert not path.exists()
    output.begin(b"header")
    assert path.read_bytes() == b"header"
    assert os.listdir(tmp_path) == ["out.pm"]
    assert calls.counts["fsync"] == 2
    finish(output)
    assert path.read_bytes() == b"header and more"


def test_mode_is_exact_whatever_the_umask(tmp_path: Path, calls: FaultyCalls) -> None:
    for mask in (0, 0o777):
        old = os.umask(mask)
        try:
            output = Output(tmp_path / f"{mask}", calls=calls)
            output.begin(b"x")
        finally:
            os.umask(old)
        finish(output)
        assert stat.S_IMODE((tmp_path / f"{mask}").stat().st_mode) == 0o640


def test_existing_file_needs_force(tmp_path: Path, calls: FaultyCalls) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(FileError, match=r"out exists; use --force to replace it"):
        Output(path, calls=calls)
    output = Output(path, force=True, calls=calls)
    assert path.read_text() == "old"
    output.begin(b"new")
    finish(output)
    assert path.read_text() == "new and more"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "name", ["n" * 255, "\u00e4" * 127, "\U0001f600" * 63], ids=["1 byte", "2 bytes", "4 bytes"]
)
def test_a_name_of_any_length_is_replaced(tmp_path: Path, name: str) -> None:
    """The temporary file's name is cut in bytes, not in characters."""
    path = tmp_path / name
    path.write_text("old")
    output = Output(path, force=True)
    output.begin(b"new")
    os.close(output.fd)
    assert path.read_text() == "new"
    with create_file(path, force=True) as out:
        out.write(b"newer")
    assert path.read_text() == "newer" and os.listdir(tmp_path) == [name]


def test_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path, calls: FaultyCalls) -> None:
    path = tmp_path / "out"
    output = Output(path, calls=calls)
    path.write_text("somebody's")
    with pytest.raises(FileError, match="exists; use --force"):
        output.begin(b"new")
    assert path.read_text() == "somebody's"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_symbolic_links_are_refused(
    tmp_path: Path, calls: FaultyCalls, force: bool, target: str
) -> None:
    (tmp_path / "there").write_text("old")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    with pytest.raises(FileError, match="is a symbolic link"):
        Output(link, force=force, calls=calls)
    assert (tmp_path / "there").read_text() == "old"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("force", [False, True])
def test_link_that_appears_meanwhile_is_not_followed(
    tmp_path: Path, calls: FaultyCalls, force: bool
) -> None:
    path, target = tmp_path / "out", tmp_path / "target"
    output = Output(path, force=force, calls=calls)
    path.symlink_to(target)
    with pytest.raises(FileError):
        output.begin(b"new")
    assert not target.exists()
    assert os.listdir(tmp_path) == ["out"]


def test_bad_places_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for name, force, what in (
        ("none/out", False, "no such directory: .*none; make it first"),
        ("file/out", False, "file is not a directory"),
        ("", False, "is a directory"),
        (".", True, "is a directory"),
        ("pipe", True, "is not a regular file; use -o -"),
    ):
        with pytest.raises(FileError, match=what):
            Output(tmp_path / name, force=force)
    with pytest.raises(FileError, match="is not the name of a file"):
        Output(f"{tmp_path}/")
    with pytest.raises(FileError, match="cannot write"):
        Output(tmp_path / ("n" * 300))


@pytest.mark.parametrize(
    "code,what",
    [
        (errno.EACCES, "no permission to write"),
        (errno.EPERM, "no permission to write"),
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "no room"),
        (errno.EIO, "cannot write .*Input/output error"),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "fchmod", "link"])
def test_failed_calls_are_explained_and_leave_nothing(
    tmp_path: Path, call: str, code: int, what: str
) -> None:
    calls = FaultyCalls()
    calls.fail(call, code)
    with pytest.raises(FileError, match=what):
        Output(tmp_path / "out", calls=calls).begin(b"header")
    assert os.listdir(tmp_path) == []
    assert not open_below(tmp_path)


def test_failed_rename_keeps_the_old_file(tmp_path: Path, calls: FaultyCalls) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    calls.fail("rename", errno.EIO)
    with pytest.raises(FileError, match="cannot write"):
        Output(path, force=True, calls=calls).begin(b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_interrupted_and_short_writes_go_on(tmp_path: Path) -> None:
    calls = FaultyCalls()
    calls.fail("write", errno.EINTR, 1)
    calls.fail("write", -1, 2)
    output = Output(tmp_path / "out", calls=calls)
    output.begin(b"h" * 1000)
    assert (tmp_path / "out").read_bytes() == b"h" * 1000
    os.close(output.fd)


def test_standard_output_but_no_terminal(tmp_path: Path) -> None:
    saved = os.dup(1)
    main, terminal = pty.openpty()
    reader, writer = os.pipe()
    try:
        os.dup2(terminal, 1)
        with pytest.raises(FileError, match="standard output is a terminal"):
            Output("-")
        os.dup2(writer, 1)
        output = Output("-")
        output.begin(b"header")
        finish(output)
        assert os.read(reader, 100) == b"header and more"
    finally:
        os.dup2(saved, 1)
        for fd in (saved, main, terminal, reader, writer):
            os.close(fd)
    assert output.is_stdout


def test_the_owner_is_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_owner({"SUDO_UID": "1000", "SUDO_GID": "1001"}) == Owner(1000, 1001)
    assert find_owner({"SUDO_UID": "1000"}) == Owner(1000, -1)
    for text in ("0", "", "x", "-1", "4294967295", "9" * 30):
        assert find_owner({"SUDO_UID": text}) is None
    assert find_owner({"SUDO_UID": "1000", "SUDO_GID": "x"}) is None
    assert find_owner({}) is None
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_owner({"SUDO_UID": "1000"}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_file_belongs_to_its_owner(tmp_path: Path, calls: FaultyCalls) -> None:
    path = tmp_path / "out.pm"
    output = Output(path, calls=calls, owner=Owner(4242))
    output.begin(b"header")
    finish(output)
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (4242, os.getegid())
    assert stat.S_IMODE(status.st_mode) == 0o640
