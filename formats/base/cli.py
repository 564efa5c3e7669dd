# SPDX-License-Identifier: Apache-2.0
"""Runs a command, prints its errors and returns its exit code."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import IO, Any

import click
from click.shell_completion import shell_complete

from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.removed import find_in_words
from tcpkmon.formats.base.text import suggest

INTERRUPTED = 130  # 128 + SIGINT, as in a shell
BROKEN_PIPE = 141  # 128 + SIGPIPE
CLOCKS = ("epoch", "iso", "rel", "mono")
"""The values of --time: how times are printed."""


def run(command: click.Command, args: Sequence[str] | None = None, prog: str = "") -> int:
    """Run `command` (or a group) with `args` (default: the process's) and return its exit code.

    A command's int result is its exit code. An error is one line on stderr,
    ``prog: what failed, why; what to try``. If the reader of stdout has left, nothing is printed.
    A shell that completes a command line asks by the variable _NAME_COMPLETE (click documents it).
    """
    name = prog or command.name or "tcpkmon"
    variable = f"_{name}_COMPLETE".upper()
    if asked := os.environ.get(variable):
        return shell_complete(command, {}, name, variable, asked)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the locale cannot show must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = _invoke(command, list(words), name)  # click takes from it
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _silence(sys.stdout)
        return BROKEN_PIPE
    except (click.ClickException, TcpkmonError) as error:
        is_usage = error.exit_code == UsageError.exit_code
        if is_usage and (answer := find_in_words([*name.split(), *words])):
            say(answer)
            return UsageError.exit_code
        if isinstance(error, click.ClickException):
            return _report_click(error, name)
        return _report(error, name)
    except OSError as error:
        _silence_if_stuck(sys.stdout)
        return _report(FileError(_describe(error)), name)
    finally:
        # A terminal that went: else the exit code is 120.
        for stream in (sys.stderr, sys.__stderr__, sys.__stdout__):
            _silence_if_stuck(stream)


def use_colours(stream: IO[str] | None = None) -> bool:
    """Whether to colour `stream` (default stdout): it is a terminal, and NO_COLOR is not set."""
    stream = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and stream is not None and stream.isatty()


def _invoke(command: click.Command, args: list[str], name: str) -> int:
    try:
        with command.make_context(name, args, color=use_colours()) as context:
            result: Any = command.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # rich leaves with 1
            raise leave.__context__ from None
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        raise TcpkmonError(str(leave.code)) from leave
    return result if isinstance(result, int) else 0


def _report(error: TcpkmonError, name: str) -> int:
    for line in error.lines():
        say(f"{name}: {line}")
    return error.exit_code


def _report_click(error: click.ClickException, name: str) -> int:
    message = " ".join(error.format_message().split()).rstrip(".")
    if not isinstance(error, click.UsageError):
        _report(TcpkmonError(message), name)
        return error.exit_code
    context = error.ctx
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":  # click 8.2
        click.echo(context.get_help(), err=True)
        return UsageError.exit_code
    path = context.command_path if context is not None else name
    message = _suggested(error, message)
    return _report(UsageError(message[:1].lower() + message[1:], f"try '{path} --help'"), path)


def _suggested(error: click.UsageError, message: str) -> str:
    """The message, of a command or option that is not there with what may have been meant."""
    if error.ctx is None:
        return message
    command = error.ctx.command
    if isinstance(error, click.NoSuchOption):
        names = [name for one in command.get_params(error.ctx) for name in one.opts]
        return f"No such option '{error.option_name}'{suggest(error.option_name, names)}"
    wrong = re.match(r"No such command '(.*?)'", message)
    if wrong and isinstance(command, click.Group):
        return f"{wrong[0]}{suggest(wrong[1], command.list_commands(error.ctx))}"
    return message


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    names = (error.filename, error.filename2)
    files = [os.fsdecode(name) for name in names if isinstance(name, (str, bytes))]
    return f"{' -> '.join(files)}: {reason}" if files else reason


def say(line: str) -> None:
    """Print a line on stderr, escaped for terminals; no error if stderr is closed."""
    try:
        click.echo(for_terminal(line), err=True)
    except OSError:
        _silence(sys.stderr)


def _silence_if_stuck(stream: IO[str] | None) -> None:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        _silence(stream)


def _silence(stream: IO[str] | None) -> None:
    # Otherwise the interpreter fails again when it flushes the stream at exit.
    try:
        if stream is not None:
            try:
                target = os.open(os.devnull, os.O_WRONLY)
            except OSError:  # a capture has given up the right to open files
                target = os.memfd_create("silence")
            os.dup2(target, stream.fileno())
            os.close(target)
    except (OSError, ValueError):  # not a real file: nothing is flushed at exit
        return
