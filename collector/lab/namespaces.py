# SPDX-License-Identifier: Apache-2.0
"""The named network namespaces that a lab is made of: made, entered, removed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute

from collector.linux.netns import NAMED, Namespace, enter, resolve, run_inside
from formats.base.errors import TcpkmonError

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """One namespace of a lab."""

    namespace: Namespace
    address4: str
    address6: str

    @property
    def name(self) -> str:
        return self.namespace.name

    @property
    def mapped(self) -> str:
        """The IPv4 address as an IPv6 socket says it."""
        return f"::ffff:{self.address4}"

    def run(self, call: Callable[[], T]) -> T:
        """Calls it in a thread inside this namespace; returns its result."""
        return run_inside(self.namespace.fd, call)

    @contextmanager
    def routes(self) -> Iterator[IPRoute]:
        """The kernel's network settings of this namespace.

        IPRoute(netns=...) would fork to get there, and a fork of a process with threads can hang.
        """
        with enter(self.namespace.fd), IPRoute() as routes:
            yield routes

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """subprocess.Popen inside this namespace, with text streams and no standard input."""
        options = {"text": True, "stdin": subprocess.DEVNULL, "env": _environment(), **options}
        with enter(self.namespace.fd):
            return subprocess.Popen(list(command), **options)

    def command(self, command: Sequence[str], timeout_s: float = 120.0) -> str:
        """Runs a command inside this namespace and returns what it printed.

        Raises subprocess.CalledProcessError when it fails.
        """
        with enter(self.namespace.fd):
            return subprocess.run(
                list(command),
                check=True,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                env=_environment(),
                timeout=timeout_s,
            ).stdout


def make(name: str) -> Namespace:
    """A new namespace of that name; one that a dead process left there is removed."""
    if (NAMED / name).exists():
        remove(name)
    # A new /run/netns must be one that others can look into, whatever the umask.
    with _umask(0o022):
        _ip("netns", "add", name)
    return resolve(name)


def remove_stale() -> None:
    """Removes the labs of processes that are gone (killed, or the power failed)."""
    with suppress(FileNotFoundError):
        for entry in sorted(os.listdir(NAMED)):
            found = re.fullmatch(r"tcpkmon-(\d+)-\d+-[abr]", entry)
            if found and not Path("/proc", found.group(1)).exists():
                remove(entry)


def remove(name: str) -> None:
    """Removes it; its processes keep what they use of it."""
    # Another start may remove the same stale one: it is gone then, and all is well.
    with suppress(TcpkmonError):
        _ip("netns", "delete", name)
    with suppress(FileNotFoundError):
        os.unlink(NAMED / name)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["ip", *arguments],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    except FileNotFoundError:
        raise TcpkmonError("there is no command ip here", "apt install iproute2") from None
    if done.returncode:
        raise TcpkmonError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _environment() -> dict[str, str]:
    """This one's, with the folders where ip, tc and nft are, which sudo and cron may leave out."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"}


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
