# SPDX-License-Identifier: Apache-2.0
"""Kprobe events in tracefs: programs are attached to them, so that the kernel counts misses.

The kernel lists misses in kprobe_profile, and only for events that were made in kprobe_events.
Each process has its own group, tcpkmon_PID. The groups of dead processes are removed; events of
other tools are never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.collector.linux.bpf import PERF_EVENT_IOC_SET_BPF, PERF_TYPE_TRACEPOINT
from tcpkmon.collector.linux.syscalls import (
    c_string,
    online_cpus,
    perf_attributes,
    perf_event_open,
    refused,
    system_call,
)
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, PrivilegeError, TcpkmonError

# The same on all machines: since Linux 5.1 new system calls have one number everywhere.
NR_FSOPEN, NR_FSCONFIG, NR_FSMOUNT = 430, 431, 432
FSOPEN_CLOEXEC = 1
FSCONFIG_CMD_CREATE = 6
FSMOUNT_CLOEXEC = 1

MOUNTS = "/proc/self/mounts"
GROUP_PREFIX = "tcpkmon_"
_NAME_LIMIT = 60
_EVENT_LINE = re.compile(r"^[pr]\d*:(?P<group>tcpkmon_(?P<pid>\d+))/(?P<name>\S+)\s", re.MULTILINE)
_numbers = itertools.count(1)


class Tracefs(Closing):
    """tracefs at `path`: where the system has mounted it, or a mount of our own until close()."""

    def __init__(self) -> None:
        """KernelError where the kernel has no tracefs, PrivilegeError where it may not be mounted.
        """
        self._mount = -1
        found = find_tracefs()
        if found is None:
            self._mount = _mount_privately()
            found = f"/proc/self/fd/{self._mount}"
        self.path = Path(found)

    def close(self) -> None:
        """Unmounts it if this object mounted it."""
        if self._mount >= 0:
            os.close(self._mount)
            self._mount = -1


def find_tracefs() -> str | None:
    """The folder where tracefs is mounted, or None."""
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split() for line in file]
    folders = [words[1] for words in mounts if len(words) > 2 and words[2] == "tracefs"]
    return next((folder for folder in folders if os.access(folder, os.R_OK)), None)


def _mount_privately() -> int:
    """The descriptor of a mount of tracefs that is in no folder; closing it unmounts it."""
    try:
        context = system_call(NR_FSOPEN, c_string("tracefs"), FSOPEN_CLOEXEC)
        try:
            system_call(NR_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0)
            return system_call(NR_FSMOUNT, context, FSMOUNT_CLOEXEC, 0)
        finally:
            os.close(context)
    except OSError as error:
        raise refused(error, "mounting tracefs") from error


def has_kprobes(tracefs: Path) -> bool:
    """Whether this kernel supports kprobe events. PrivilegeError where this user may not look."""
    try:
        return (tracefs / "kprobe_events").exists()
    except PermissionError as error:
        raise PrivilegeError(f"{tracefs} is root's: kprobes need CAP_DAC_OVERRIDE") from error


def _open_events(tracefs: Path) -> int:
    # Without O_APPEND, or with O_TRUNC, opening would remove the events of all tools.
    return os.open(tracefs / "kprobe_events", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def stale_events(listing: str) -> tuple[str, ...]:
    """GROUP/NAME of the events in the text of kprobe_events whose process has ended."""
    return tuple(
        f"{match['group']}/{match['name']}"
        for match in _EVENT_LINE.finditer(listing)
        if not os.path.exists(f"/proc/{match['pid']}")
    )


def remove_stale(tracefs: Path) -> tuple[str, ...]:
    """Removes the events of dead tcpkmon processes, and returns them. An event in use stays."""
    removed = []
    for event in stale_events((tracefs / "kprobe_events").read_text()):
        # EBUSY: the process runs in another PID namespace.
        with contextlib.suppress(OSError), os.fdopen(_open_events(tracefs), "wb", 0) as file:
            file.write(f"-:{event}\n".encode())
            removed.append(event)
    return tuple(removed)


def parse_profile(text: str) -> dict[str, tuple[int, int]]:
    """kprobe_profile: event's name -> (hits, nmissed)."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: (int(row[1]), int(row[2])) for row in rows if len(row) == 3}


def attach_kprobe(function: str, programs: Sequence[int]) -> KprobeEvent:
    """Attaches the programs to a kernel function; they run in this order. KernelError.

    The events of dead tcpkmon processes are removed first.
    """
    tracefs = Tracefs()
    event = None
    try:
        if has_kprobes(tracefs.path):
            remove_stale(tracefs.path)
        event = KprobeEvent.make(tracefs.path, function)
        for program in programs:
            event.attach(program)
    except TcpkmonError:
        if event is not None:
            event.remove()
        tracefs.close()
        raise
    event.mount = tracefs
    return event


@dataclass
class KprobeEvent:
    """One event in kprobe_events, and a perf event for each attached program (`fds`)."""

    tracefs: Path
    group: str
    name: str
    fds: list[int]
    nmissed: int = 0
    mount: Tracefs | None = None
    """Closed with the event."""
    events: int = -1
    profile: int = -1
    """kprobe_events and kprobe_profile, open: later this process may not open them."""

    @classmethod
    def make(cls, tracefs: Path, function: str) -> KprobeEvent:
        """Makes the event on a kernel function; KernelError where the kernel refuses it."""
        # kprobe_profile has names without groups, so the name alone must be unique.
        words = re.sub(r"\W", "_", function)
        name = f"p{os.getpid()}_{next(_numbers)}_{words}"[:_NAME_LIMIT]
        event = cls(tracefs, f"{GROUP_PREFIX}{os.getpid()}", name, [])
        try:
            event.events = _open_events(tracefs)
            event.profile = os.open(tracefs / "kprobe_profile", os.O_RDONLY | os.O_CLOEXEC)
            os.write(event.events, f"p:{event.group}/{name} {function}\n".encode())
        except OSError as error:
            event._close_files()
            if not has_kprobes(tracefs):
                raise KernelError("this kernel has no kprobes (CONFIG_KPROBE_EVENTS)") from error
            raise refused(error, f"making a kprobe on {function}") from error
        return event

    @classmethod
    def adopt(cls, group: str, name: str, fds: list[int]) -> KprobeEvent:
        """An event that another process made, with its perf events. PrivilegeError, KernelError."""
        tracefs = Tracefs()
        event = cls(tracefs.path, group, name, fds)
        try:
            event.events = _open_events(tracefs.path)
            event.profile = os.open(tracefs.path / "kprobe_profile", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            event._close_files()
            tracefs.close()
            raise refused(error, "opening the kprobe events") from error
        event.mount = tracefs
        return event

    def attach(self, prog_fd: int) -> None:
        """Attaches a program on all CPUs; it runs after those that were attached before it."""
        try:
            number = int((self.tracefs / "events" / self.group / self.name / "id").read_text())
            attributes = perf_attributes(PERF_TYPE_TRACEPOINT, number)
            # The kernel runs the program on every CPU, whichever CPU is named here.
            self.fds.append(perf_event_open(attributes, online_cpus()[0]))
            fcntl.ioctl(self.fds[-1], PERF_EVENT_IOC_SET_BPF, prog_fd)
        except OSError as error:
            raise refused(error, f"attaching a program to {self.name}") from error

    def refresh(self) -> None:
        """It is in one place, the kernel."""

    def read_missed(self) -> int:
        """How many times the kernel could not run the probe (nmissed)."""
        if self.name:
            with contextlib.suppress(OSError):
                os.lseek(self.profile, 0, os.SEEK_SET)
                with os.fdopen(os.dup(self.profile), encoding="ascii") as file:
                    profile = parse_profile(file.read())
                self.nmissed = profile.get(self.name, (0, self.nmissed))[1]
        return self.nmissed

    def remove(self) -> None:
        """Detaches the programs, reads nmissed for the last time, and removes the event."""
        while self.fds:
            os.close(self.fds.pop(0))
        if not self.name:
            return
        self.read_missed()
        with contextlib.suppress(OSError):
            os.write(self.events, f"-:{self.group}/{self.name}\n".encode())
        self._close_files()
        self.name = ""
        if self.mount is not None:
            self.mount.close()

    def _close_files(self) -> None:
        for fd in (self.events, self.profile):
            if fd >= 0:
                os.close(fd)
        self.events = self.profile = -1
