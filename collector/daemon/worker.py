# SPDX-License-Identifier: Apache-2.0
"""The process of one capture of the daemon: python -m tcpkmon.collector.daemon.worker NAME FD.

The supervisor is at the other end of the channel FD. It sends the capture's table first.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tcpkmon.collector.daemon.channel import Channel
from tcpkmon.collector.daemon.config import make_capture
from tcpkmon.collector.daemon.messages import MOST_WHY
from tcpkmon.collector.linux.trusted_files import open_folder, open_no_link
from tcpkmon.collector.loader.parked import Parked
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session import session
from tcpkmon.collector.session.overseer import Overseer
from tcpkmon.formats.base.cli import run
from tcpkmon.formats.base.errors import FileError


class Supervised(Overseer):
    """The supervisor, as the session sees it."""

    holds = True

    def __init__(self, channel: Channel, parked: Parked, stored: bool) -> None:
        super().__init__()
        self._stored, self._has_parked = stored, False
        self._channel = channel
        self.parked = parked

    def park(self, state: Mapping[str, Any], fds: Mapping[str, int]) -> None:
        what = {"what": "park", "state": dict(state), "names": list(fds)}
        self._channel.send(what, list(fds.values()))
        self._has_parked = True

    def went_on(self, killed: int) -> None:
        self._channel.send({"what": "went on", "killed": killed})

    def anew(self, why: str) -> None:
        self._channel.send({"what": "anew", "why": why[:MOST_WHY]})

    def ready(self) -> None:
        self._channel.send({"what": "ready"})

    def is_there(self, records: int, lost: Mapping[str, int]) -> bool:
        what = {"what": "drained", "records": records, "lost": sum(lost.values())}
        there = self._channel.send(what)
        if not there and self._stored and self._has_parked:
            # Another supervisor will start a process that goes on here: as if this one was killed.
            os.kill(os.getpid(), signal.SIGKILL)
        return there


def capture(channel: Channel) -> int:
    """Run the capture that the supervisor's message describes."""
    order = channel.receive()
    if order is None:
        return 0
    what = order.what
    made = make_capture(what["name"], what["table"], what["group"])
    request = replace(made.request, arguments=("daemon", what["name"]))
    if not (request.rotates or request.recorder):
        request = replace(request, output=_new_file(request))
    held = what["parked"]
    parked = Parked(dict(zip(held["names"], order.fds, strict=True)), held["state"])
    return session.run(request, Supervised(channel, parked, what["stored"]))


def _new_file(request: Request) -> str:
    folder = Path(request.output)
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    try:
        os.close(open_folder(str(there)))  # nothing is made behind another user's link
        folder.mkdir(0o750, parents=True, exist_ok=True)
        os.close(open_no_link(str(folder), os.O_RDONLY | os.O_DIRECTORY))
    except OSError as error:
        if folder.is_symlink():
            why = f"{folder} is a symbolic link"
            raise FileError(why, "name the folder itself") from error
        if isinstance(error, NotADirectoryError):
            raise FileError(f"{there} is not a folder", "name another one: output") from error
        raise FileError(f"{folder}: {error.strerror}") from error
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = sum(1 for _ in folder.iterdir()) + 1
    return str(folder / f"{os.uname().nodename}-{moment}-{number:06}{request.format.suffix}")


def main() -> None:
    gc.disable()  # the session turns it on: see collector/commands/collect.py
    name, channel = sys.argv[1], Channel.of(int(sys.argv[2]))

    @click.command()
    def command() -> int:
        return capture(channel)

    sys.exit(run(command, [], prog=f"tcpkmon daemon: capture {name}"))

