# SPDX-License-Identifier: Apache-2.0
"""What a folder's index tells of its files by their names: how large each is, and digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.files import open_plain
from tcpkmon.formats.base.segments import INDEX, Segment


class Listed:
    """Told of each line of the index; the last one of a name counts."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        """The SHA-256 of what was compressed."""
        self._sizes: dict[str, int] = {}
        """Bytes of a file, or of all files in a log's folder."""

    def told(self, line: Mapping[str, Any]) -> None:
        """A line of the index."""
        name = line.get("name")
        if not isinstance(name, str):
            return
        if isinstance(digest := line.get("sha256"), str):
            self._digests[name] = digest
        if type(size := line.get("bytes")) is int:
            self._sizes[name] = size

    def differences(self, segment: Segment, folder: str, is_whole: bool) -> Iterator[str]:
        """What is not as the index tells it. is_whole: nothing else is wrong with the segment."""
        path, digest = segment.path(folder), self._digests.get(segment.name)
        is_packed = digest is not None and segment.archived == ".zst"
        if is_packed and _digest(path) not in (None, digest):
            yield f"{INDEX} has another SHA-256 of what was compressed"
        size = self._sizes.get(segment.name) if segment.sealed and is_whole else None
        if size is not None and (there := _size(path)) not in (None, size):
            yield f"{INDEX} counts {size} bytes in it, but {there} are there"


def _digest(path: Path) -> str | None:
    with suppress(OSError, TcpkmonError), open_plain(path) as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()
    return None


def _size(path: Path) -> int | None:
    with suppress(OSError):
        files = list(path.iterdir()) if path.is_dir() else [path]
        return sum(os.stat(file).st_size for file in files)
    return None
