# SPDX-License-Identifier: Apache-2.0
"""The errors that users see: raised anywhere in tcpkmon, printed only by formats.base.cli."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar


class TcpkmonError(Exception):
    """An error that a user can act on.

    message: what failed, and why. hint: what to try, or empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def lines(self) -> tuple[str, ...]:
        """What to print, one string a line (not yet escaped for a terminal)."""
        return (f"{self.message}; {self.hint}" if self.hint else self.message,)

    def __str__(self) -> str:
        return "\n".join(self.lines())


class UsageError(TcpkmonError):
    """The command line, or a value in it, is invalid."""

    exit_code = 2


class LossError(TcpkmonError):
    """Events were lost: because of the disk, in a file that is gone, or with --fail-on-loss."""

    exit_code = 3


class KernelError(TcpkmonError):
    """This kernel lacks a feature that the request needs."""

    exit_code = 4


class PrivilegeError(TcpkmonError):
    """The caller may not do this."""


class FileError(TcpkmonError):
    """A file cannot be opened, read or written."""


class DamagedError(TcpkmonError):
    """A file is damaged or hostile; the message, or `offset` [bytes], says where."""

    exit_code = 5

    def __init__(self, message: str, hint: str = "", offset: int | None = None) -> None:
        super().__init__(message, hint)
        self.offset = offset

    def lines(self) -> tuple[str, ...]:
        """One line, which begins with the offset if there is one."""
        (line,) = super().lines()
        return (line if self.offset is None else f"at offset {self.offset}: {line}",)


class SeveralErrors(TcpkmonError):
    """Errors that are told at once. Its exit code is that of the first one."""

    def __init__(self, errors: Sequence[TcpkmonError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)
        self.exit_code = errors[0].exit_code  # type: ignore[misc]

    def lines(self) -> tuple[str, ...]:
        """Those of each."""
        return tuple(line for error in self.errors for line in error.lines())


@dataclass
class Errors:
    """Collects errors, to tell them at once."""

    found: list[TcpkmonError] = field(default_factory=list)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Keep an error of the block; what follows the block runs."""
        try:
            yield
        except TcpkmonError as error:
            self.found.append(error)

    def raise_all(self) -> None:
        """Raise what was kept: an error as it is, SeveralErrors for more."""
        if self.found:
            raise self.found[0] if len(self.found) == 1 else SeveralErrors(self.found)


@dataclass(frozen=True, order=True)
class Problem:
    """One mistake in a schema: its place (line and column from 1), and what was expected."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class SchemaError(TcpkmonError):
    """A schema has mistakes. problems: all of them, in file order."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem], hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems), hint)

    def lines(self) -> tuple[str, ...]:
        """One line per problem, with the hint in the last line."""
        lines = tuple(str(problem) for problem in self.problems)
        return (*lines[:-1], f"{lines[-1]}; {self.hint}") if lines and self.hint else lines
