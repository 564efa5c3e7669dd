# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon top: the connections of a running capture, live."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from collector.commands.collector_option import ask
from collector.commands.top_screen import Screen
from formats.base.errors import TcpkmonError, UsageError

if TYPE_CHECKING:
    from collector.control.client import Client
    from collector.plan.request import Request

REFRESH_S = 1.0
_LOOK_S = 0.1
ASKED = 200
"""Connections that one question asks for: the filter chooses among these."""


@click.command("top")
@click.option("--sort", default="rate", show_default=True, metavar="KEY",
              help="rate, acked, received, retransmits, srtt_us, min_rtt_us or snd_cwnd_segs.")
@click.option("--filter", "wanted", default="", metavar="TEXT",
              help="Only connections whose line has this text.")
@click.argument("collector", type=click.IntRange(1), metavar="[PID]", required=False)
def command(sort: str, wanted: str, collector: int | None) -> int:
    """Show the connections of a running capture, each second: rates, round trips, windows.

    PID is that of collect, when several run. Needs root or the control group. Keys: < and > choose
    the column to sort by, / filters, space pauses, q quits. A connection appears with its first
    record after top began.
    """
    from collector.metrics.watching import SORTS

    if sort not in SORTS:
        raise UsageError(f"--sort: there is no {sort!r}", f"choose {', '.join(SORTS)}")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "tcpkmon metrics --once prints counts")
    show(ask(collector), Screen(SORTS, sort, wanted))
    return 0


def show(client: Client, screen: Screen) -> None:
    """Run the screen until q or Ctrl-C. The errors of Client: then the terminal is as before."""
    from rich.console import Console
    from rich.live import Live

    from collector.control.client import making_sense

    screen.take(client.top(screen.sort, ASKED))
    console = Console(markup=False, highlight=False)
    with _keys() as stdin, Live(console=console, screen=True, auto_refresh=False) as live:
        asked_s = time.monotonic()
        while True:
            with making_sense():
                live.update(screen.draw(console.width, console.height), refresh=True)
            left_s = max(0.0, asked_s + REFRESH_S - time.monotonic())
            if select.select([stdin], [], [], left_s)[0]:
                for key in os.read(stdin, 64).decode(errors="replace"):
                    if not screen.press(key):
                        return
                if not screen.stale:
                    continue
            elif screen.paused:
                asked_s = time.monotonic()
                continue
            asked_s = time.monotonic()
            screen.take(client.top(screen.sort, ASKED))


@contextmanager
def _keys() -> Iterator[int]:
    """The terminal gives each key at once, and shows none; afterwards it is as before."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def run_beside(request: Request, run: Callable[[Request], int]) -> int:
    """collect --top: run() the capture, and this screen in a process of its own; q ends both.

    UsageError where the terminal is not free for it. Call it while there is one thread alone.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("--top needs a terminal", "leave it out")
    if request.show or request.output == "-" or request.command:
        raise UsageError("--top takes the whole terminal", "no --print, -o - or COMMAND with it")
    collector = os.getpid()
    child = os.fork()
    if not child:
        os._exit(_watch(collector))
    try:
        return run(replace(request, quiet=True))
    finally:
        os.waitpid(child, 0)


def _watch(collector: int) -> int:
    """The screen's process: root with the right to end the capture, and no other."""
    from collector.control.client import Client, find_collectors
    from collector.linux.privileges import drop_capabilities
    from collector.metrics.watching import SORTS

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        drop_capabilities(("CAP_KILL",))
        while os.getppid() == collector:
            mine = [one for one in find_collectors() if one.pid == collector]
            if mine:
                with suppress(TcpkmonError):  # the capture is over
                    show(Client(mine[0]), Screen(SORTS, "rate"))
                    os.kill(collector, signal.SIGINT)
                break
            time.sleep(_LOOK_S)
    except (KeyboardInterrupt, OSError):
        return 1
    return 0
