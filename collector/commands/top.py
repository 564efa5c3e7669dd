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

from tcpkmon.collector.commands.collector_option import ask, collector_option
from tcpkmon.collector.commands.top_screen import Screen, sorts_of
from tcpkmon.collector.metrics.words import GROUPS, MOST_WANTED
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

if TYPE_CHECKING:
    from tcpkmon.collector.control.client import Client
    from tcpkmon.collector.plan.request import Request

REFRESH_S = 1.0
TYPING_S = 0.3
"""While a filter is typed, a question waits for so long without a key: the capture looks at all of
its connections for it."""
_LOOK_S = 0.1
ASKED = 200
"""Connections or groups that one question asks for."""


@click.command("top")
@click.option("--by", type=click.Choice(GROUPS), default=None,
              help="Groups of connections in place of connections: by the port that was called, "
              "the peer's address, the process, its name, or its unit, container or pod: with the "
              "column cgroup.")
@click.option("--sort", default="rate", show_default=True, metavar="KEY",
              help="rate, acked, received, retransmits, srtt_us, min_rtt_us or snd_cwnd_segs; of "
              "groups also opened, closed or open.")
@click.option("--filter", "wanted", default="", metavar="TEXT",
              help="Only connections with this text in their addresses, ports, state, owner, unit, "
              "container or pod.")
@collector_option
def command(by: str | None, sort: str, wanted: str, collector: str | None) -> int:
    """Show the connections of a running capture, each second: rates, round trips, windows.

    Needs root or the control group. Keys: < and > choose the column to sort by, g the groups, /
    filters, space pauses, q quits. A connection appears with its first record after top began; one
    that ended is shown once more.
    """
    sorts = sorts_of(by or "")
    if sort not in sorts:
        raise UsageError(f"--sort: there is no {sort!r}", f"choose {', '.join(sorts)}")
    if len(wanted) > MOST_WANTED:
        raise UsageError(f"--filter: at most {MOST_WANTED} characters")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "tcpkmon metrics --once prints counts")
    show(ask(collector), Screen(sort, by or "", wanted))
    return 0


def show(client: Client, screen: Screen) -> None:
    """Run the screen until q or Ctrl-C. The errors of Client: then the terminal is as before."""
    from rich.console import Console
    from rich.live import Live

    from tcpkmon.collector.control.choosing import name_of
    from tcpkmon.collector.control.client import making_sense

    screen.name = name_of(client.collector)
    _ask(client, screen)
    console = Console(markup=False, highlight=False, emoji=False)
    with _keys() as stdin, Live(console=console, screen=True, auto_refresh=False) as live:
        asked_s = time.monotonic()
        while True:
            with making_sense():
                live.update(screen.draw(console.width, console.height), refresh=True)
            is_typed = screen.typing is not None and screen.stale
            left_s = TYPING_S if is_typed else max(0.0, asked_s + REFRESH_S - time.monotonic())
            if select.select([stdin], [], [], left_s)[0]:
                for key in os.read(stdin, 64).decode(errors="replace"):
                    if not screen.press(key):
                        return
                if not screen.stale or screen.typing is not None:
                    continue
            elif screen.paused and not is_typed:
                asked_s = time.monotonic()
                continue
            asked_s = time.monotonic()
            _ask(client, screen)


def _ask(client: Client, screen: Screen) -> None:
    screen.take(client.top(screen.sort, ASKED, screen.by, screen.filter))


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
    ended, running = os.pipe()
    child = os.fork()
    if not child:
        os.close(running)
        os._exit(_watch(collector, ended))
    os.close(ended)
    try:
        return run(replace(request, quiet=True))
    finally:
        os.close(running)
        os.waitpid(child, 0)


def _watch(collector: int, ended: int) -> int:
    """The screen's process: root with the right to end the capture, and no other.

    ended: can be read when the capture is over, even if it never began.
    """
    from tcpkmon.collector.control.client import Client, find_collectors
    from tcpkmon.collector.linux.privileges import drop_capabilities
    from tcpkmon.collector.session.preload import SCREEN, import_all

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _attaching():
            import_all(SCREEN)
            drop_capabilities(("CAP_KILL",))
            while not select.select([ended], [], [], _LOOK_S)[0]:
                mine = [one for one in find_collectors() if one.pid == collector]
                if mine:
                    with suppress(TcpkmonError):  # the capture is over
                        show(Client(mine[0]), Screen())
                        os.kill(collector, signal.SIGINT)
                    break
    except (KeyboardInterrupt, OSError):
        return 1
    return 0


@contextmanager
def _attaching() -> Iterator[None]:
    """A line until the screen is there; keys that are pressed meanwhile are for the screen."""
    with _keys():
        print("attaching ...", end="\r", flush=True)
        try:
            yield
        finally:
            print("\x1b[K", end="", flush=True)
