# SPDX-License-Identifier: Apache-2.0
"""Which privileges the capture has after its set-up: SECURITY.md has the whole list."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from tcpkmon.collector.control.access import (
    control_folder,
    name_path,
    owner_path,
    prepare_folder,
    socket_path,
    status_path,
)
from tcpkmon.collector.linux.confinement import deny_calls
from tcpkmon.collector.linux.deputy import Deputy
from tcpkmon.collector.linux.nf_hooks import Entrance, FarEntrance
from tcpkmon.collector.linux.privileges import (
    WRITER_PRIORITY,
    check_threads,
    find_user,
    lacking,
    needed_capabilities,
    run_first,
    settle,
)
from tcpkmon.collector.plan.named_groups import GROUP_MADE
from tcpkmon.collector.plan.probes import Chosen
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session.container_names import Opener, has_managers, open_for_names
from tcpkmon.collector.session.summary import say
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.formats.base.errors import TcpkmonError

OPENING = ("CAP_DAC_OVERRIDE", "CAP_CHOWN")
"""What the deputy needs to make files in a folder of the user who called sudo."""
READING = ("CAP_DAC_READ_SEARCH",)
"""What the deputy needs to open the files of Docker and Podman."""
ENTERING = ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE")
"""What the deputy needs to find and enter network namespaces."""


OPTIONAL = {
    "CAP_SYSLOG": "RTO and the other timers are not recorded, nor sleeps' places and terminals, "
    "nor the functions that drop packets",
    "CAP_SYS_ADMIN": "connections that are open in other network namespaces are not recorded",
    "CAP_DAC_OVERRIDE": "what needs a kprobe is not recorded",
    "CAP_SYS_NICE": "the collector has no priority over other processes",
}
"""What a capture lacks without them."""


def describe_lacking(quiet: bool) -> None:
    """Print a line for each of the OPTIONAL capabilities that this process does not have."""
    for name in () if quiet else lacking(OPTIONAL):
        say(f"this user lacks {name}: {OPTIONAL[name]}")


class Rights:
    """The user and the privileges of a capture's threads. Make it while there is one thread alone.

    Root becomes a user who may write nothing; a deputy opens the files of CPUs that come online
    later, and removes the control sockets. Where probes need it, another deputy attaches programs
    in network namespaces that appear later, or that the request names. `stack` closes what this
    opens.
    """

    def __init__(
        self, stack: ExitStack, stream: Stream, request: Request, probes: Sequence[Chosen]
    ) -> None:
        self.user = find_user()
        self.writer: int | None = None
        """The ID of the writing thread, once it runs."""
        self.checks: dict[str, Callable[[], None]] = {}
        """By what a process does beside this one: KernelError where it was killed."""
        self._has_command = bool(request.command)
        self._folders = [*stream.folders()]
        with suppress(OSError, TcpkmonError):  # then there is no control socket
            prepare_folder(control_folder())
            folder = os.open(control_folder(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder)
            self._folders.append(folder)
        if self.user is not None:
            control = socket_path(control_folder())
            paths = [control, *(of(control) for of in (status_path, owner_path, name_path))]
            deputy = Deputy(
                stream.open_file,
                at_end=partial(_remove, *paths),
                settle=partial(settle, OPENING, folders=self._folders, forks=True),
                keep=self._folders,
            )
            stack.enter_context(deputy)
            self.checks["the process that opens files"] = deputy.check
            stream.open_files_by(deputy.open_file)
            self._folders = []
        self.opener: Opener = open_for_names
        """Opens the files that name containers."""
        wants_names = any(probe.name == GROUP_MADE for probe in probes) and has_managers()
        if self.user is not None and wants_names:
            deputy = Deputy(
                open_for_names,
                at_end=lambda: None,
                settle=partial(settle, READING, self.user, forks=True),
                what=(what := "the process that opens files of containers"),
            )
            stack.enter_context(deputy)
            self.checks[what] = deputy.check
            self.opener = deputy.open_file
        self.entrance: Entrance | None = None
        if any(probe.kind == "nf" for probe in probes) and not lacking(ENTERING):
            named = [one.fd for one in request.filters.namespaces]
            deputy = Deputy(
                Entrance(named).answer,
                at_end=lambda: None,
                keep=named,
                settle=partial(settle, ENTERING, self.user, enters_namespaces=True, forks=True),
                what=(what := "the process that enters network namespaces"),
                confine=partial(deny_calls, enters_namespaces=True),
            )
            stack.enter_context(deputy)
            self.checks[what] = deputy.check
            self.entrance = FarEntrance(deputy.open_file)

    def begin_writing(self) -> None:
        """Prepare the calling thread to write the file: priority, and no capability.

        It shares Python's lock with the reader. Without the priority the reader would wait while
        the thread that has the lock waits for a CPU.
        """
        self.writer = threading.get_native_id()
        run_first(WRITER_PRIORITY)
        settle(user=self.user, folders=self._folders)

    def give_up(self) -> None:
        """Give up what the capture no longer needs. PrivilegeError if a thread keeps more."""
        kept = needed_capabilities()
        if self._has_command:
            kept = (*kept, "CAP_KILL")
        settle(kept, self.user, self._folders, signals=self._has_command)
        check_threads(kept, self.user)


def _remove(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
