# SPDX-License-Identifier: Apache-2.0
"""Where the grammar stands among a schema's tokens, and how it goes on after a mistake."""

from __future__ import annotations

from dataclasses import dataclass

from formats.base.errors import MAX_PROBLEMS, Problem, SchemaError
from formats.schema.lexer import Token, tokens
from formats.schema.model import Position, nearest

ITEMS = ("event", "enum", "loglevel", "using", "arch")
LEVEL_ITEMS = ("event", "include", "omit")
KEYWORDS = frozenset({*ITEMS, *LEVEL_ITEMS})
_CLOSES = {"{": "}", "<": ">"}

# Names that could not stand in the C code made from a schema.
# fmt: off
C_WORDS = frozenset({
    "asm", "auto", "break", "case", "char", "const", "continue", "default", "do", "double",
    "else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long", "register",
    "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef",
    "typeof", "union", "unsigned", "void", "volatile", "while",
})
# fmt: on


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
    """Reads tokens one by one; collects problems instead of stopping at the first."""

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

    def take(self) -> Token:
        token = self.peek()
        self._index = min(self._index + 1, len(self._tokens) - 1)
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these names or marks."""
        return self.peek().text in texts

    def at_end(self) -> bool:
        return self.peek().kind == "end"

    def fail(self, position: Position, message: str) -> None:
        """Note a problem; the caller goes on."""
        message = message if len(message) <= 300 else f"{message[:300]}..."
        self.problems.append(Problem(position.file, position.line, position.column, message))
        if len(self.problems) >= MAX_PROBLEMS:
            raise SchemaError(self.problems, f"stopped after {MAX_PROBLEMS} problems")

    def expected(self, what: str) -> None:
        """Note that `what` should stand here."""
        token = self.peek()
        self.fail(token.position, f"expected {what}, found {token.found()}")

    def name(self, what: str) -> Token | None:
        """Take a name that can stand in C; else note a problem (a wrong name is taken too)."""
        token = self.peek()
        if token.kind != "name" or self.begins_block():
            self.expected(what)
            return None
        if token.text in C_WORDS or token.text in KEYWORDS:
            language = "C" if token.text in C_WORDS else "this language"
            self.expected(f"{what} that is no word of {language}")
        return self.take()

    def names(self, what: str) -> list[Token]:
        """Take one name or several, with commas or on one line, and a ``;`` if there is one."""
        line = self.peek().line
        found: list[Token] = []
        while not found or self.at(",") or (self.peek().kind == "name" and self._goes_on(line)):
            if found and self.at(","):
                self.take()
            name = self.name(what)
            if name is None:
                self.skip_line(line)
                break
            found.append(name)
            line = name.line
        if self.at(";"):
            self.take()
        return found

    def separator(self, line: int) -> None:
        """Take one ``;`` or ``,`` that ends what stands on `line`, if there is one."""
        if self.at(";", ","):
            mark = self.take()
            if mark.line != line:
                mark.after.clear()  # a comment there belongs to nothing

    def begins_block(self) -> bool:
        """Whether a declaration with a body begins here, be its keyword misspelt."""
        kinds = (self.peek().kind, self.peek(1).kind)
        if kinds != ("name", "name") or self.peek(2).text not in _CLOSES:
            return False
        return self.at(*ITEMS) or nearest(self.peek().text, ITEMS) != ""

    def open(self, keyword: str, opens: str) -> Block:
        """Take ``keyword NAME {``; what lacks is noted, and the body read all the same."""
        line = self.take().line
        name = self.name("a name") or Token("name", "", self.peek().position)
        if not name.text and self.peek(1).text == opens:
            self.take()
        block = Block(keyword, name, _CLOSES[opens], line)
        if self.at(opens):
            self.take()
        else:
            if name.text:
                self.expected(f"'{opens}' after {block}")
            if self.at(*_CLOSES):
                block.closes = _CLOSES[self.take().text]
            block.is_open = not (self.at_end() or self.at(*KEYWORDS))
        self._depth += 1
        return block

    def inside(self, block: Block, content: str) -> bool:
        """Whether `content` of `block` may follow; else its end is next, or noted as missing."""
        while block.is_open:
            if self.at(";", ","):
                self.take()
            elif self.at(block.closes):
                return False
            elif self.at_end() or self.at("}", ">") or self._ends_early(block):
                self.expected(f"{content} or '{block.closes}' (of {block}, line {block.line})")
                block.is_open = self._passes_wrong_mark(block)
            else:
                return True
        return False

    def _ends_early(self, block: Block) -> bool:
        """Whether what comes next cannot stand in `block`: then its closing mark is missing."""
        if block.keyword == "loglevel":
            return self.begins_block() and nearest(self.peek().text, ITEMS) != "event"
        in_level = block.keyword == "event" and self.at("include", "omit", "using")
        return self.begins_block() or (in_level and self._begins_line())

    def _passes_wrong_mark(self, block: Block) -> bool:
        """Take a closing mark that is no block's; whether `block` may go on behind it."""
        is_level = block.keyword == "loglevel"
        if not self.at("}", ">") or not (is_level or self._depth == 1):
            return False
        self.take()
        return is_level and not (self.at_end() or self._ends_early(block))

    def close(self, block: Block) -> list[str]:
        """Take the end of `block`; the comments behind it if it all stands on one line."""
        self._depth -= 1
        if not block.is_open:
            return []
        mark = self.take()
        self.separator(mark.line)
        return mark.after if mark.line == block.line else []

    def skip_line(self, line: int) -> None:
        """Go on after a mistake on `line`: behind its ``;``, or at its ``}``, or the next line."""
        while not self.at_end() and self.peek().line == line and not self.at("}", ">"):
            if self.at("{") and self._skip_block():
                line = self._tokens[self._index - 1].line
            elif self.take().text == ";":
                return

    def skip_item(self) -> None:
        """Go on after something that is no declaration: at the next line that begins one."""
        while not self.at_end():
            if not (self.at(*_CLOSES) and self._skip_block()):
                self.take()
            if self.at(*ITEMS) and self._begins_line():
                return

    def comments(self, start: int) -> list[str]:
        """The comments of the tokens from index `start` up to here: above, and behind each."""
        used = self._tokens[start : self._index]
        return [*used[0].before, *(line for token in used for line in token.after)]

    def _goes_on(self, line: int) -> bool:
        return self.peek().line == line and not self.at(*KEYWORDS)

    def _begins_line(self) -> bool:
        return self._index == 0 or self._tokens[self._index - 1].line < self.peek().line

    def _skip_block(self) -> bool:
        """Take a bracketed block whole; false, and nothing taken, if it never ends."""
        end = self._ends.get(self._index)
        if end is not None:
            self._index = end + 1
        return end is not None


def _block_ends(found: list[Token]) -> dict[int, int]:
    """From the index of each opening mark to that of its closing mark, where it has one."""
    ends: dict[int, int] = {}
    open_marks: dict[str, list[int]] = {"}": [], ">": []}
    for index, token in enumerate(found):
        if token.text in _CLOSES:
            open_marks[_CLOSES[token.text]].append(index)
        elif open_marks.get(token.text):
            ends[open_marks[token.text].pop()] = index
    return ends
