# SPDX-License-Identifier: Apache-2.0
"""The named network namespaces of a lab: makes, enters and removes them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute

from tcpkmon.collector.linux.netns import NAMED, Namespace, enter, resolve, run_inside
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

T = TypeVar("T")
_PACKAGES = {"ip": "iproute2", "nft": "nftables", "tc": "iproute2"}


@dataclass(frozen=True)
class Side:
    """One namespace of a lab."""

    namespace: Namespace
    address4: str
    address6: str

    @property
    def name(self) -> str:
        return self.namespace.name

    def run(self, call: Callable[[], T]) -> T:
        """Call it in a thread inside this namespace; returns its result."""
        return run_inside(self.namespace.fd, call)

    @contextmanager
    def routes(self) -> Iterator[IPRoute]:
        """A netlink socket for the network settings of this namespace.

        IPRoute(netns=...) would fork. A fork of a process with threads can block forever.
        """
        with enter(self.namespace.fd), IPRoute() as routes:
            yield routes

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """subprocess.Popen inside this namespace, with text streams and no standard input."""
        options = {"text": True, "stdin": subprocess.DEVNULL, "env": _environment(), **options}
        with enter(self.namespace.fd):
            return subprocess.Popen(list(command), **options)

    def command(self, command: Sequence[str], timeout_s: float = 120.0) -> str:
        """Run a command inside this namespace; returns its standard output.

        Errors: subprocess.CalledProcessError when it fails, TcpkmonError when it is not installed.
        """
        with enter(self.namespace.fd):
            return _run(command, timeout_s)

    def set_sysctls(self, settings: Mapping[str, str]) -> None:
        """Write settings of this namespace, named as in net.ipv4.tcp_sack. UsageError where the
        kernel has none of this name, or refuses the value."""
        for name, value in settings.items():
            try:
                self.run(partial(sysctl_path(name).write_text, value))
            except OSError as error:
                raise UsageError(
                    f"the kernel does not take {name}={value}: {error.strerror}"
                ) from None


def sysctl_path(name: str) -> Path:
    """The file of a setting, of the namespace of the thread that opens it."""
    return Path("/proc/sys", *name.split("."))


def make(name: str) -> Namespace:
    """Make a namespace of that name. One that a dead process left is removed first."""
    if (NAMED / name).exists():
        remove(name)
    # This may create /run/netns: others must be able to read it, whatever the umask.
    with _umask(0o022):
        _ip("netns", "add", name)
    return resolve(name)


def remove_stale() -> None:
    """Remove the labs of processes that do not exist any more."""
    with suppress(FileNotFoundError):
        for entry in sorted(os.listdir(NAMED)):
            found = re.fullmatch(r"tcpkmon-(\d+)-\d+-[abr]", entry)
            if found and not Path("/proc", found.group(1)).exists():
                remove(entry)


def remove(name: str) -> None:
    """Remove the name. The kernel frees the namespace when no process uses it."""
    # Another program may remove the same stale namespace at the same time: no error.
    with suppress(TcpkmonError):
        _ip("netns", "delete", name)
    with suppress(FileNotFoundError):
        os.unlink(NAMED / name)


def _ip(*arguments: str) -> None:
    try:
        _run(["ip", *arguments])
    except subprocess.CalledProcessError as error:
        raise TcpkmonError(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from None


def _run(command: Sequence[str], timeout_s: float = 120.0) -> str:
    try:
        return subprocess.run(
            list(command),
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=_environment(),
            timeout=timeout_s,
        ).stdout
    except FileNotFoundError:
        name = command[0]
        hint = f"apt install {_PACKAGES[name]}" if name in _PACKAGES else ""
        raise TcpkmonError(f"there is no command {name} here", hint) from None


def _environment() -> dict[str, str]:
    """This process's, with the folders of ip, tc and nft, which sudo and cron may remove."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"}


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
