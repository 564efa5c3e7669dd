# SPDX-License-Identifier: Apache-2.0
"""C text as schema_lint.py looks at it: uses of macros with their arguments, and places.

No preprocessor: what stands in any branch of an #if is looked at, comments and strings are not.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from formats.base.errors import Problem

_PIECE = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
      | "(?:\\.|[^"\\\n])*"
      | '(?:\\.|[^'\\\n])*'""",
    re.VERBOSE | re.DOTALL,
)
_NOT_NEWLINE = re.compile(r"[^\n]")
_LINE = re.compile(r'^#line ([0-9]{1,9}) "((?:\\.|[^"\\\n])*)"$', re.MULTILINE)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b(?:\\\n|[^\n])*", re.MULTILINE)
_DEFINES = re.compile(r"[ \t]*#[ \t]*(?:define|undef|ifn?def)[ \t]+")
_MARK = re.compile(r"[(){}\[\],]")
_PAIRS = {")": "(", "}": "{", "]": "["}
_STRING = re.compile(r'"[^"\\]*"')


def blank_comments(text: str, literals: bool = False) -> str:
    """C text with spaces for comments (and strings), everything else at the same place."""

    def blank(match: re.Match[str]) -> str:
        if match["comment"] is None and not literals:
            return match[0]
        return _NOT_NEWLINE.sub(" ", match[0])

    return _PIECE.sub(blank, text)


@dataclass(frozen=True)
class Use:
    """A macro with its arguments (text without comments), from `start` to `end` in the text.

    body: where the block behind it ends, if there is one.
    """

    name: str
    start: int
    end: int
    arguments: tuple[str, ...]
    offsets: tuple[int, ...]
    closed: bool
    in_macro: bool
    file: str
    body: int

    def argument(self, number: int) -> str:
        """An argument's text, empty if there is none."""
        return self.arguments[number] if number < len(self.arguments) else ""

    def at(self, number: int) -> int:
        """Where an argument begins; the macro itself if there is none."""
        return self.offsets[number] if number < len(self.offsets) else self.start

    def is_string(self, number: int) -> bool:
        """Whether an argument is one string without escapes."""
        return _STRING.fullmatch(self.argument(number)) is not None

    def words(self, number: int) -> list[tuple[str, int]]:
        """The words of an argument that is one string, each with its place."""
        if not self.is_string(number):
            return []
        inside = self.argument(number)[1:-1]
        start = self.at(number) + 1
        return [(found[0], start + found.start()) for found in re.finditer(r"\S+", inside)]


class CText:
    """A C text; `files` are those that its #line directives name, in order."""

    def __init__(self, text: str, file: str) -> None:
        self._code = blank_comments(text)
        self._bare = blank_comments(text, literals=True)
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        # From the index of a line in the whole text: the file, and what its numbers are ahead by.
        self._files: list[tuple[int, str, int]] = [(-1, file, 1)]
        for match in _LINE.finditer(text):
            index = bisect_right(self._lines, match.start()) - 1
            name = re.sub(r"\\(.)", r"\1", match[2])
            self._files.append((index, name, int(match[1]) - index - 1))
        self.files = list(dict.fromkeys(name for _, name, _ in self._files))
        self._defines = [match.span() for match in _DEFINE.finditer(self._bare)]
        self._ends: dict[int, int] = {}
        self._commas: dict[int, list[int]] = {}
        self._match_brackets()

    def problem(self, offset: int, message: str) -> Problem:
        """A problem at an offset of the text, by the file and line that #line tells."""
        index = bisect_right(self._lines, offset) - 1
        _, file, ahead = self._file_of(index)
        return Problem(file, index + ahead, offset - self._lines[index] + 1, message)

    def names(self, pattern: str) -> Iterator[tuple[str, int, str]]:
        """The words of the code that match a pattern: text, offset, file."""
        for match in re.finditer(rf"\b(?:{pattern})\b", self._bare, re.ASCII):
            yield match[0], match.start(), self._file(match.start())

    def uses(self, name: str) -> Iterator[Use]:
        """The uses of a macro in the code, but for its own definition."""
        for match in re.finditer(rf"\b{name}\s*\(", self._bare, re.ASCII):
            if self._is_definition(match.start()):
                continue
            opened = match.end() - 1
            end = self._ends.get(opened)
            texts, offsets = self._split(opened, end) if end is not None else ((), ())
            yield Use(
                name,
                match.start(),
                opened if end is None else end + 1,
                texts,
                offsets,
                end is not None,
                self._in_define(match.start()),
                self._file(match.start()),
                self._body(end),
            )

    def _split(self, opened: int, end: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        edges = [opened, *self._commas.get(opened, ()), end]
        texts, offsets = [], []
        for left, right in itertools.pairwise(edges):
            part = self._code[left + 1 : right]
            texts.append(part.strip())
            offsets.append(left + 1 + len(part) - len(part.lstrip()) if texts[-1] else right)
        return ((), ()) if texts == [""] else (tuple(texts), tuple(offsets))

    def _body(self, end: int | None) -> int:
        if end is None:
            return 0
        found = re.compile(r"\s*\{").match(self._bare, end + 1)
        return self._ends.get(found.end() - 1, 0) if found else 0

    def _match_brackets(self) -> None:
        """One pass: the end of each bracket, and the commas that stand directly in it."""
        stack: list[int] = []
        depth = dict.fromkeys(_PAIRS.values(), 0)
        for match in _MARK.finditer(self._bare):
            mark, at = match[0], match.start()
            if mark == ",":
                if stack:
                    self._commas.setdefault(stack[-1], []).append(at)
            elif mark not in _PAIRS:
                stack.append(at)
                depth[mark] += 1
            elif depth[_PAIRS[mark]] and (mark == "}" or self._bare[stack[-1]] == _PAIRS[mark]):
                # A brace closes what was left open in it.
                while True:
                    opened = stack.pop()
                    depth[self._bare[opened]] -= 1
                    if self._bare[opened] == _PAIRS[mark]:
                        break
                self._ends[opened] = at

    def _is_definition(self, offset: int) -> bool:
        line = self._lines[bisect_right(self._lines, offset) - 1]
        head = _DEFINES.match(self._bare, line)
        return head is not None and head.end() == offset

    def _in_define(self, offset: int) -> bool:
        index = bisect_right(self._defines, (offset, len(self._bare))) - 1
        return index >= 0 and offset < self._defines[index][1]

    def _file(self, offset: int) -> str:
        return self._file_of(bisect_right(self._lines, offset) - 1)[1]

    def _file_of(self, index: int) -> tuple[int, str, int]:
        return self._files[bisect_right(self._files, index, key=lambda entry: entry[0]) - 1]
