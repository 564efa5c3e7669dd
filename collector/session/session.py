# SPDX-License-Identifier: Apache-2.0
"""One capture from start to end: attach, begin the file, capture, finish."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack

from tcpkmon.collector.linux import privileges
from tcpkmon.collector.linux.time_namespace import leave_time_namespace
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.prepare import check_privilege, prepare
from tcpkmon.collector.plan.request import Request, check_request
from tcpkmon.collector.ring.rings import choose_transport
from tcpkmon.collector.session.capture import Session
from tcpkmon.collector.session.command import Command, find_caller
from tcpkmon.collector.session.keeper import keep
from tcpkmon.collector.session.overseer import Overseer
from tcpkmon.collector.session.preload import preload
from tcpkmon.collector.session.recording import open_stream
from tcpkmon.collector.session.rights import Rights, describe_lacking
from tcpkmon.collector.session.status_line import Status
from tcpkmon.collector.session.stop_signals import Stopping
from tcpkmon.collector.session.summary import say
from tcpkmon.collector.session.takeover import Takeover

SWITCH_S = 0.0005
"""The writing thread keeps Python's lock so long from the reader; in 5 ms a ring fills."""


def run(request: Request, overseer: Overseer | None = None) -> int:
    """Run the capture; returns the exit code: the command's own, or 0.

    LossError under fail_on_loss, FileError when a write failed. Errors of the preparation leave
    no file and no program behind."""
    check_privilege()
    leave_time_namespace()
    check_request(request)
    limits = privileges.raise_limits()
    sys.setswitchinterval(SWITCH_S)
    with ExitStack() as stack:
        status = stack.enter_context(Status(request.quiet))
        stream = open_stream(request)
        stack.callback(stream.discard)
        status.show("preparing: types, columns, programs")
        transport, refused = choose_transport(request.rings)
        for why in () if request.quiet else refused:
            say(f"{why}; the capture has {transport.name} rings")
        with privileges.passing_on():
            prepared = prepare(request, transport)
        describe_lacking(request.quiet)
        stopping = stack.enter_context(Stopping(request.duration_s))
        command = None
        if request.command:
            caller = None if request.as_root else find_caller()
            # As perf record does: the capture's bytes are alone on standard output.
            command = stack.enter_context(
                Command(request.command, caller, to_stderr=request.output == "-", limits=limits)
            )
            stopping.forward = command.forward
            request = request.following(command.pid)
        with ExitStack() as capturing:
            keeper = keep(capturing, request, stream, stopping)
            rights = Rights(capturing, stream, request, prepared.plan.probes)
            if keeper is not None:
                rights.checks["the processes that keep files"] = keeper.check
            overseer = overseer or Overseer(request.ready_fd)
            takeover = capturing.enter_context(Takeover(overseer, request, prepared, stream))
            kernel = capturing.enter_context(Kernel(prepared, request.filters, takeover.parked))
            session = Session(request, prepared, kernel, stream, status, stopping, command, rights,
                              takeover)  # fmt: skip
            with kernel.loading():
                session.open(capturing)
                preload(request, prepared)
            if stopping.due():
                return stopping.exit_code
            # Events of other schemata often interrupt themselves (a wake-up in an interrupt).
            kernel.attach(at_once=request.fail_on_loss or request.format.holds_events)
            session.begin()
            gc.freeze()
            gc.enable()
            session.run()
            session.end()
        # The programs, the rings and the control socket are gone, though the command may still run.
        return session.report()
