# SPDX-License-Identifier: Apache-2.0
"""The first step of reading a schema: text to tokens, each with its place and its comments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from formats.base.errors import Problem
from formats.schema.comments import comment_lines
from formats.schema.model import Position

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

    `before`: text of the comment lines directly above; `after`: of the comments behind it on its
    line (and of lines that continue them at the same column).
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
    """Comments that stand above the next token, and where a comment behind a token may go on."""

    above: list[str] = field(default_factory=list)
    above_end: int = 0
    behind_end: int = 0
    behind_column: int = 0


def tokens(text: str, file: str) -> tuple[list[Token], list[Problem]]:
    """All tokens of `text`, the last of kind end, and the problems (a comment never closed)."""
    found: list[Token] = []
    problems: list[Problem] = []
    state = _Comments()
    line, line_start = 1, 0
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "other", match[0]
        position = Position(file, line, match.start() - line_start + 1)
        if kind == "unclosed":
            problems.append(Problem(*_place(position), "expected '*/', found end of file"))
        elif kind == "comment":
            _keep(part, position, found, state)
        elif kind != "space":
            found.append(Token(kind, part, position, _take(state, line)))
        if "\n" in part:
            line += part.count("\n")
            line_start = match.start() + part.rindex("\n") + 1
    end = Position(file, line, len(text) - line_start + 1)
    found.append(Token("end", "", end))
    return found, problems


def _keep(comment: str, position: Position, found: list[Token], state: _Comments) -> None:
    lines = comment_lines(comment)
    end = position.line + comment.count("\n")
    is_behind = bool(found) and found[-1].line == position.line
    continues = state.behind_end == position.line - 1 and state.behind_column == position.column
    if is_behind or (continues and found):
        found[-1].after += lines
        state.behind_end, state.behind_column = end, position.column
    elif state.above and state.above_end < position.line - 1:  # an empty line between
        state.above, state.above_end = lines, end
    else:
        state.above += lines
        state.above_end = end


def _take(state: _Comments, line: int) -> list[str]:
    above = state.above if state.above_end >= line - 1 else []
    state.above = []
    return above


def _place(position: Position) -> tuple[str, int, int]:
    return position.file, position.line, position.column
