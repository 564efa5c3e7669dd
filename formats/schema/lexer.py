# SPDX-License-Identifier: Apache-2.0
"""Splits schema text into tokens, each with its position and its comments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tcpkmon.formats.base.errors import Problem
from tcpkmon.formats.schema.comments import comment_lines
from tcpkmon.formats.schema.model import Position

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>(?://|\#)[^\n]* | /\*.*?\*/)
      | (?P<unclosed>/\*.*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<number>[-+]?[0-9]\w*)
      | (?P<mark>[{}<>,;=])
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(slots=True)
class Token:
    """One word, number or mark; `kind` is name, number, mark, other or end.

    `before`: the comment lines directly above it. `after`: the comments behind it on its line, and
    the lines that continue them at the same column.
    """

    kind: str
    text: str
    position: Position
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @property
    def line(self) -> int:
        return self.position.line

    def found(self) -> str:
        """The token as an error message names it."""
        if self.kind == "end":
            return "end of file"
        text = self.text if len(self.text) <= 60 else f"{self.text[:60]}..."
        return f"'{text}'"


@dataclass
class _Comments:
    """The comments above the next token, and where a comment behind a token may continue."""

    above: list[str] = field(default_factory=list)
    above_end: int = 0
    behind_end: int = 0
    behind_column: int = 0

    def add(self, comment: str, position: Position, last: Token | None) -> None:
        """Add a comment to the token before it (`last`), or keep it for the next one."""
        lines = comment_lines(comment)
        end = position.line + comment.count("\n")
        continues = (self.behind_end, self.behind_column) == (position.line - 1, position.column)
        if last is not None and (last.line == position.line or continues):
            last.after += lines
            self.behind_end, self.behind_column = end, position.column
            return
        if self.above_end < position.line - 1:  # an empty line between
            self.above = []
        self.above += lines
        self.above_end = end

    def pop_above(self, line: int) -> list[str]:
        """The comments directly above a token on `line`, which belong to no other token then."""
        above, self.above = self.above, []
        return above if self.above_end >= line - 1 else []


def tokens(text: str, file: str) -> tuple[list[Token], list[Problem]]:
    """All tokens of `text`, the last of kind end, and the problems (a comment never closed)."""
    found: list[Token] = []
    problems: list[Problem] = []
    comments = _Comments()
    line, line_start = 1, 0
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "other", match[0]
        position = Position(file, line, match.start() - line_start + 1)
        if kind == "unclosed":
            problems.append(position.problem("expected '*/', found end of file"))
        elif kind == "comment":
            comments.add(part, position, found[-1] if found else None)
        elif kind != "space":
            found.append(Token(kind, part, position, comments.pop_above(line)))
        if "\n" in part:
            line += part.count("\n")
            line_start = match.start() + part.rindex("\n") + 1
    found.append(Token("end", "", Position(file, line, len(text) - line_start + 1)))
    return found, problems
