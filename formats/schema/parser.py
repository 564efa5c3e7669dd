# SPDX-License-Identifier: Apache-2.0
"""Schema text and files to a checked Schema, or to one error with every mistake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.formats.base.errors import FileError, Problem, SchemaError
from tcpkmon.formats.base.limits import MOST_SCHEMA_BYTES
from tcpkmon.formats.schema.extending import extend
from tcpkmon.formats.schema.grammar import Grammar
from tcpkmon.formats.schema.model import Field, Schema
from tcpkmon.formats.schema.resolve import check, merge


@dataclass(frozen=True)
class Partial:
    """The declarations that could be read, and the problems."""

    schema: Schema
    problems: tuple[Problem, ...]


def parse(text: str, filename: str = "<schema>") -> Schema:
    """The schema in `text`; raises SchemaError with all problems."""
    read = _read(text, filename, {})
    problems = [*read.problems, *check(read.schema)]
    if problems:
        raise SchemaError(sorted(problems))
    return read.schema


def load(
    paths: Iterable[str | os.PathLike[str]], read: Callable[[str], str] | None = None
) -> Schema:
    """The schema of several files together (a file named twice counts once).

    read: reads a file instead of read_text(). Raises FileError, or SchemaError with the problems of
    all files.
    """
    partial = load_partly(paths, read)
    if partial.problems:
        raise SchemaError(partial.problems)
    return partial.schema


def load_partly(
    paths: Iterable[str | os.PathLike[str]], read: Callable[[str], str] | None = None
) -> Partial:
    """As `load`, but returns the problems (ordered by file), so that the caller can continue."""
    files: dict[str, str] = {}
    for path in paths:
        files.setdefault(os.path.realpath(path), os.fspath(path))
    schemata: list[Schema] = []
    groups: dict[str, tuple[Field, ...]] = {}
    problems: list[Problem] = []
    for name in files.values():
        try:
            one = _read((read or read_text)(name), name, groups)
        except SchemaError as error:
            problems += error.problems
            continue
        schemata.append(one.schema)
        problems += one.problems
    extended, found = extend(schemata)
    merged = merge(extended)
    problems += [*found, *check(merged)]
    order = {name: number for number, name in enumerate(files.values())}
    problems.sort(key=lambda problem: (order[problem.file], problem))
    return Partial(merged, tuple(problems))


def extended_by(text: str, filename: str = "<schema>") -> str:
    """The schema that this text extends, or ''."""
    return _read(text, filename, {}).schema.extends


def schema_name(path: str) -> str:
    """The name of the schema in a file ``NAME.conf`` or ``.klogger.conf.NAME``."""
    base = os.path.basename(path)
    if base.startswith(".klogger.conf."):
        return base.removeprefix(".klogger.conf.")
    return base.removesuffix(".conf")


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a schema file; raises FileError, or SchemaError if it is not UTF-8."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_SCHEMA_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read schema {path}: {error.strerror}") from error
    return decode_text(data, path)


def decode_text(data: bytes, path: str | os.PathLike[str]) -> str:
    """The text of a file's bytes; raises SchemaError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        line = before.count(b"\n") + 1
        problem = Problem(os.fspath(path), line, column, "expected text in UTF-8")
        raise SchemaError([problem]) from error


def _read(text: str, file: str, groups: dict[str, tuple[Field, ...]]) -> Partial:
    """What one text declares, with the problems that this text alone shows, in no order."""
    if len(text) > MOST_SCHEMA_BYTES:
        raise SchemaError([Problem(file, 1, 1, f"expected at most {MOST_SCHEMA_BYTES} characters")])
    grammar = Grammar(text, file, groups)
    schema = grammar.schema(schema_name(file))
    return Partial(schema, tuple(grammar.problems))
