# SPDX-License-Identifier: Apache-2.0
"""The sides of `tcpkmon bisect`: values of a sysctl, kernels in guests, the tree as it is."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from tcpkmon.collector.commands.bisect_scenario import Scenario, check_settings, play
from tcpkmon.collector.linux.isolated import PYTHON
from tcpkmon.collector.session.command import Identity
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, TcpkmonError, UsageError

_ROOT = Path(__file__).resolve().parents[2]
_GUESTS = _ROOT / "scripts" / "vm" / "bisecting.py"
_BOOT_S, _STEP_S = 900.0, 0.2
_ERRORS = {UsageError.exit_code: UsageError, KernelError.exit_code: KernelError}


class Sides(Closing):
    """names: of the sides, in order. Each has the scenario, with settings of its own. cools:
    whether refresh() leaves caches cold."""

    cools = False

    def __init__(
        self, names: Sequence[str], scenario: Scenario, settings: Sequence[dict[str, str]],
        identity: Identity | None,
    ) -> None:  # fmt: skip
        self.names = tuple(names)
        self._scenario, self._settings, self._identity = scenario, settings, identity

    def play(self, side: int, output: Path) -> None:
        """One run of a side, captured into a file. TcpkmonError."""
        play(self._scenario, self._settings[side], output, self._identity)

    def refresh(self, sides: Sequence[int]) -> None:
        """Before a stage: what the runs of these sides may share, but not with all others."""

    def close(self) -> None:
        """Ends what was started."""


def sysctl_sides(text: str, scenario: Scenario, identity: Identity | None) -> Sides:
    """NAME=VALUE,VALUE[,...]. A value with spaces, or commas, is one in quotes of its own: values
    are split at ; where there is one. UsageError."""
    name, _, rest = text.partition("=")
    values = [one.strip() for one in rest.split(";" if ";" in rest else ",")]
    if not all(values):
        raise UsageError(f"{text} names no values", "as in net.ipv4.tcp_sack=0,1")
    check_settings(name.strip(), values)
    names = [f"{name.strip()}={value}" for value in values]
    return Sides(names, scenario, [{name.strip(): value} for value in values], identity)


class Guests(Sides):
    """Kernels: a guest of each, which serves runs until it is refreshed.

    The guests are those of scripts/vmtest: they need the source tree. UsageError without it, and
    where two names are one kernel; TcpkmonError where a guest does not boot.
    """

    def __init__(self, names: Sequence[str], scenario: Scenario, folder: Path) -> None:
        if not _GUESTS.is_file():
            raise UsageError(
                "kernels are run in guests by the source tree, and this tcpkmon was installed "
                "without it", "clone it, run sudo scripts/setup, and there .venv/bin/tcpkmon"
            )  # fmt: skip
        if len(names) < 2:
            raise UsageError("one kernel: there is nothing to compare", "--over kernels 6.1 6.12")
        done = subprocess.run(
            [*PYTHON, str(_GUESTS), "--resolve", *names], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
        releases = done.stdout.split()
        if done.returncode or len(releases) != len(names):
            raise UsageError(f"no guests of {', '.join(names)}: see above",
                             "scripts/vmtest --list names the kernels")  # fmt: skip
        if len(set(releases)) < len(releases):
            raise UsageError(f"two sides are one kernel: {', '.join(releases)}")
        super().__init__(releases, scenario, [{} for _ in names], None)
        self._folder = folder
        self._boots = 0
        self._running: dict[int, Guest] = {}

    def refresh(self, sides: Sequence[int]) -> None:
        """Boot them anew: what a boot decides by chance is then not the kernel's."""
        self.close()
        self._boots += 1
        for side in sides:
            place = self._folder / f"boot-{self._boots}-{self.names[side]}"
            self._running[side] = Guest(self.names[side], place)
        for guest in self._running.values():
            guest.await_ready()

    def play(self, side: int, output: Path) -> None:
        self._running[side].play(self._scenario, output)

    def close(self) -> None:
        for guest in self._running.values():
            guest.close()
        self._running.clear()


class Guest(Closing):
    """A guest that boots, or runs. It takes orders by files of a folder that it sees too."""

    def __init__(self, release: str, folder: Path) -> None:
        folder = folder.absolute()  # the guest has it by this name
        self.release, self._folder = release, folder
        self._orders = 0
        folder.mkdir(parents=True)
        self._log: IO[str] = (folder / "boot.log").open("w+")
        self._process = subprocess.Popen(
            [*PYTHON, str(_GUESTS), release, str(folder / "guest")], text=True,
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def await_ready(self) -> None:
        """Until it takes orders. TcpkmonError."""
        self._await("ready", _BOOT_S)

    def play(self, scenario: Scenario, output: Path) -> None:
        """One run in the guest. TcpkmonError."""
        self._orders += 1
        shared = self._folder / "guest"
        name = f"{self._orders:03}"
        order = shared / f"{name}.new"
        order.write_text(json.dumps(asdict(scenario)))
        order.rename(shared / f"{name}.order")
        answer = json.loads(self._await(f"{name}.answer", 10 * scenario.timeout_s + 300))
        for ending in (".log", ".pm"):
            with suppress(FileNotFoundError):
                (shared / f"{name}{ending}").replace(output.with_suffix(ending))
        if answer["error"]:
            kind = _ERRORS.get(answer["code"], TcpkmonError)
            raise kind(f"in the guest of {self.release}: {answer['error']}")

    def _await(self, name: str, timeout_s: float) -> str:
        path, deadline = self._folder / "guest" / name, time.monotonic() + timeout_s
        while not path.exists():
            if self._process.poll() is not None:
                self._log.seek(0)
                said = self._log.read().strip().splitlines()
                raise TcpkmonError(f"the guest of {self.release} ended: {said[-1] if said else ''}",
                                   f"{self._folder} has its logs")  # fmt: skip
            if time.monotonic() > deadline:
                raise TcpkmonError(f"the guest of {self.release} did not answer in {timeout_s:g} s",
                                   f"{self._folder} has its logs")  # fmt: skip
            time.sleep(_STEP_S)
        return path.read_text()

    def close(self) -> None:
        with suppress(OSError):
            (self._folder / "guest" / "end").touch()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        self._process.communicate()
        self._log.close()


def words_of(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command; one with spaces is for the shell. UsageError without any."""
    if not command or not command[0].strip():
        hint = "as in: tcpkmon bisect --over sysctl net.ipv4.tcp_sack=0,1 -- ./run.sh"
        raise UsageError("there is no command after --", hint)
    if len(command) == 1 and (" " in command[0] or "\n" in command[0]):
        return ("sh", "-c", command[0])
    return tuple(command)


def here() -> str:
    """The current folder. UsageError where it is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the current folder is gone") from None
