# SPDX-License-Identifier: Apache-2.0
"""Finds the schemata of a capture, checks that they can be trusted, and reads them as one.

A user's schema is a folder with NAME.conf and NAME.bpf.c. Its C text runs in the kernel, so a
capture accepts it only from where nobody but root can write. The declarations go to formats/schema,
the C text to schema_lint.py, kernel_types.py and the compiler.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.plan.columns import SCHEMATA
from collector.ring.rings import DEFAULT_TRANSPORT
from formats.base.errors import FileError, PrivilegeError, Problem, SchemaError, UsageError
from formats.base.limits import MOST_SCHEMA_BYTES
from formats.schema import Schema, load, read_text, schema_name, suggest

BASE = "base"
TCP = "tcp"
INCLUDES = SCHEMATA.parent / "include"
ENGINE = INCLUDES / "klogger.h"
TEXT_SUFFIX = ".bpf.c"

LITERAL = r""""(?:\\.|\\\n|[^"\\\n])*"?|'(?:\\.|\\\n|[^'\\\n])*'?"""
"""A string or character constant of C; an unclosed one ends with its line."""
_PIECE = re.compile(rf"(?P<comment>//(?:\\\n|[^\n])*|/\*(?s:.*?)(?:\*/|\Z))|{LITERAL}")
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>)[^\n]*$', re.MULTILINE
)
_HEADER_NAME = re.compile(r"[\w.+-]+", re.ASCII)
# The HOWTO's programs include these; here the engine always comes first.
_ENGINE_NAMES = {"klogger.h", "linux/klogger.h"}


@dataclass(frozen=True)
class Source:
    """The files of a schema; text: its C file (base has none)."""

    name: str
    conf: Path
    text: Path | None
    shipped: bool


def shipped_names() -> tuple[str, ...]:
    """The names of the schemata that come with tcpkmon."""
    return tuple(sorted(path.stem for path in SCHEMATA.glob("*.conf")))


def find_sources(
    asked: Sequence[str], trusted_only: bool = True, text_needed: bool = True
) -> tuple[Source, ...]:
    """base, and the schemata asked for: names of shipped ones, folders, or .conf files.

    trusted_only: PrivilegeError unless only root can change each file of a user's schema, each
    folder above it and each header beside it. UsageError for what is no schema (without
    `text_needed` a .conf alone is one), and for two schemata of one name.
    """
    found: dict[str, Source] = {}
    for word in (BASE, *asked):
        source = _find(word, trusted_only, text_needed)
        before = found.setdefault(source.name, source)
        if before.conf != source.conf:
            raise UsageError(
                f"two schemata are called '{source.name}': {before.conf} and {source.conf}",
                "rename the files of one",
            )
    return tuple(found.values())


def has_tcp(sources: Sequence[Source]) -> bool:
    """Whether the schema tcp is among them, whose programs record snapshots."""
    return any(source.shipped and source.name == TCP for source in sources)


def load_schema_of(sources: Sequence[Source]) -> Schema:
    """The declarations of all, as one schema; SchemaError with all problems, or FileError."""
    return load([source.conf for source in sources])


def made_events(schema: Schema) -> tuple[str, ...]:
    """The names of base's events: the collector makes them, not klogger()."""
    base = str(SCHEMATA / f"{BASE}.conf")
    return tuple(event.name for event in schema.events if event.position.file == base)


def blank_comments(text: str) -> str:
    """C text with spaces for comments, everything else at the same place."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if match["comment"] else match[0]

    return _PIECE.sub(blank, text)


def read_texts(sources: Sequence[Source], ring: str = DEFAULT_TRANSPORT.header) -> str:
    """The C text of all: the engine, the ring transport's header, then each file.

    Included headers are pasted in place, each once; #line directives name files and lines.
    SchemaError for headers that do not exist, FileError.
    """
    text, problems = paste_texts(sources, ring)
    if problems:
        raise SchemaError(problems)
    return text


def paste_texts(
    sources: Sequence[Source], ring: str = DEFAULT_TRANSPORT.header
) -> tuple[str, list[Problem]]:
    """As read_texts(), but returns the problems; what is wrong is missing in the text."""
    pasting = _Pasting()
    parts = [pasting.paste(ENGINE), pasting.paste(INCLUDES / ring)]
    parts += [pasting.paste(source.text) for source in sources if source.text is not None]
    return "\n".join(parts) + "\n", pasting.problems


class _Pasting:
    """Pastes files, and the headers that they include in place, each header once in all."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._done: set[Path] = set()

    def paste(self, path: Path) -> str:
        self._done.add(path)
        try:
            text = read_text(path)
        except SchemaError as error:
            self.problems += error.problems
            return ""
        if len(text) > MOST_SCHEMA_BYTES:
            message = f"expected at most {MOST_SCHEMA_BYTES} characters"
            self.problems.append(Problem(str(path), 1, 1, message))
            return ""
        parts = [f'#line 1 "{_c_string(path)}"\n']
        end = 0
        # An #include in a comment does not count. Blanking keeps all positions.
        for match in _INCLUDE.finditer(blank_comments(text)):
            header = self._header(path, text, match)
            if header is None:
                continue
            parts.append(text[end : match.start()])
            if header not in self._done:
                line = text.count("\n", 0, match.end()) + 2
                parts.append(f'{self.paste(header)}\n#line {line} "{_c_string(path)}"')
            end = match.end()
        return "".join([*parts, text[end:]])

    def _header(self, path: Path, text: str, match: re.Match[str]) -> Path | None:
        """The file to paste here; None: the line stays, for headers of the compiler."""
        name = match[1] if match[1] is not None else match[2]
        if name in _ENGINE_NAMES:
            return ENGINE
        if match[1] is None:
            return None
        places = [path.parent / name, INCLUDES / name] if _HEADER_NAME.fullmatch(name) else []
        for place in places:
            if place.is_file():
                return place
        headers = [each.name for folder in (path.parent, INCLUDES) for each in folder.glob("*.h")]
        line = text.count("\n", 0, match.start()) + 1
        column = match.start(1) - text.rfind("\n", 0, match.start(1))
        self.problems.append(
            Problem(
                str(path), line, column,
                f"expected a header beside this file or of {INCLUDES}, found '{name[:60]}'"
                f"{suggest(name, headers)}",
            )
        )  # fmt: skip
        return None


def _c_string(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _find(word: str, trusted_only: bool, text_needed: bool) -> Source:
    names = shipped_names()
    if word in names or word == BASE:
        conf = SCHEMATA / f"{word}.conf"
        text = SCHEMATA / f"{word}{TEXT_SUFFIX}"
        return Source(word, conf, text if text.is_file() else None, True)
    # Not resolved, so that _check_trusted() sees links in the path.
    path = Path(os.path.abspath(word))
    if any(not character.isprintable() for character in str(path)):
        raise UsageError(f"a schema's path holds unprintable characters: {word!r}")
    if not os.path.lexists(path):
        if "/" in word or word.endswith(".conf"):
            raise UsageError(f"there is no schema {word}: no such file or folder")
        raise UsageError(
            f"unknown schema '{word}'{suggest(word, names)}",
            f"shipped are {', '.join(names)}; or name a folder with NAME.conf and NAME.bpf.c",
        )
    if trusted_only:
        _check_trusted(path)
    source = _pair(path, text_needed)
    if trusted_only:
        for file in {source.conf, source.text, *source.conf.parent.glob("*.h")} - {None}:
            assert file is not None
            _check_trusted(file)
    for file in (source.conf, source.text):
        if file is not None and not file.is_file():
            raise UsageError(f"{file} is no regular file")
    return source


def _pair(path: Path, text_needed: bool) -> Source:
    """The schema of a folder, or of a .conf file."""
    conf = path
    try:
        if path.is_dir():
            confs = sorted(each for each in path.iterdir() if _is_conf(each))
            if not confs:
                raise UsageError(f"{path} holds no NAME.conf", "it declares the schema's events")
            if len(confs) > 1:
                listed = ", ".join(each.name for each in confs)
                raise UsageError(f"{path} holds several schemata: {listed}", f"name {confs[0]}")
            conf = confs[0]
    except PermissionError as error:
        raise FileError(f"cannot look into {path}: {error.strerror}") from error
    if not _is_conf(conf):
        raise UsageError(f"{path} is no NAME.conf", "name the folder, or its .conf file")
    name = schema_name(str(conf))
    text = conf.with_name(name + TEXT_SUFFIX)
    if os.path.lexists(text):
        return Source(name, conf, text, False)
    if text_needed:
        raise UsageError(
            f"{conf.parent} holds no {text.name}", f"it logs the events of {conf.name} by klogger()"
        )
    return Source(name, conf, None, False)


def _is_conf(path: Path) -> bool:
    return schema_name(path.name) not in ("", path.name)


def _check_trusted(path: Path) -> None:
    """Raises PrivilegeError unless only root can change the file or folder `path` (absolute)."""
    for each in (*reversed(path.parents), path):
        try:
            status = each.lstat()
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            raise FileError(f"cannot read {each}: {reason}") from error
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            real = os.path.realpath(path)
            raise PrivilegeError(f"{each} is a symbolic link, which is not followed", f"use {real}")
        if each != path and not stat.S_ISDIR(mode):
            raise PrivilegeError(f"{each} is no folder")
        if each == path and not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise PrivilegeError(f"{each} is no regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise PrivilegeError(
                f"{each} belongs to {_user(status.st_uid)}, and what it holds would run in the"
                " kernel",
                _remedy(each, path, f"chown root: {each}"),
            )
        # In a sticky folder (/tmp) only root can replace files of root.
        is_shared = each != path and mode & stat.S_ISVTX
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_shared:
            raise PrivilegeError(
                f"{each} may be written by others than root, and what it holds would run in the"
                " kernel",
                _remedy(each, path, f"chmod go-w {each}"),
            )


def _remedy(each: Path, path: Path, command: str) -> str:
    if each in path.parents[:1] or each == path:
        return command
    return f"{command}, or copy the schema to where only root writes, /etc/tcpkmon say"


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"
