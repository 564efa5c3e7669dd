# SPDX-License-Identifier: Apache-2.0
"""Schema text and files to a checked Schema, or to an error that tells of every mistake at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from formats.errors import FileError, Problem, SchemaError
from formats.schema.grammar import Grammar
from formats.schema.model import Schema
from formats.schema.resolve import check, merge

MAX_TEXT_BYTES = 1 << 20


def parse(text: str, filename: str = "<schema>") -> Schema:
    """The schema that `text` declares; raises SchemaError with every problem in it."""
    schema, problems = _read(text, filename)
    problems += check(schema)
    if problems:
        raise SchemaError(sorted(problems))
    return schema


def load(paths: Iterable[str | os.PathLike[str]]) -> Schema:
    """The schema that several files declare together (a file named twice counts once).

    Raises FileError, or SchemaError with the problems of all files.
    """
    files: dict[str, str] = {}
    for path in paths:
        files.setdefault(os.path.realpath(path), os.fspath(path))
    schemata: list[Schema] = []
    problems: list[Problem] = []
    for name in files.values():
        try:
            schema, found = _read(_text(name), name)
        except SchemaError as error:
            problems += error.problems
            continue
        schemata.append(schema)
        problems += found
    merged = merge(schemata)
    problems += check(merged)
    if problems:
        order = {name: number for number, name in enumerate(files.values())}
        raise SchemaError(sorted(problems, key=lambda problem: (order[problem.file], problem)))
    return merged


def schema_name(path: str) -> str:
    """The name of the schema in a file ``NAME.conf`` or ``.klogger.conf.NAME``."""
    base = os.path.basename(path)
    if base.startswith(".klogger.conf."):
        return base.removeprefix(".klogger.conf.")
    return base.removesuffix(".conf")


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise FileError(f"cannot read schema {path}: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        problem = Problem(path, before.count(b"\n") + 1, column, "expected text in UTF-8")
        raise SchemaError([problem]) from error


def _read(text: str, file: str) -> tuple[Schema, list[Problem]]:
    if len(text) > MAX_TEXT_BYTES:
        raise SchemaError([Problem(file, 1, 1, f"expected at most {MAX_TEXT_BYTES} characters")])
    grammar = Grammar(text, file)
    return grammar.schema(schema_name(file)), grammar.problems
