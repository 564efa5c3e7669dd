# SPDX-License-Identifier: Apache-2.0
"""Reads the tokens of a schema for the grammar, and continues after a mistake."""

from __future__ import annotations

from dataclasses import dataclass

from tcpkmon.formats.base.errors import SchemaError
from tcpkmon.formats.base.limits import MOST_SCHEMA_PROBLEMS
from tcpkmon.formats.base.text import nearest
from tcpkmon.formats.schema.lexer import Token, tokens
from tcpkmon.formats.schema.model import Position

ITEMS = ("event", "fields", "enum", "loglevel", "using", "arch", "extends")
LEVEL_ITEMS = ("event", "include", "omit")
KEYWORDS = frozenset({*ITEMS, *LEVEL_ITEMS})
_CLOSES = {"{": "}", "<": ">"}

# Names that the C code made from a schema cannot use.
C_WORDS = frozenset({
    "asm", "auto", "break", "case", "char", "const", "continue", "default", "do", "double",
    "else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "typeof", "union", "unsigned", "void", "volatile", "while",
})  # fmt: skip


@dataclass
class Block:
    """A declaration with a body: its name, the mark that closes it, the line of its keyword."""

    keyword: str
    name: Token
    closes: str
    line: int
    is_open: bool = True

    def __str__(self) -> str:
        return f"{self.keyword} '{self.name.text}'" if self.name.text else self.keyword


class Cursor:
    """Reads tokens one by one; collects problems and does not stop at the first one."""

    def __init__(self, text: str, file: str) -> None:
        self._tokens, self.problems = tokens(text, file)
        self._ends = _block_ends(self._tokens)
        self._index = 0
        self._depth = 0

    @property
    def index(self) -> int:
        return self._index

    def peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def advance(self) -> Token:
        token = self.peek()
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these names or marks."""
        return self.peek().text in texts

    def at_end(self) -> bool:
        return self.peek().kind == "end"

    def fail(self, position: Position, message: str) -> None:
        """Add a problem; the caller continues."""
        message = message if len(message) <= 300 else f"{message[:300]}..."
        self.problems.append(position.problem(message))
        if len(self.problems) >= MOST_SCHEMA_PROBLEMS:
            raise SchemaError(self.problems, f"stopped after {MOST_SCHEMA_PROBLEMS} problems")

    def expected(self, what: str) -> None:
        """Add the problem that `what` is missing here."""
        token = self.peek()
        self.fail(token.position, f"expected {what}, found {token.found()}")

    def read_name(self, what: str) -> Token | None:
        """Read a name that C can use; else add a problem (a wrong name is read too)."""
        token = self.peek()
        if token.kind != "name" or self.begins_block():
            self.expected(what)
            return None
        if token.text in C_WORDS or token.text in KEYWORDS:
            language = "C" if token.text in C_WORDS else "this language"
            self.expected(f"{what} that is no word of {language}")
        return self.advance()

    def read_names(self, what: str) -> list[Token]:
        """Read one name or several, with commas or on one line, and a ``;`` if there is one."""
        line = self.peek().line
        found: list[Token] = []
        while not found or self.at(",") or (self.peek().kind == "name" and self._continues(line)):
            if found and self.at(","):
                self.advance()
            name = self.read_name(what)
            if name is None:
                self.skip_line(line)
                break
            found.append(name)
            line = name.line
        if self.at(";"):
            self.advance()
        return found

    def skip_separator(self, line: int) -> None:
        """Skip one ``;`` or ``,`` that ends a declaration on `line`, if there is one."""
        if self.at(";", ","):
            mark = self.advance()
            if mark.line != line:
                mark.after.clear()  # a comment there belongs to nothing

    def begins_block(self) -> bool:
        """Whether a declaration with a body begins here, even with a misspelt keyword."""
        kinds = (self.peek().kind, self.peek(1).kind)
        if kinds != ("name", "name") or self.peek(2).text not in _CLOSES:
            return False
        return self.at(*ITEMS) or nearest(self.peek().text, ITEMS) != ""

    def open_block(self, keyword: str, opens: str) -> Block:
        """Read ``keyword NAME {``; add problems for missing parts, so that the body can be read."""
        line = self.advance().line
        name = self.read_name("a name") or Token("name", "", self.peek().position)
        if not name.text and self.peek(1).text == opens:
            self.advance()
        block = Block(keyword, name, _CLOSES[opens], line)
        if self.at(opens):
            self.advance()
        else:
            if name.text:
                self.expected(f"'{opens}' after {block}")
            if self.at(*_CLOSES):
                block.closes = _CLOSES[self.advance().text]
            block.is_open = not (self.at_end() or self.at(*KEYWORDS))
        self._depth += 1
        return block

    def has_more(self, block: Block, content: str) -> bool:
        """Whether more `content` of `block` may follow; else its end is next, or a problem."""
        while block.is_open:
            if self.at(";", ","):
                self.advance()
            elif self.at(block.closes):
                return False
            elif self.at_end() or self.at("}", ">") or self._ends_early(block):
                self.expected(f"{content} or '{block.closes}' (of {block}, line {block.line})")
                block.is_open = self._skip_wrong_mark(block)
            else:
                return True
        return False

    def _ends_early(self, block: Block) -> bool:
        """Whether `block` cannot contain the next tokens: then its closing mark is missing."""
        if block.keyword == "loglevel":
            return self.begins_block() and nearest(self.peek().text, ITEMS) != "event"
        in_level = block.keyword == "event" and self.at("include", "omit", "using")
        return self.begins_block() or (in_level and self._begins_line())

    def _skip_wrong_mark(self, block: Block) -> bool:
        """Skip a closing mark of no block; whether `block` may continue behind it."""
        is_level = block.keyword == "loglevel"
        if not self.at("}", ">") or not (is_level or self._depth == 1):
            return False
        self.advance()
        return is_level and not (self.at_end() or self._ends_early(block))

    def close_block(self, block: Block) -> list[str]:
        """Read the end of `block`; the comments behind it if the block is on one line."""
        self._depth -= 1
        if not block.is_open:
            return []
        mark = self.advance()
        self.skip_separator(mark.line)
        return mark.after if mark.line == block.line else []

    def skip_line(self, line: int) -> None:
        """Continue after a mistake on `line`: behind ``;``, at ``}`` or on the next line."""
        while not self.at_end() and self.peek().line == line and not self.at("}", ">"):
            if self.at("{") and self._skip_block():
                line = self._tokens[self._index - 1].line
            elif self.advance().text == ";":
                return

    def skip_item(self) -> None:
        """Continue after unknown text: at the next line that begins a declaration."""
        while not self.at_end():
            if not (self.at(*_CLOSES) and self._skip_block()):
                self.advance()
            if self.at(*ITEMS) and self._begins_line():
                return

    def comments(self, start: int) -> list[str]:
        """The comments of the tokens from `start` up to here: above the first, behind each."""
        used = self._tokens[start : self._index]
        return [*used[0].before, *(line for token in used for line in token.after)]

    def _continues(self, line: int) -> bool:
        return self.peek().line == line and not self.at(*KEYWORDS)

    def _begins_line(self) -> bool:
        return self._index == 0 or self._tokens[self._index - 1].line < self.peek().line

    def _skip_block(self) -> bool:
        """Skip a whole bracketed block; false (nothing skipped) if it never ends."""
        end = self._ends.get(self._index)
        if end is not None:
            self._index = end + 1
        return end is not None


def _block_ends(found: list[Token]) -> dict[int, int]:
    """From the index of each opening mark to the index of its closing mark, if it has one."""
    ends: dict[int, int] = {}
    open_marks: dict[str, list[int]] = {"}": [], ">": []}
    for index, token in enumerate(found):
        if token.text in _CLOSES:
            open_marks[_CLOSES[token.text]].append(index)
        elif open_marks.get(token.text):
            ends[open_marks[token.text].pop()] = index
    return ends
