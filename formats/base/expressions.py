# SPDX-License-Identifier: Apache-2.0
"""Reads conditions: triggers, assertions, --where; docs/conditions.md has the language.

    trigger    = ["any" ":" | "all" ":"] or ["for" number]
    or         = and {"or" and}                      and   = not {"and" not}
    not        = "not" not | comparison
    comparison = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
               | sum ("worse" | "better" | "more" | "less") sum, of changes alone
    sum        = term {("+" | "-") term}             term  = sign {("*" | "/") sign}
    sign       = "-" sign | name | number | text | call | "(" or ")"
    call       = name "(" [or {"," or}] ")"

An assertion is `or ["where" or]`; a condition on changes is `or`. A text is in quotes.

The text comes from the command line or a file, and is never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.limits import MOST_TRIGGER_CHARACTERS, MOST_TRIGGER_DEPTH

TIMES = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Units of time, in ns."""
FACTORS: dict[str, int | Fraction] = {
    "": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000, "%": Fraction(1, 100),
}  # fmt: skip
COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
CHANGES = ("worse", "better", "more", "less")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>[0-9][0-9.]*(?:[eE][-+][0-9]+)?[0-9A-Za-z_.]*%?)
      | (?P<string>"[^"\n]*"|'[^'\n]*')
      | (?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)
      | (?P<mark><=|>=|==|!=|[-+*/()<>:,])
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NUMBER = re.compile(
    r"(\d{1,18}(?:\.\d{1,18})?(?:[eE][-+]?\d{1,2})?)(ns|us|ms|s|k|M|G|%|)", re.ASCII
)
_WORDS = frozenset({"and", "or", "not", "for", "where"})
_Made = TypeVar("_Made")


class Mistake(Exception):
    """A mistake in an expression: what is wrong, and at which character from 0."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.what = what
        self.at = at

    @property
    def mistakes(self) -> Sequence[Mistake]:
        """As Mistakes has them."""
        return [self]

    def lines(self, text: str) -> tuple[str, str, str]:
        """The message, the text, and a caret under the place."""
        return self.what, f"  {for_terminal(text)}", f"  {' ' * self.at}^"


class Mistakes(Exception):
    """All mistakes of one expression."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(mistakes)
        self.mistakes = mistakes


class ExpressionError(UsageError):
    """Mistakes in expressions: all of them, each with its text and a caret."""

    def __init__(self, mistakes: Sequence[tuple[str, Mistake]]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("; ".join(mistake.what for _, mistake in mistakes), "")

    def lines(self) -> tuple[str, ...]:
        """Three lines for each mistake."""
        return tuple(line for text, mistake in self.mistakes for line in mistake.lines(text))


@dataclass(frozen=True)
class Number:
    """A constant. is_time: the value is in ns."""

    at: int
    value: Fraction
    is_time: bool


@dataclass(frozen=True)
class Name:
    """A name of a column, an event, a value of an enum, or a condition."""

    at: int
    text: str


@dataclass(frozen=True)
class Operation:
    """An operator and what it works on: one operand or two."""

    at: int
    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Text:
    """A text in quotes."""

    at: int
    text: str


@dataclass(frozen=True)
class Call:
    """A function and its arguments."""

    at: int
    name: str
    arguments: tuple[Node, ...]


Node = Number | Name | Operation | Text | Call


@dataclass(frozen=True)
class Parsed:
    """A trigger as it was written. for_ns: how long it must hold; None without `for`."""

    text: str
    node: Node
    all: bool
    for_ns: int | None
    for_at: int = 0


@dataclass(frozen=True)
class Assertion:
    """An assertion as it was written. where: the rows that it is about, None for all."""

    text: str
    node: Node
    where: Node | None


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


def read_all(texts: Iterable[str], read: Callable[[str], _Made]) -> list[_Made]:
    """read() of each, which may raise Mistake or Mistakes. ExpressionError for those of all."""
    made, mistakes = [], []
    for text in texts:
        try:
            made.append(read(text))
        except (Mistake, Mistakes) as wrong:
            mistakes += [(text, mistake) for mistake in wrong.mistakes]
    if mistakes:
        raise ExpressionError(mistakes)
    return made


def parse(text: str) -> Parsed:
    """The trigger in this text. Mistake for the first thing that does not fit."""
    return _Parser(text, "a trigger").trigger()


def parse_assertion(text: str) -> Assertion:
    """The assertion in this text. Mistake for the first thing that does not fit."""
    return _Parser(text, "an assertion").assertion()


def parse_change(text: str) -> Node:
    """The condition on changes in this text. Mistake for the first thing that does not fit."""
    return _Parser(text, "a condition", CHANGES).change()


class _Parser:
    def __init__(self, text: str, what: str, comparisons: Sequence[str] = COMPARISONS) -> None:
        if len(text) > MOST_TRIGGER_CHARACTERS:
            raise Mistake(f"{what} has at most {MOST_TRIGGER_CHARACTERS} characters", 0)
        self._text = text
        self._what = what
        self._comparisons = comparisons
        found = (
            _Token(match.lastgroup or "other", match.group(), match.start())
            for match in _TOKEN.finditer(text)
        )
        self._tokens = [token for token in found if token.kind != "space"]
        self._tokens.append(_Token("end", "", len(text)))
        self._next = 0
        self._depth = 0

    def trigger(self) -> Parsed:
        every = False
        if self._token.text in ("any", "all") and self._tokens[self._next + 1].text == ":":
            every = self._token.text == "all"
            self._next += 2
        node = self._or()
        for_ns, at = None, 0
        if self._token.text == "for":
            self._next += 1
            at = self._token.at
            number = self._number()
            if not number.is_time:
                raise Mistake("`for` takes a time: for 100ms", at)
            for_ns = int(number.value)
        self._finish("an operator, `and`, `or`, `for` or the end")
        return Parsed(self._text, node, every, for_ns, at)

    def assertion(self) -> Assertion:
        node = self._or()
        where = self._or() if self._take("where") is not None else None
        self._finish("an operator, `and`, `or`, `where` or the end")
        return Assertion(self._text, node, where)

    def change(self) -> Node:
        node = self._or()
        self._finish(f"{', '.join(CHANGES)}, `and`, `or` or the end")
        return node

    def _finish(self, wanted: str) -> None:
        if self._token.kind != "end":
            raise self._unexpected(wanted)

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> _Token | None:
        if self._token.kind in ("mark", "name") and self._token.text in texts:
            self._next += 1
            return self._tokens[self._next - 1]
        return None

    def _or(self) -> Node:
        return self._chain(self._and, "or")

    def _and(self) -> Node:
        return self._chain(self._not, "and")

    def _sum(self) -> Node:
        return self._chain(self._term, "+", "-")

    def _term(self) -> Node:
        return self._chain(self._sign, "*", "/")

    def _chain(self, part: Callable[[], Node], *operators: str) -> Node:
        node = part()
        while (token := self._take(*operators)) is not None:
            node = Operation(token.at, token.text, (node, part()))
            self._deeper(token)
        return node

    def _not(self) -> Node:
        if (token := self._take("not")) is not None:
            self._deeper(token)
            return Operation(token.at, "not", (self._not(),))
        return self._comparison()

    def _comparison(self) -> Node:
        left = self._sum()
        token = self._take(*self._comparisons)
        if token is None:
            return left
        return Operation(token.at, token.text, (left, self._sum()))

    def _sign(self) -> Node:
        if (token := self._take("-")) is not None:
            self._deeper(token)
            return Operation(token.at, "neg", (self._sign(),))
        if (token := self._take("(")) is not None:
            self._deeper(token)
            node = self._or()
            if self._take(")") is None:
                raise self._unexpected("`)`")
            return node
        if self._token.kind == "number":
            return self._number()
        token = self._token
        if token.kind == "string":
            self._next += 1
            return Text(token.at, token.text[1:-1])
        if token.kind == "name" and token.text not in _WORDS:
            self._next += 1
            if self._take("(") is not None:
                return self._call(token)
            return Name(token.at, token.text)
        raise self._unexpected("a name, a number or `(`")

    def _call(self, name: _Token) -> Call:
        self._deeper(name)
        arguments: list[Node] = []
        while self._take(")") is None:
            if arguments and self._take(",") is None:
                raise self._unexpected("`,` or `)`")
            arguments.append(self._or())
        return Call(name.at, name.text, tuple(arguments))

    def _number(self) -> Number:
        token = self._token
        match = _NUMBER.fullmatch(token.text) if token.kind == "number" else None
        if match is None:
            raise self._unexpected("a number, perhaps with ns, us, ms, s, k, M or G")
        self._next += 1
        value = Fraction(match[1]) * (TIMES.get(match[2]) or FACTORS.get(match[2], 1))
        return Number(token.at, value, match[2] in TIMES)

    def _deeper(self, token: _Token) -> None:
        """Count operators: each may be a call deeper, here and in whoever walks the tree."""
        self._depth += 1
        if self._depth > MOST_TRIGGER_DEPTH:
            raise Mistake(f"{self._what} has at most {MOST_TRIGGER_DEPTH} operators", token.at)

    def _unexpected(self, wanted: str) -> Mistake:
        token = self._token
        if token.kind == "end":
            what = self._what.split()[1]
            return Mistake(f"expected {wanted}, but the {what} ends here", token.at)
        hint = " (did you mean '=='?)" if token.text == "=" else ""
        if token.text.count(".") > 1 and "assertion" in self._what:
            hint = ' (write a text as "text")'
        return Mistake(f"expected {wanted}, found '{for_terminal(token.text)}'{hint}", token.at)
