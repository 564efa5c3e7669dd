# SPDX-License-Identifier: Apache-2.0
"""Opens the control socket of a capture, which also runs without one."""

from __future__ import annotations

from collections.abc import Callable

from tcpkmon.collector.control.access import own_name
from tcpkmon.collector.control.server import ControlServer
from tcpkmon.collector.linux.privileges import User
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.session.summary import say
from tcpkmon.formats.base.errors import TcpkmonError


def open_server(
    request: Request, wake: Callable[[], None], user: User | None
) -> ControlServer | None:
    """The server, or None where it cannot listen; if a group was named for it, that is an error.

    user: whom its thread becomes.
    """
    try:
        name = own_name(request.name, request.output)
        return ControlServer(group=request.control_group, wake=wake, user=user, name=name)
    except TcpkmonError as error:
        if request.control_group is not None:
            raise
        if not request.quiet:
            say(f"no control socket: {error.message}")
        return None
