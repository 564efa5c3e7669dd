# SPDX-License-Identifier: Apache-2.0
"""The command tcpkmon probe: logs an event of one's own, as any program can by prctl()."""

from __future__ import annotations

import ctypes
import errno

import click

USER_OPTION = 0x75736572
"""The option of prctl(), in bpf/schemata/user.bpf.c too."""


@click.command("probe")
@click.argument("group", type=click.IntRange(0, 255))
@click.argument("type_", metavar="TYPE", type=click.IntRange(0, 255))
@click.argument("aux", default="", metavar="[AUX]")
def command(group: int, type_: int, aux: str) -> int:
    """Log USER_EVENT with GROUP, TYPE and the text AUX, wherever the schema user is recorded.

    It needs no privilege. It does not tell whether anybody records: a program pays for one call.
    docs/schemas.md shows the call, which costs less than this command.
    """
    from tcpkmon.collector.linux.syscalls import address, call_libc
    from tcpkmon.formats.base.errors import KernelError

    text = ctypes.create_string_buffer(aux.encode(errors="surrogateescape"))
    try:
        call_libc("prctl", USER_OPTION, group, type_, address(text), len(text) - 1)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the kernel knows no such option
            raise KernelError(
                f"this process may not call prctl(): {error.strerror}", "is it in a sandbox?"
            ) from error
    return 0
