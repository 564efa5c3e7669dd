# SPDX-License-Identifier: Apache-2.0
"""The part of packetdrill's language that `tcpkmon packetdrill` writes, as events.

It is no packetdrill: IPv4 and one connection alone; of calls those of a script of ours; each
expected packet has `<...>` for its options or none; asserts compare a value of TCP_INFO with ==.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tcpkmon.formats.base.errors import TcpkmonError

_TIME = re.compile(r"(\+?)([0-9.]+)(?:~([0-9.]+))?\s+(.*)", re.DOTALL)
_PACKET = re.compile(
    r"([<>]) ([SFPRUEW.]+) (\d+):(\d+)\((\d+)\)(?: ack (\d+))?(?: win (\d+))?(?: <(.*)>)?"
)
_CALL = re.compile(r"(\w+)\((.*)\) = (-?\d+)(?: (E\w+).*)?")
_ASSERT = re.compile(r"assert tcpi_(\w+) == (\w+), tcpi_\w+")
_STATES = {f"TCP_CA_{name}": number for number, name in
           enumerate(("Open", "Disorder", "CWR", "Recovery", "Loss"))}  # fmt: skip


class ScriptError(TcpkmonError):
    """The script is none that this player knows, or the kernel did something else."""


@dataclass(frozen=True)
class Packet:
    """expected: the kernel sends it. flags: letters as packetdrill has them."""

    expected: bool
    flags: str
    seq: int
    size: int
    ack: int | None
    window: int | None
    options: str


@dataclass(frozen=True)
class Call:
    """A system call. arguments: as they stand in the script. error: the name of its errno."""

    name: str
    arguments: list[str]
    result: int
    error: str


@dataclass(frozen=True)
class Asserts:
    """What TCP_INFO has then."""

    values: dict[str, int]


@dataclass(frozen=True)
class Event:
    """At line `line`, from begin to end, seconds since the script's begin."""

    line: int
    begin: float
    end: float
    what: Packet | Call | Asserts


@dataclass
class Script:
    """commands: for the shell, before it begins. tolerance: of times, in seconds."""

    events: list[Event] = field(default_factory=list)
    commands: str = ""
    tolerance: float = 0.004


def parse(text: str) -> Script:
    """ScriptError for what it does not know."""
    made = Script()
    lines = text.split("\n")
    at, last = 0, 0.0
    while at < len(lines):
        first, line = at + 1, lines[at].strip()
        at += 1
        if not line or line.startswith("//"):
            continue
        if line.startswith("--"):
            name, _, value = line.partition("=")
            if name != "--tolerance_usecs":
                raise ScriptError(f"line {first}: the player does not know {name}")
            made.tolerance = int(value) / 1e6
            continue
        closing = "`" if line.startswith("`") else "}%" if "%{" in line else ""
        while closing and not line.endswith(closing) and at < len(lines):
            line += "\n" + lines[at].strip()
            at += 1
        if line.startswith("`"):
            made.commands += line.strip("`") + "\n"
            continue
        event = _event(first, line, last)
        last = event.end
        made.events.append(event)
    return made


def _event(number: int, line: str, last: float) -> Event:
    found = _TIME.fullmatch(line)
    if found is None:
        raise ScriptError(f"line {number}: no time in {line!r}")
    begin = float(found[2]) + (last if found[1] else 0.0)
    return Event(number, begin, float(found[3] or begin), _what(number, found[4].strip()))


def _what(number: int, text: str) -> Packet | Call | Asserts:
    if text.startswith("%{"):
        lines = text.removeprefix("%{").removesuffix("}%").strip().split("\n")
        found = [_ASSERT.fullmatch(line) for line in lines]
        if all(found):
            return Asserts({one[1]: _STATES.get(one[2], -1) if one[2] in _STATES else int(one[2])
                            for one in found if one})  # fmt: skip
    elif packet := _PACKET.fullmatch(text):
        return Packet(packet[1] == ">", packet[2], int(packet[3]), int(packet[5]),
                      None if packet[6] is None else int(packet[6]),
                      None if packet[7] is None else int(packet[7]), packet[8] or "")  # fmt: skip
    elif call := _CALL.fullmatch(text):
        return Call(call[1], [one.strip() for one in call[2].split(",")], int(call[3]),
                    call[4] or "")  # fmt: skip
    raise ScriptError(f"line {number}: the player does not know {text!r}")
