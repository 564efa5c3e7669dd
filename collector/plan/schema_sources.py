# SPDX-License-Identifier: Apache-2.0
"""Finds the schemata of a capture, checks that they can be trusted, and reads them as one.

A user's schema is a folder with NAME.conf and NAME.bpf.c. Its C text runs in the kernel, so a
capture accepts it only from where nobody but root can write (collector/linux/trusted_files.py).
Each file is read once, and that text is what is checked and compiled. The declarations go to
formats/schema, the C text to schema_lint.py, kernel_types.py and the compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tcpkmon.collector.linux.syscalls import ARM64
from tcpkmon.collector.linux.trusted_files import open_trusted
from tcpkmon.collector.plan.columns import SCHEMATA
from tcpkmon.collector.ring.rings import DEFAULT_TRANSPORT
from tcpkmon.formats.base.errors import FileError, Problem, SchemaError, UsageError
from tcpkmon.formats.base.limits import MOST_SCHEMA_BYTES
from tcpkmon.formats.base.text import suggest
from tcpkmon.formats.schema import (
    Schema,
    decode_text,
    extended_by,
    load,
    read_text,
    schema_name,
)

BASE = "base"
TCP = "tcp"
INCLUDES = SCHEMATA.parent / "include"
ENGINE = INCLUDES / "klogger.h"
TEXT_SUFFIX = ".bpf.c"

LITERAL = r""""(?:\\.|\\\n|[^"\\\n])*"?|'(?:\\.|\\\n|[^'\\\n])*'?"""
"""A string or character constant of C; an unclosed one ends with its line."""
_PIECE = re.compile(rf"(?P<comment>//(?:\\\n|[^\n])*|/\*(?s:.*?)(?:\*/|\Z))|{LITERAL}")
_SPLICE = r"(?:\\\r?\n)*"
_SPACE = rf"(?:[ \t\f\v\r]{_SPLICE}|\\\r?\n)*"


def _word(name: str) -> str:
    """A pattern of a word, in which lines may end in a backslash."""
    return _SPLICE.join(name)


_INCLUDE = re.compile(
    rf"^{_SPACE}(?:\#|%:|\?\?=){_SPACE}(?:(?P<include>{_word('include')}\b)|"
    rf"{'|'.join(map(_word, ('include_next', 'import', 'embed')))}){_SPACE}"
    r"""(?P<rest>(?:"(?P<quoted>[^"\n]*)"|<(?P<angled>[^>\n]*)>)?[^\n]*)$""",
    re.MULTILINE,
)
"""Each directive that reads a file. The compiler must open none by itself, so those that _Pasting
cannot follow are errors."""
_HEADER_NAME = re.compile(r"[\w.+-]+", re.ASCII)
_SYSTEM_NAME = re.compile(r"(?!/)(?!.*\.\.)[\w./+-]+", re.ASCII)
# The HOWTO's programs include these; here the engine always comes first.
_ENGINE_NAMES = {"klogger.h", "linux/klogger.h"}


_SYSCALLS = re.compile(r"enum syscall \{[^}]*\}")


Read = Callable[[Path], str]
"""Reads a file: FileError, SchemaError where it is not UTF-8."""


@dataclass(frozen=True)
class Source:
    """The files of a schema; text: its C file (base has none). read: how to read all of them.
    extends: the schema that it adds columns and locations to, or ''."""

    name: str
    conf: Path
    text: Path | None
    shipped: bool
    read: Read = field(default=read_text, compare=False, repr=False)
    extends: str = ""


class _TrustedFiles:
    """The files of users' schemata, each read once: read() returns the same text again.

    PrivilegeError where somebody else could have written a file.
    """

    def __init__(self) -> None:
        self._bytes: dict[Path, bytes] = {}

    def read(self, path: Path) -> str:
        if path not in self._bytes:
            with os.fdopen(open_trusted(path), "rb") as file:
                self._bytes[path] = file.read(MOST_SCHEMA_BYTES + 1)
        return decode_text(self._bytes[path], path)


def shipped_names() -> tuple[str, ...]:
    """The names of the schemata that come with tcpkmon."""
    return tuple(sorted(path.stem for path in SCHEMATA.glob("*.conf")))


def find_sources(
    asked: Sequence[str], trusted_only: bool = True, text_needed: bool = True
) -> tuple[Source, ...]:
    """base, and the schemata asked for: names of shipped ones, folders, or .conf files.

    trusted_only: PrivilegeError unless only root can change each file of a user's schema, each
    file that it includes, and each folder above them. UsageError for what is no schema (without
    `text_needed` a .conf alone is one), and for two schemata of one name.
    """
    found: dict[str, Source] = {}
    trusted = _TrustedFiles() if trusted_only else None
    words = [BASE, *asked]
    for word in words:  # of which there may be one more
        source = _find(word, trusted, text_needed)
        before = found.setdefault(source.name, source)
        if before.conf != source.conf:
            raise UsageError(
                f"two schemata are called '{source.name}': {before.conf} and {source.conf}",
                "rename the files of one",
            )
        if source.extends and TCP not in words:
            words.append(TCP)
    # What extends tcp uses what the C text of tcp defines.
    sources = sorted(found.values(), key=lambda source: bool(source.extends))
    if trusted_only:
        paste_texts(sources)
    return tuple(sources)


def read_shipped(path: Path) -> str:
    """A shipped schema's file, with the numbers of this machine's system calls."""
    text = read_text(path)
    if ARM64 and path == SCHEMATA / "syscall.conf":
        calls = (SCHEMATA / "syscall_arm64.h").read_text()
        text = _SYSCALLS.sub(lambda _: _SYSCALLS.findall(calls)[0], text)
    return text


def has_tcp(sources: Sequence[Source]) -> bool:
    """Whether the schema tcp is among them, whose programs record snapshots."""
    return any(source.shipped and source.name == TCP for source in sources)


def load_schema_of(sources: Sequence[Source]) -> Schema:
    """The declarations of all, as one schema; SchemaError with all problems, or FileError."""
    return load(*declarations(sources))


def declarations(sources: Sequence[Source]) -> tuple[list[Path], Callable[[str], str]]:
    """The .conf files of all, and what reads them: the arguments of formats.schema.load()."""
    reads = {str(source.conf): source.read for source in sources}
    return [source.conf for source in sources], lambda path: reads[path](Path(path))


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
    parts = [pasting.paste(ENGINE, read_text), pasting.paste(INCLUDES / ring, read_text)]
    for source in sources:
        if source.text is not None:
            parts.append(pasting.paste(source.text, source.read))
    return "\n".join(parts) + "\n", pasting.problems


class _Pasting:
    """Pastes files, and the headers that they include in place, each header once in all."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._done: set[Path] = set()

    def paste(self, path: Path, read: Read) -> str:
        self._done.add(path)
        try:
            text = read(path)
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
            header = self._header(path, text, match, read)
            if header is None:
                continue
            parts.append(text[end : match.start()])
            if header not in self._done:
                line = text.count("\n", 0, match.end()) + 2
                pasted = self.paste(header, read_text if header.parent == INCLUDES else read)
                parts.append(f'{pasted}\n#line {line} "{_c_string(path)}"')
            end = match.end()
        return "".join([*parts, text[end:]])

    def _header(self, path: Path, text: str, match: re.Match[str], read: Read) -> Path | None:
        """The file to paste here; None: the line stays, for headers of the compiler."""
        name = match["quoted"] if match["include"] else None
        if (name or match["angled"]) in _ENGINE_NAMES:
            return ENGINE
        if match["include"] and match["angled"] and _SYSTEM_NAME.fullmatch(match["angled"]):
            return None
        if name is not None and _HEADER_NAME.fullmatch(name):
            if _exists(path.parent / name, read_text if path.parent == INCLUDES else read):
                return path.parent / name
            if (INCLUDES / name).is_file():
                return INCLUDES / name
        line = text.count("\n", 0, match.start()) + 1
        start = match.start("rest")
        column = start - text.rfind("\n", 0, start)
        if name is None:
            what = f"expected #include \"NAME\" or <NAME>, found '{match[0].strip()[:60]}'"
        else:
            headers = [h.name for folder in (path.parent, INCLUDES) for h in folder.glob("*.h")]
            column += 1
            what = (
                f"expected a header beside this file or of {INCLUDES}, found '{name[:60]}'"
                f"{suggest(name, headers)}"
            )
        self.problems.append(Problem(str(path), line, column, what))
        return None


def _exists(path: Path, read: Read) -> bool:
    try:
        read(path)
    except FileError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    except SchemaError:
        pass  # it is not UTF-8
    return True


def _c_string(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace('"', '\\"')


def _find(word: str, trusted: _TrustedFiles | None, text_needed: bool) -> Source:
    names = shipped_names()
    if word in names or word == BASE:
        conf = SCHEMATA / f"{word}.conf"
        text = SCHEMATA / f"{word}{TEXT_SUFFIX}"
        return Source(word, conf, text if text.is_file() else None, True, read_shipped)
    # Not resolved, so that open_trusted() sees links in the path.
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
    source = _pair(path, text_needed)
    for file in (source.conf, source.text):
        if file is None:
            continue
        if trusted is not None:
            _exists(file, trusted.read)
        elif not file.is_file():
            raise UsageError(f"{file} is no regular file")
    source = source if trusted is None else replace(source, read=trusted.read)
    try:
        extends = extended_by(source.read(source.conf), str(source.conf))
    except SchemaError:
        return source  # it is told when the schema is loaded
    if extends not in ("", TCP):
        raise UsageError(
            f"{source.conf} extends '{extends}': only the schema {TCP} can be extended"
        )
    return replace(source, extends=extends)


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
