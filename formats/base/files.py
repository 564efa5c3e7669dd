# SPDX-License-Identifier: Apache-2.0
"""Creates the files that pmgraph writes, so that none follows a link or is left half written."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from formats.base.errors import FileError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def already_there(path: Path) -> FileError:
    """The error for a file that must not be overwritten."""
    return FileError(f"{path} is there already", "--force overwrites it")


@contextlib.contextmanager
def create_file(path: Path, force: bool) -> Iterator[BinaryIO]:
    """Give a new file to write; raises FileError where one is already, unless `force`."""
    if force:
        with replace_file(path) as out:
            yield out
        return
    try:
        descriptor = os.open(path, _NEW, 0o666)
    except FileExistsError as error:
        raise already_there(path) from error
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as out:
        yield out


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write that takes the place of `path` at the end, if all went well.

    Raises FileError; `path` is then as it was.
    """
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"{path} is no ordinary file", "choose another name")
        scratch = path.with_name(f".{path.name[:80]}.{secrets.token_hex(6)}")
        descriptor = os.open(scratch, _NEW, 0o666)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise FileError(f"{path} cannot be written: {error.strerror or error}") from error
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
