# SPDX-License-Identifier: Apache-2.0
"""The grammar of docs/schema-language.md: tokens to a Schema, a method for each rule."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tcpkmon.formats.base.errors import SchemaError
from tcpkmon.formats.base.limits import MOST_GROUP_FIELDS, MOST_SCHEMA_PROBLEMS
from tcpkmon.formats.base.text import nearest
from tcpkmon.formats.schema.comments import plain_doc, split_doc
from tcpkmon.formats.schema.lexer import Token, tokens
from tcpkmon.formats.schema.model import (
    Arch,
    Enum,
    Event,
    Field,
    Include,
    LevelItem,
    LogLevel,
    Member,
    Omit,
    Position,
    Schema,
    Suggestions,
)
from tcpkmon.formats.schema.types import explain_unknown_type, is_type_name

# Reads the tokens of a schema for the grammar, and continues after a mistake.

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


_MIN_VALUE, _MAX_VALUE = -(1 << 31), (1 << 31) - 1
_COUNTER = re.compile(r"counter[1-9][0-9]{0,3}", re.ASCII)
_INTEGER = re.compile(r"([-+]?)(?:0x([0-9a-f]{1,16})|(0[0-7]{0,22})|([1-9][0-9]{0,19}))", re.I)
_ITEM = "'event', 'fields', 'enum', 'loglevel', 'using', 'arch' or 'extends'"
_LEVEL_ITEM = "'event', 'include' or 'omit'"


class Grammar(Cursor):
    """Reads the text of one file; `problems` holds the mistakes that this file alone shows.

    groups: the fields of each group that an earlier file declares; those of this file are added.
    """

    def __init__(self, text: str, file: str, groups: dict[str, tuple[Field, ...]]) -> None:
        super().__init__(text, file)
        self._groups = groups
        self._from_groups = 0
        self._suggestions = Suggestions()
        self._events: list[Event] = []
        self._enums: list[Enum] = []
        self._loglevels: list[LogLevel] = []
        self._arches: list[Arch] = []
        self._using: dict[str, Position] = {}
        self._extends: Token | None = None

    def schema(self, name: str) -> Schema:
        """All declarations of the text, also the readable parts of wrong ones."""
        while not self.at_end():
            if self.at(";"):
                self.advance()
            else:
                self._item()
        return Schema(
            tuple(self._events),
            tuple(self._enums),
            tuple(self._loglevels),
            tuple(self._arches),
            tuple(self._using),
            name,
            tuple(self._using.values()),
            self._extends.text if self._extends else "",
            self._extends.position if self._extends else Position(),
        )

    def _item(self) -> None:
        keyword = self._keyword(ITEMS, _ITEM)
        if keyword:
            rules = (
                self._event, self._group, self._enum, self._loglevel, self._use, self._arch,
                self._extend,
            )  # fmt: skip
            rules[ITEMS.index(keyword)]()
        elif self.peek().kind == "name":
            self.skip_item()
        else:
            self.advance()

    def _keyword(self, keywords: tuple[str, ...], what: str) -> str:
        """The next keyword, or a guess with a problem; empty if there is no guess."""
        token = self.peek()
        if token.text in keywords:
            return token.text
        if token.text in LEVEL_ITEMS:
            self.expected(f"{what} ('{token.text}' belongs inside a loglevel)")
            return ""
        meant = nearest(token.text, keywords) if token.kind == "name" else ""
        hint = f" (did you mean '{meant}'?)" if meant else ""
        self.fail(token.position, f"expected {what}, found {token.found()}{hint}")
        return meant if self.peek(1).kind == "name" else ""

    def _event(self) -> Event:
        block, fields, docs = self._fields("event")
        doc, _, tags = split_doc(docs, has_unit=False)
        event = Event(block.name.text, fields, doc, tags, block.name.position)
        self._events.append(event)
        return event

    def _group(self) -> None:
        block, fields, _ = self._fields("fields")
        name = block.name
        if name.text in self._groups:
            self.fail(name.position, f"expected a new name of fields, found '{name.text}' again")
        self._groups[name.text] = fields

    def _fields(self, keyword: str) -> tuple[Block, tuple[Field, ...], list[str]]:
        """A block of fields, and the lines of its comments."""
        start, block = self.index, self.open_block(keyword, "{")
        docs = self.comments(start)
        fields: list[Field] = []
        names: set[str] = set()
        while self.has_more(block, "a type"):
            if self.at("fields"):
                fields += self._fields_of_group(names)
            elif not self._refuse_c_syntax() and (field := self._field(names)):
                fields.append(field)
        docs += self.close_block(block)
        return block, tuple(fields), docs

    def _fields_of_group(self, earlier: set[str]) -> tuple[Field, ...]:
        """``fields NAME`` among fields: those of the group, which is declared above."""
        line = self.advance().line
        name = self.read_name("the name of a group of fields")
        if name is None:
            self.skip_line(line)
            return ()
        self.skip_separator(name.line)
        fields = self._groups.get(name.text, ())
        if name.text not in self._groups:
            near = self._suggestions.suggest(name.text, self._groups)
            wanted = "expected the name of fields that are declared above"
            self.fail(name.position, f"{wanted}, found unknown '{name.text}'{near}")
        self._from_groups += len(fields)
        if self._from_groups > MOST_GROUP_FIELDS:
            self.fail(name.position, f"expected at most {MOST_GROUP_FIELDS} fields from groups")
            return ()
        for field in fields:
            if field.name in earlier:
                message = f"expected a new field name, found '{field.name}' of '{name.text}' again"
                self.fail(name.position, message)
            earlier.add(field.name)
        return fields

    def _refuse_c_syntax(self) -> bool:
        """Refuse ``unsigned int x``, ``struct x {..} y`` and ``enum x y`` with one problem."""
        token = self.peek()
        if token.text == "enum":
            self.expected(f"the enum's name alone, '{self.peek(1).text}'")
        elif token.text in C_WORDS and not is_type_name(token.text):
            self.fail(token.position, explain_unknown_type(token.text, []))
        else:
            return False
        self.advance()
        self.skip_line(token.line)
        return True

    def _field(self, earlier: set[str]) -> Field | None:
        start, kind = self.index, self.peek()
        if kind.kind != "name":
            self.expected("a type")
            self.skip_line(self.advance().line)
            return None
        self.advance()
        name = self.peek()
        if name.kind != "name" or self.begins_block():
            self.expected(f"a field name after '{kind.text}'")
            self.skip_line(kind.line)
            return None
        if name.text in C_WORDS or name.text == "header":
            self._refuse_field_name(kind, name)
            return None
        self.advance()
        self.skip_separator(name.line)
        doc, unit, tags = split_doc(self.comments(start), has_unit=True)
        if name.text in earlier:
            self.fail(name.position, f"expected a new field name, found '{name.text}' again")
        earlier.add(name.text)
        return Field(name.text, kind.text, doc, unit, tags, kind.position)

    def _refuse_field_name(self, kind: Token, name: Token) -> None:
        if kind.text + name.text == "longlong":
            message = "expected 'longlong' in one word, found 'long long'"
        elif name.text == "header":
            message = "expected a field name other than 'header', the head of each log record"
        else:
            message = f"expected a field name after '{kind.text}', found '{name.text}', a word of C"
        self.fail(name.position, message)
        self.skip_line(name.line)

    def _enum(self) -> None:
        start, block = self.index, self.open_block("enum", "{")
        name = block.name
        if is_type_name(name.text) and name.text not in C_WORDS:
            self.fail(name.position, f"expected a new type name, found basic type '{name.text}'")
        docs = self.comments(start)
        members: dict[str, Member] = {}
        value = 0
        while self.has_more(block, "a name"):
            member = self._member(members, value)
            if member:
                members[member.name] = member
                value = member.value + 1
        if not members and block.is_open:
            self.expected(f"at least one name in {block}")
        docs += self.close_block(block)
        self._enums.append(Enum(name.text, tuple(members.values()), plain_doc(docs), name.position))

    def _member(self, earlier: dict[str, Member], value: int) -> Member | None:
        start, name = self.index, self.read_name("a name")
        if name is None:
            self.skip_line(self.advance().line)
            return None
        last = name
        if self.at("="):
            self.advance()
            last = self.peek()
            given = _integer(last.text)
            if given is None:
                self.expected(f"an integer after '{name.text} ='")
                self.skip_line(name.line)
                return Member(name.text, min(value, _MAX_VALUE), position=name.position)
            self.advance()
            value = given
        if not _MIN_VALUE <= value <= _MAX_VALUE:
            self.fail(last.position, f"expected a value of 32 bits with sign, found {value}")
            value = 0
        if self.peek().line == last.line and not (self.at(",", ";", "}") or self.at_end()):
            self.expected(f"',' or '}}' after '{name.text}'")
            self.skip_line(last.line)
        self.skip_separator(last.line)
        if name.text in earlier:
            self.fail(name.position, f"expected a new name, found '{name.text}' again")
        doc, _, tags = split_doc(self.comments(start), has_unit=False)
        return Member(name.text, value, doc, tags, name.position)

    def _loglevel(self) -> None:
        start, block = self.index, self.open_block("loglevel", "<")
        docs = self.comments(start)
        items: list[LevelItem] = []
        while self.has_more(block, _LEVEL_ITEM):
            keyword = self._keyword(LEVEL_ITEMS, _LEVEL_ITEM)
            if keyword == "event":
                items.append(self._event())
                continue
            line = self.advance().line
            if keyword == "include":
                levels = self.read_names("a log level's name")
                items += [Include(one.text, one.position) for one in levels]
            elif keyword == "omit":
                events = self.read_names("an event's name")
                items += [Omit(one.text, one.position) for one in events]
            else:
                self.skip_line(line)
        docs += self.close_block(block)
        name = block.name
        self._loglevels.append(LogLevel(name.text, tuple(items), plain_doc(docs), name.position))

    def _use(self) -> None:
        self.advance()
        for name in self.read_names("a log level's name"):
            if name.text in self._using:
                self.fail(name.position, f"expected another log level, found '{name.text}' again")
            self._using[name.text] = name.position

    def _extend(self) -> None:
        line = self.advance().line
        name = self.read_name("a schema's name")
        if name is None:
            self.skip_line(line)
            return
        self.skip_separator(name.line)
        if self._extends is not None:
            self.fail(name.position, f"expected one 'extends', found another, of '{name.text}'")
        self._extends = self._extends or name

    def _arch(self) -> None:
        start, block = self.index, self.open_block("arch", "{")
        docs = self.comments(start)
        counters: dict[str, Token] = {}
        names: set[str] = set()
        while self.has_more(block, "'counterN NAME'"):
            self._counter(block, counters, names)
        docs += self.close_block(block)
        name = block.name
        pairs = tuple((number, counter.text) for number, counter in counters.items())
        places = tuple(counter.position for counter in counters.values())
        self._arches.append(Arch(name.text, pairs, plain_doc(docs), name.position, places))

    def _counter(self, block: Block, counters: dict[str, Token], names: set[str]) -> None:
        counter = self.peek()
        if not _COUNTER.fullmatch(counter.text):
            self.expected(f"'counter1', 'counter2', ... in {block}")
            self.skip_line(self.advance().line)
            return
        self.advance()
        event = self.read_name("a hardware counter's name")
        if event is None:
            self.skip_line(counter.line)
            return
        self.skip_separator(event.line)
        if counter.text in counters:
            self.fail(counter.position, f"expected a new counter, found '{counter.text}' again")
        elif event.text in names:
            self.fail(event.position, f"expected a new name, found '{event.text}' again")
        counters[counter.text] = event
        names.add(event.text)


def _integer(text: str) -> int | None:
    """The value of a C integer constant with an optional sign; None for other text."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -value if sign == "-" else value
