# SPDX-License-Identifier: Apache-2.0
"""What the daemon's captures are, and where they write: below /run until the disks are there.

With --early the captures write to FOLDER/NAME, in memory, until the first reload that finds their
folders writable. Other processes go on then, in these folders, and what the first ones wrote is
moved there (moving.py). A file tells the daemon's next process that this was done.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from tcpkmon.collector.control.access import control_folder
from tcpkmon.collector.daemon.mending import Mending, wait_for
from tcpkmon.collector.daemon.requests import Refused
from tcpkmon.collector.linux import isolated
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.segments import parse_name

END_S = 20.0
"""How long the daemon waits at its end for what is being moved."""
READ_S = 60.0
LOOK_S = 1.0
FAILED_S = 60.0
"""What could not be moved is tried again after so long."""


class Plans:
    """Reads a configuration. early: its captures begin in memory."""

    def __init__(self, config: Path, early: bool = False) -> None:
        self._config = config
        control = control_folder()
        self._folder = control.with_name(f"{control.name}-early")
        """Not in the control folder, of which nothing needs to be kept."""
        self._targets: dict[str, str] = {}
        """Where the files of each capture belong; none before the disks are there."""
        self._moves: dict[str, subprocess.Popen[bytes]] = {}
        self._look_at_s = 0.0
        self._is_new, self._is_early = True, early
        if early:
            with suppress(OSError, ValueError):
                self._targets = json.loads(self._marker.read_text())
                self._is_early = False

    @property
    def _marker(self) -> Path:
        return self._folder / "disks-are-there.json"

    def read(self) -> dict[str, Any]:
        """The plan of collector/daemon/checking.py. Refused with the mistakes in the configuration,
        and where a capture that waits for its disk cannot have it yet."""
        plan = _read_plan(self._config)
        if not self._is_early:
            return plan
        if self._is_new:
            self._is_new = False
            return self._begin_in_memory(plan)
        targets = {name: one["folder"] for name, one in plan["captures"].items()}
        if why := [f"capture {name} goes on in memory: {folder} cannot be written"
                   for name, folder in targets.items() if not _may_write(folder)]:  # fmt: skip
            raise Refused([*why, "mount its disk, then: tcpkmon reload"], 1)
        new = self._marker.with_suffix(".new")
        new.write_text(json.dumps(targets))
        new.replace(self._marker)
        self._targets, self._is_early = targets, False
        return plan

    def _begin_in_memory(self, plan: dict[str, Any]) -> dict[str, Any]:
        try:
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Refused([f"{self._folder}: {error.strerror}"], 1) from error
        captures = {}
        for name, one in plan["captures"].items():
            output: dict[str, Any] = {"output": str(self._folder / name)}
            if "dataset" in (rotation := one["table"].get("rotation", {})):  # on a disk
                output["rotation"] = {key: rotation[key] for key in rotation if key != "dataset"}
            captures[name] = {
                **one, "folder": output["output"],
                "table": {**one["table"], **output}, "static": {**one["static"], **output},
            }  # fmt: skip
        # The metrics begin with the disks: they may write a file, and are asked by the network.
        return {**plan, "captures": captures, "metrics": None}

    def look_after(self, busy: Collection[str], mending: Mending) -> None:
        """Move what captures of before left in memory. busy: folders that captures write into."""
        now_s = time.monotonic()
        if not self._targets or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        for name, folder in [*self._targets.items()]:
            source = str(self._folder / name)
            if (move := self._moves.get(name)) is not None:
                if move.poll() is None:
                    continue
                del self._moves[name]
                if move.returncode:
                    say(f"tcpkmon daemon: capture {name}: files stay in {source}; "
                        f"the next try is in {FAILED_S:g} s")  # fmt: skip
                    self._look_at_s = now_s + FAILED_S
                    continue
            if source in busy:
                continue
            found = [each for each in map(parse_name, _names_in(source)) if each is not None]
            if any(not each.sealed for each in found):
                mending.start_quiet(source)
            if any(each.sealed for each in found):
                self._start(name, source, folder)

    def _start(self, name: str, source: str, folder: str) -> None:
        words = isolated.command("tcpkmon.collector.daemon.moving", source, folder)
        with suppress(OSError):  # no process is left now: the next look does it
            self._moves[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL)

    def finish(self, mending: Mending) -> None:
        """Move what is left, as far as that takes no longer than END_S; the next daemon moves the
        rest."""
        self._look_at_s = 0.0
        self.look_after((), mending)
        wait_for(self._moves.values(), END_S)


def _read_plan(config: Path) -> dict[str, Any]:
    """The configuration; see collector/daemon/checking.py. Refused with its mistakes."""
    try:
        done = subprocess.run(
            isolated.command("tcpkmon.collector.daemon.checking", os.fspath(config)),
            check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=READ_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Refused([f"the configuration could not be read within {READ_S:g} s"], 1) from error
    except OSError as error:
        raise Refused([f"the configuration could not be read: {error.strerror}"], 1) from error
    if done.returncode:
        lines = [line.removeprefix("tcpkmon daemon: ") for line in done.stderr.splitlines()]
        raise Refused(lines or ["the configuration could not be read"], done.returncode)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def _may_write(folder: str) -> bool:
    """Whether a folder is there, or can be made, on a file system that is written."""
    path = Path(folder)
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    return os.access(there, os.W_OK)


def _names_in(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)
    return []
