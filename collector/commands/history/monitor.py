# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon monitor: the UBC event monitor's command of 1987, on today's engine."""

from __future__ import annotations

import json
import mmap
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tcpkmon.collector.commands.signed import NumberLists
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import FileError, TcpkmonError, UsageError
from tcpkmon.formats.base.escape import for_terminal

GROUPS = {
    1: ("Transaction", "tty", ("TRANSACTION_START", "TRANSACTION_END")),
    2: ("Login/Logout", "tty", ("LOGIN", "LOGOUT")),
    3: ("Pagein", "paging", ("PAGEIN_START", "PAGEIN_END")),
    4: ("Pageout", "paging", ("PAGEOUT_START", "PAGEOUT_END")),
    5: ("Disk I/O", "disk", ("DISK_INSERT", "DISK_ISSUE", "DISK_COMPLETE")),
    6: ("Fork/Exit", "sched", ("FORK", "EXEC", "EXIT", "SCHEDIN", "SCHEDOUT")),
}
"""By number: the name, and the schema and events that record it today. CPU utilisation comes from
the switches, which 1987 counted by clock ticks."""
_FILE = "monitor.out"
_BUFFERS = (2, 1 << 20)
_LEAST_BYTES, _MOST_BYTES = 16384, 1 << 30
"""Of the ring of a CPU."""
_STOP_S = 60.0
_USAGE = (
    "Usage: monitor -on | -off | -status | -help [-buffer nbufs bufsize] [-event evtnos] "
    "[-file fname]"
)


@dataclass(frozen=True)
class State:
    """The monitor that is on: its collector and what it was asked for. ring: bytes a CPU."""

    pid: int
    file: str
    buffers: int
    bytes: int
    events: tuple[int, ...]
    ring: int = 0


@click.command("monitor", cls=NumberLists)
@click.option("-on", "-o", "action", flag_value="on", help="Turn it on; returns when attached.")
@click.option("-off", "action", flag_value="off", help="Turn it off.")
@click.option("-status", "-s", "action", flag_value="status", help="Print what it records.")
@click.option("-help", "-h", "action", flag_value="help", help="List the groups of events.")
@click.option("-buffer", "-b", "buffer", nargs=2, type=int, metavar="NBUFS BUFSIZE",
              help="The memory of each CPU: NBUFS buffers of BUFSIZE bytes, 1 GiB at most. "
              "Default: 2 1048576.")
@click.option("-event", "-events", "-e", "events", metavar="EVTNOS",
              help="The groups: 1 3 5. Default: all.")
@click.option("-file", "-f", "file", metavar="FNAME", help=f"The log. Default: {_FILE}.")
def command(
    action: str | None, buffer: tuple[int, int] | None, events: str | None, file: str | None
) -> int:
    """Turn the event monitor on and off: transactions, logins, page faults, disk I/O, processes.

    FNAME is a folder with a Klogger log for each CPU; tcpkmon condense FNAME makes the report.
    """
    if action is None:
        click.echo(_USAGE)
        return UsageError.exit_code
    if action == "help":
        click.echo(_USAGE)
        _list_events(tuple(GROUPS))
        return 0
    state = find_state()
    if action == "status":
        return _print_status(state)
    if action == "off":
        return _turn_off(state)
    if state is not None:
        click.echo("MONITOR is already turned on")
        return UsageError.exit_code
    return _turn_on(_check_buffers(buffer or _BUFFERS), _parse_events(events), file or _FILE)


def _turn_on(buffer: tuple[int, int], groups: tuple[int, ...], file: str) -> int:
    from tcpkmon.collector import capturing
    from tcpkmon.collector.loader.prepare import check_privilege
    from tcpkmon.collector.ring.rings import pages_of

    check_privilege()
    force = False
    if os.path.lexists(file):
        force = click.confirm(f"{for_terminal(file)} exists. Overwrite it?", default=False)
        if not force:
            return UsageError.exit_code
    path = os.path.abspath(file)
    click.echo(_version("MONITOR"))
    _print_settings(*buffer, "to be used")
    click.echo(f"Output file name : {for_terminal(file)}")
    click.echo("Events to be monitored are :")
    _list_events(groups)
    ring = pages_of(max(buffer[0] * buffer[1], _LEAST_BYTES)) * mmap.PAGESIZE
    if ring != buffer[0] * buffer[1]:
        say(f"tcpkmon monitor: each CPU gets {ring} bytes: a ring is a power of two of pages, "
            f"{_LEAST_BYTES} bytes at least")  # fmt: skip
    names = [name for group in groups for name in GROUPS[group][2]]
    schemata = list(dict.fromkeys(GROUPS[group][1] for group in groups))
    capture = capturing.start(
        schemata, path, buffer_mb=ring / (1 << 20), force=force, detached=True,
        options=["--quiet", "--locations", ",".join(names)],
    )  # fmt: skip
    _save(State(capture.pid, path, *buffer, groups, ring))
    return 0


def _turn_off(state: State | None) -> int:
    if state is None:
        click.echo("MONITOR is not turned on")
        return UsageError.exit_code
    os.kill(state.pid, signal.SIGTERM)
    until = time.monotonic() + _STOP_S
    while _find_collector(state.pid) or Path(f"/proc/{state.pid}").exists():
        if time.monotonic() > until:
            raise TcpkmonError(
                f"the collector (process {state.pid}) has not ended in {_STOP_S:.0f} s",
                "it still writes: look again with -status",
            )
        time.sleep(0.05)
    with suppress(OSError):
        state_path().unlink()
    click.echo("MONITOR is turned OFF")
    click.echo(f"Event data collected in file {for_terminal(os.path.relpath(state.file))}")
    return 0


def _print_status(state: State | None) -> int:
    if state is None:
        click.echo("MONITOR is not turned on")
        return 0
    click.echo(_version("Status of MONITOR"))
    _print_settings(state.buffers, state.bytes, "being used")
    click.echo(f"Size of each CPU's ring (bytes) : {state.ring}")
    click.echo("Events being monitored are :")
    _list_events(state.events)
    click.echo(f"Output file name : {for_terminal(state.file)}")
    with suppress(TcpkmonError):
        from tcpkmon.collector import capturing

        status = capturing.attach(state.pid).status()
        lost = sum(number for number in status["lost"].values() if isinstance(number, int))
        click.echo(f"Events recorded : {status['records']}, lost : {lost}")
    return 0


def _check_buffers(buffer: tuple[int, int]) -> tuple[int, int]:
    count, size = buffer
    if count < 1 or size < 1:
        raise UsageError(f"-buffer {count} {size}: there is no such buffer", "both are 1 or more")
    if count * size > _MOST_BYTES:
        raise UsageError(f"-buffer {count} {size}: {count * size} bytes for each CPU are too many",
                         f"NBUFS times BUFSIZE is {_MOST_BYTES} at most")  # fmt: skip
    return buffer


def _parse_events(text: str | None) -> tuple[int, ...]:
    if text is None:
        return tuple(GROUPS)
    words = text.replace(",", " ").split()
    if not words or any(not word.isdecimal() or int(word) not in GROUPS for word in words):
        raise UsageError(f"-event {text}: no list of groups", "monitor -help lists them: 1 to 6")
    return tuple(sorted({int(word) for word in words}))


def _version(what: str) -> str:
    from tcpkmon.formats.base.installing import own_version

    return f"{what} version {own_version()}"


def _print_settings(buffers: int, size: int, how: str) -> None:
    click.echo(f"Number of buffers {how} : {buffers}")
    click.echo(f"Size of each buffer (bytes) : {size}")


def _list_events(groups: tuple[int, ...]) -> None:
    for group in groups:
        click.echo(f"{group}. {GROUPS[group][0]}")


def state_path() -> Path:
    """Where the state of the monitor that is on is kept; only root can write there."""
    from tcpkmon.collector.control.access import control_folder

    return control_folder() / "monitor.json"


def _save(state: State) -> None:
    path = state_path()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(fd, "w") as out:
            json.dump(asdict(state), out)
    except OSError as error:
        os.kill(state.pid, signal.SIGTERM)
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def find_state() -> State | None:
    """The monitor that is on; None: it is off, or its collector has ended."""
    try:
        told = json.loads(state_path().read_text())
        state = State(**{**told, "events": tuple(told["events"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return state if _find_collector(state.pid) else None


def _find_collector(pid: int) -> bool:
    from tcpkmon.collector.control.client import find_collectors

    return any(one.pid == pid for one in find_collectors())
