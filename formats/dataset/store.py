# SPDX-License-Identifier: Apache-2.0
"""Where a dataset is: a folder, or an S3-like store, by pyarrow's file systems."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import DamagedError, FileError, TcpkmonError, UsageError

VERSION = 1
"""Of the tables' columns. A later one only adds columns, which are null in earlier files."""
ROW_GROUP = 122_880
"""DuckDB's unit of work."""
_META = b"tcpkmon"
_AT_ONCE = 16
"""Footers that are read at a time: a far store answers late."""


class StoreError(FileError):
    """The place of a dataset cannot be read or written."""


@dataclass(frozen=True)
class Part:
    """A file of a dataset. key: its path below the dataset."""

    key: str

    @property
    def table(self) -> str:
        return self.key.split("/")[0].partition("=")[2]

    @property
    def date(self) -> str:
        return self.key.split("/")[1].partition("=")[2]

    @property
    def folder(self) -> str:
        return self.key.rpartition("/")[0]

    @property
    def name(self) -> str:
        """That of its segment, unless it is merged."""
        return self.key.rpartition("/")[2].removesuffix(".parquet")

    @property
    def is_merged(self) -> bool:
        return self.name.startswith("merged-")


class Store:
    """A dataset at a path or URL (s3://bucket/prefix?endpoint_override=...). UsageError."""

    def __init__(self, place: str, name: str = "") -> None:
        """name: for people, where the place is that of a descriptor."""
        import_pyarrow()
        from pyarrow import fs

        self.url = name or place
        with _told(place):
            if "://" in place:
                self.files, self.base = fs.FileSystem.from_uri(place)
            else:
                self.files, self.base = fs.LocalFileSystem(), os.path.abspath(place)
        self.is_local = isinstance(self.files, fs.LocalFileSystem)

    def parts(self, below: str = "", check: bool = True) -> list[Part]:
        """The files, without those that a merged one replaces and its writer left behind.

        below: the folder of a table, or one of its days and hosts; what is not there has none.
        check: raise for a merged file that cannot be read; else it replaces nothing.
        """
        from pyarrow import fs

        where = f"{self.base}/{below}" if below else self.base
        chosen = fs.FileSelector(where, allow_not_found=True, recursive=True)
        with _told(self.url):
            found = self.files.get_file_info(chosen)
        cut = len(self.base.rstrip("/")) + 1
        parts = [Part(one.path[cut:]) for one in found if one.path.endswith(".parquet")]
        parts = [one for one in parts if one.key.count("/") == 3 and "/." not in one.key]
        gone: set[str] = set()
        beside = Counter(one.folder for one in parts)
        for one in parts:
            if one.is_merged and beside[one.folder] > 1:
                with nullcontext() if check else suppress(TcpkmonError):
                    gone |= {f"{one.folder}/{name}" for name in self.about(one)["replaces"]}
        return sorted((one for one in parts if one.key not in gone), key=lambda one: one.key)

    def days(self, table: str) -> list[str]:
        """The days of which a table has files, in order; it reads no other folder."""
        from pyarrow import fs

        chosen = fs.FileSelector(f"{self.base}/{table}", allow_not_found=True)
        with _told(self.url):
            found = self.files.get_file_info(chosen)
        return sorted(one.base_name.removeprefix("date=") for one in found
                      if one.base_name.startswith("date="))  # fmt: skip

    def about(self, part: Part) -> dict[str, Any]:
        """What a file says of itself. DamagedError; UsageError for one of a later version."""
        return self._footer(part)[0]

    def _footer(self, part: Part) -> tuple[dict[str, Any], Any]:
        """about(), and the file's pyarrow.Schema."""
        from pyarrow import parquet

        with _told(f"{self.url}: {part.key}"):
            metadata = parquet.read_metadata(f"{self.base}/{part.key}", filesystem=self.files)
            told = json.loads((metadata.metadata or {}).get(_META, b"null"))
        if not isinstance(told, dict) or not isinstance(told.get("segments"), list):
            raise DamagedError(f"{self.url}: {part.key} is no file of a dataset")
        if told.get("version", 0) > VERSION:
            raise UsageError(f"{self.url}: {part.key} is of a later version of tcpkmon",
                             "install that version")  # fmt: skip
        return told, metadata.schema.to_arrow_schema()

    def schemas(self, parts: Sequence[Part]) -> list[Any]:
        """Their pyarrow.Schemas. DamagedError, also where two of these files of one table have the
        same segment; UsageError."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            footers = list(pool.map(self._footer, parts))
        for text in twice(zip(parts, (about for about, _ in footers), strict=True)):
            raise DamagedError(f"{self.url}: {text}",
                               "delete one of them; tcpkmon dataset check lists all")  # fmt: skip
        return [schema for _, schema in footers]

    def row_groups(self, part: Part) -> Iterator[Any]:
        """All of a file, a pyarrow.Table for each row group. DamagedError: it cannot be read, or it
        is not as it was written."""
        from pyarrow import parquet

        with _told(f"{self.url}: {part.key}"):
            file = parquet.ParquetFile(f"{self.base}/{part.key}", filesystem=self.files)
            told = json.loads((file.metadata.metadata or {}).get(_META, b"{}")).get("digest")
            digest = hashlib.sha256()
            for number in range(file.metadata.num_row_groups):
                table = file.read_row_group(number)
                _hash(table, digest)
                yield table
        if told not in (None, digest.hexdigest()):
            raise DamagedError(f"{self.url}: {part.key} is not as it was written: another program "
                               "changed it, or the disk did", "add its captures again")  # fmt: skip

    def read(self, part: Part, columns: Sequence[str] | None = None) -> Any:
        """A file as a pyarrow.Table. DamagedError."""
        from pyarrow import parquet

        with _told(f"{self.url}: {part.key}"):
            name = f"{self.base}/{part.key}"
            return parquet.ParquetFile(name, filesystem=self.files).read(columns)

    def write(self, key: str, table: Any, about: dict[str, Any]) -> None:
        """Put a file there: whole, or not at all. One that is there is replaced.

        In a folder by a name of its own, fsync and rename; a store shows an object when all of it
        is there.
        """
        from pyarrow import parquet

        digest = hashlib.sha256()
        for at in range(0, table.num_rows, ROW_GROUP):
            _hash(table.slice(at, ROW_GROUP), digest)
        told = json.dumps({"version": VERSION, **about, "digest": digest.hexdigest()},
                          sort_keys=True).encode()  # fmt: skip
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _META: told})
        target = f"{self.base}/{key}"
        folder, _, name = target.rpartition("/")
        written = f"{folder}/.{name}.{secrets.token_hex(8)}" if self.is_local else target
        with _told(self.url):
            if self.is_local:
                self.files.create_dir(folder, recursive=True)
            try:
                with self.files.open_output_stream(written) as out:
                    parquet.write_table(table, out, compression="zstd", row_group_size=ROW_GROUP,
                                        write_statistics=True, coerce_timestamps="us",
                                        version="2.6")  # fmt: skip
                if self.is_local:
                    _sync(written)
                    os.rename(written, target)
                    _sync(folder)
            except BaseException:
                if self.is_local:
                    with suppress(OSError):
                        os.unlink(written)
                raise

    def delete(self, part: Part) -> None:
        """A file that another process deleted is no error."""
        with suppress(FileNotFoundError), _told(self.url):
            self.files.delete_file(f"{self.base}/{part.key}")


def is_dataset(place: str) -> bool:
    """Whether it is a URL, or a folder with tables of a dataset."""
    if "://" in place:
        return True
    try:
        return any(name.startswith("table=") for name in os.listdir(place))
    except (OSError, ValueError):  # no folder
        return False


def twice(known: Iterable[tuple[Part, dict[str, Any]]]) -> Iterator[str]:
    """Says which segments two files of one table have. known: files, with what each says of
    itself."""
    seen: dict[tuple[str, str], Part] = {}
    for part, about in known:
        for segment in about["segments"]:
            first = seen.setdefault((part.table, segment), part)
            if first is not part:
                yield f"segment {segment} is there twice: in {first.key} and in {part.key}"


def _hash(table: Any, digest: Any) -> None:
    """Adds the values of one row group: independent of chunks, and of what is under a null."""
    import pyarrow
    from pyarrow import compute

    for name in table.column_names if table.num_rows else ():
        column = pyarrow.concat_arrays(table[name].chunks)
        digest.update(f"{name} {column.type} {len(column)}\n".encode())
        digest.update(compute.is_valid(column).to_numpy(zero_copy_only=False).tobytes())
        if pyarrow.types.is_boolean(column.type):
            column = column.cast("int8")
        is_text = pyarrow.types.is_string(column.type) or pyarrow.types.is_binary(column.type)
        column = column.cast("binary") if is_text else column.view(_WHOLE[column.type.bit_width])
        column = compute.fill_null(column, b"" if is_text else 0)
        values = compute.binary_length(column).cast("int64") if is_text else column
        digest.update(values.to_numpy(zero_copy_only=False).tobytes())
        if is_text:
            digest.update(b"".join(column.to_pylist()))


_WHOLE = {8: "int8", 32: "int32", 64: "int64"}
"""Whole numbers by their bits: a value's own bits are hashed."""


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns pyarrow's errors into ours."""
    import pyarrow

    try:
        yield
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowInvalid, ValueError) as error:
        raise DamagedError(f"{what}: {' '.join(str(error).split())[:300]}") from error
    except OSError as error:
        raise StoreError(f"{what}: {' '.join(str(error).split())[:300]}") from error
