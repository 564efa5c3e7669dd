# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon metrics: tells Prometheus what running captures count."""

from __future__ import annotations

import grp
import ipaddress
import os
import socket
import stat
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from tcpkmon.collector.commands.metrics_file import TextFile
from tcpkmon.formats.base.cli import say
from tcpkmon.formats.base.errors import FileError, PrivilegeError, TcpkmonError, UsageError

GROUP = "tcpkmon"
_MODE = 0o660


@click.command("metrics")
@click.option("--listen", metavar="unix:PATH|127.0.0.1:PORT", help="Serve OpenMetrics here.")
@click.option("--textfile", metavar="FILE", help="Write FILE for node_exporter, again and again.")
@click.option("--interval", type=click.FloatRange(1, 3600), default=15.0, show_default=True,
              metavar="S", help="How often FILE is written.")
@click.option("--once", is_flag=True, help="Print the metrics, or write FILE, once.")
@click.option("--group", metavar="NAME",
              help="As root: the group to be in, which may control the captures.  "
              f"[default: {GROUP}, where there is one]")
@click.option("--until-eof", is_flag=True,
              help="End when standard input does: whoever started this is gone.")
def command(
    listen: str | None, textfile: str | None, interval: float, once: bool, group: str | None,
    until_eof: bool,
) -> int:  # fmt: skip
    """Tell Prometheus what the running captures count: losses, rings, and TCP's behaviour.

    It asks the captures when it is scraped. It needs no privilege but to be in the group that
    collect --control-group names; without that it gets the public counts alone. Started as root,
    it becomes the user tcpkmon, or nobody's, once its socket is open, unless it only prints. FILE
    is then written as the owner of its folder. It listens on this machine alone. Nothing it says
    holds an address, a port or a process id.
    """
    if once and listen:
        raise UsageError("--once serves nothing", "leave out --listen")
    if not (once or listen or textfile):
        raise UsageError("there is nothing to do", "add --listen, --textfile or --once")
    from prometheus_client import generate_latest

    from tcpkmon.collector.commands.openmetrics import make_registry

    registry = make_registry()
    if once and not textfile:
        click.echo(generate_latest(registry), nl=False)
        return 0
    # All before root is given up: later this process may not be able to read its own code.
    import asyncio
    import concurrent.futures.thread  # noqa: F401  # asyncio's own, which it imports late

    from tcpkmon.collector.commands.metrics_server import serve
    from tcpkmon.collector.control.client import find_collectors

    gid = find_gid(group)
    with ExitStack() as stack:
        file = stack.enter_context(TextFile(textfile)) if textfile else None
        listener = stack.enter_context(open_listener(listen, gid)) if listen else None
        drop_root(gid)
        try:
            find_collectors()
        except PrivilegeError as error:
            say("; ".join(f"tcpkmon metrics: {line}" for line in error.lines()))
        if once:
            assert file is not None
            file.write(generate_latest(registry))
            return 0
        if listen and listen.startswith("unix:"):
            stack.callback(_remove, listen.removeprefix("unix:"))
        with suppress(asyncio.CancelledError):
            until = sys.stdin.fileno() if until_eof else None
            asyncio.run(serve(registry, listener, file, interval, until))
    return 0


def _remove(path: str) -> None:
    with suppress(OSError):  # who gave up root may not
        os.unlink(path)


def open_listener(text: str, gid: int | None = None) -> socket.socket:
    """A listening socket: unix:PATH (mode 0660, of this group), 127.0.0.1:PORT or [::1]:PORT.

    UsageError for any other address, FileError where it cannot listen.
    """
    if text.startswith("unix:"):
        return _listen_at(Path(text.removeprefix("unix:")), gid)
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not 0 <= number < 1 << 16:
            raise ValueError
    except ValueError:
        raise UsageError(f"--listen: not an address: {text!r}", "write 127.0.0.1:9633") from None
    if not address.is_loopback:
        raise UsageError(
            f"--listen: {address} is not this machine alone", "127.0.0.1, ::1, or unix:PATH"
        )
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), number))
        listener.listen()
    except OSError as error:
        listener.close()
        raise FileError(f"--listen {text}: {error.strerror}") from error
    return listener


def _listen_at(path: Path, gid: int | None) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
                os.unlink(path)  # of a process that has ended
        # The new file gets the socket's mode: nobody can put a link in its place before a chmod().
        os.fchmod(listener.fileno(), _MODE)
        umask = os.umask(0)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(umask)
        if gid is not None:
            _give_to_group(path, gid)
        listener.listen()
    except OSError as error:
        listener.close()
        raise FileError(f"{path}: {error.strerror or error}") from error
    return listener


def _give_to_group(path: Path, gid: int) -> None:
    """By descriptor: who may write in the folder may have put another file in its place."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.chown(f"/proc/self/fd/{fd}", -1, gid)
    finally:
        os.close(fd)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(os.fspath(path))
        except OSError:
            return False
    return True


def find_gid(group: str | None) -> int | None:
    """The group that root will be in, and whose members may connect; None: another user's, or none.

    UsageError for an unknown group.
    """
    from tcpkmon.collector.control.access import find_group

    if os.geteuid() != 0:
        if group is not None:
            raise UsageError("--group is for root", f"join it: usermod -aG {group} USER")
        return None
    if group is None:
        with suppress(KeyError):
            group = grp.getgrnam(GROUP).gr_name
    return find_group(group) if group is not None else None


def drop_root(gid: int | None) -> None:
    """Root becomes the user tcpkmon or a user that nobody is, in this group alone.

    PrivilegeError if it cannot. No effect for another user.
    """
    from tcpkmon.collector.control.access import group_name
    from tcpkmon.collector.linux.privileges import (
        drop_capabilities,
        find_user,
        forbid_new_privileges,
    )

    if os.geteuid() != 0:
        return
    user = find_user()
    if user is None:
        raise PrivilegeError("no other user can be found", "run this as a user of the group")
    try:
        os.setgroups([gid] if gid is not None else [])
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        raise PrivilegeError(f"becoming user {user.uid} failed: {error.strerror}") from error
    forbid_new_privileges()
    drop_capabilities(())
    if os.geteuid() == 0:
        raise TcpkmonError("root was not given up")
    group = group_name(gid if gid is not None else user.gid)
    sys.stderr.write(f"tcpkmon: metrics as user {user.uid}, group {group}\n")
