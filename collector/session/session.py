# SPDX-License-Identifier: Apache-2.0
"""One capture from start to end: sets up, drains, hands over, keeps the books, ends the file."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.control.handlers import Switching
from collector.control.server import ControlServer
from collector.linux.cpu_affinity import Placing
from collector.linux.privileges import (
    drop_capabilities,
    forbid_new_privileges,
    needed_capabilities,
    raise_limits,
    run_first,
)
from collector.loader.capture_maps import Kernel
from collector.loader.perf_counters import OpenCounters
from collector.loader.prepare import Prepared, check_privilege, prepare, wish_of
from collector.loader.socket_iterator import find_namespaces
from collector.plan.columns import EXISTING, row_of
from collector.plan.request import Request, check_request
from collector.ring.batch import watermark_ns
from collector.ring.rings import Rings, pages_of
from collector.sequencer.clock_pairs import Clocks
from collector.sequencer.sequencer import SLACK_NS
from collector.session.command import Command, find_caller
from collector.session.status_line import Status
from collector.session.stop_signals import Stopping
from collector.session.summary import describe, report, say
from collector.writer.ledger import Books, Totals
from collector.writer.target import Target
from formats.base.control import EndReason, Mark
from formats.base.errors import TcpkmonError

CHECKPOINT_S = 1.0
WAIT_S = 0.2
HURRY_S = 0.3
SWITCH_S = 0.0005
"""How long the writing thread may keep Python's lock when the reader waits for it: in the usual
5 ms a ring of 4 MiB can be half full."""


def run(request: Request) -> int:
    """Captures as asked; returns the exit code: the command's own, or 0.

    Raises LossError under fail_on_loss, FileError when the file did not take everything, and the
    errors of setting up, before anything is half done.
    """
    check_privilege()
    check_request(request)
    raise_limits()
    sys.setswitchinterval(SWITCH_S)
    with ExitStack() as stack:
        status = stack.enter_context(Status(request.quiet))
        target = Target(request)
        stack.callback(lambda: target.discard() if not session else None)
        session: list[Session] = []
        status.tell("preparing: types, columns, programs")
        prepared = prepare(wish_of(request))
        stopping = stack.enter_context(Stopping(request.duration_s))
        command = None
        if request.command:
            caller = None if request.as_root else find_caller()
            command = stack.enter_context(Command(request.command, caller))
            stopping.forward_to(command.forward)
        kernel = stack.enter_context(Kernel(prepared, request.filters))
        if stopping.due():
            return stopping.exit_code
        session.append(Session(request, prepared, kernel, target, status, stopping, stack))
        return session[0].run(command)


class Session:
    """A capture whose programs are loaded: attaches them and begins the file; run() once."""

    def __init__(
        self,
        request: Request,
        prepared: Prepared,
        kernel: Kernel,
        target: Target,
        status: Status,
        stopping: Stopping,
        stack: ExitStack,
    ) -> None:
        self._request = request
        self._prepared = prepared
        self._kernel = kernel
        self._status = status
        self._stopping = stopping
        self._stack = stack
        self._clocks = Clocks()
        self._placing = Placing()
        dtype = prepared.dtype
        pages = pages_of(request.buffer_bytes)
        kernel.buffer_bytes = pages * os.sysconf("SC_PAGESIZE")
        kernel.low_water_percent = request.low_water_percent
        wakeup = max(1, kernel.buffer_bytes * (100 - request.low_water_percent) // 100)
        transport = prepared.engine.transport
        rings = Rings(kernel.loaded.maps, dtype, pages, wakeup, transport)
        self._rings = stack.enter_context(rings)
        self._counters = stack.enter_context(OpenCounters(kernel.loaded.maps, prepared.counters))
        self._walk_step = max(1, self._rings.rows // 2)
        self._failure: TcpkmonError | OSError | None = None
        self._listed = 0
        self._marked = 0
        self._namespaces = self._find_namespaces()
        self._stream = target.stream(prepared, self._clocks, self._namespaces, self._fail)
        self._switching = Switching(
            request, kernel, self._rings, self._stream, self._losses_so_far
        )
        self._server = self._listen()
        # Before the file begins: its header tells what the kernel took.
        kernel.loaded.attach()
        self._stream.begin(kernel)
        kernel.switch_on()
        self._next_checkpoint = time.monotonic() + CHECKPOINT_S
        self._told_error: str | None = None

    def run(self, command: Command | None) -> int:
        """Captures until asked to stop, and finishes the file; the exit code."""
        forbid_new_privileges()
        self._stream.start()
        run_first()
        describe(self._request, self._kernel.attached(), self._kernel.missing())
        self._checkpoint()
        self._walk(self._namespaces)
        needed = needed_capabilities()
        drop_capabilities((*needed, "CAP_KILL") if command else needed)
        self._ready()
        if command is not None and not self._stopping.due():
            self._go(command)
        self._stopping.start_clock()
        code: int | None = None
        while not self._stopping.due():
            most_s = WAIT_S / 4 if self._request.show else WAIT_S
            self._rings.wait(self._stopping.remaining_s(most_s))
            self._step()
            if command is not None and (code := command.poll()) is not None:
                self._stopping.ask(EndReason.COMMAND_ENDED)
        if command is not None and code is None:
            code = self._wait_for(command)
        totals = self._finish()
        if self._failure is not None:
            raise self._failure
        if command is not None and code is None:
            code = self._outlive(command)
        connections = max(self._kernel.connections(), self._listed)
        report(
            self._request, totals, self._stream.written, connections, self._stream.bytes_written()
        )
        return code or 0

    def _listen(self) -> ControlServer | None:
        """The control socket; a capture does without, unless a group was named for it."""
        request = self._request
        try:
            server = ControlServer(group=request.control_group, wake=self._rings.wake)
        except TcpkmonError as error:
            if request.control_group is not None:
                raise
            if not request.quiet:
                say(f"no control socket: {error.message}")
            return None
        return self._stack.enter_context(server)

    def _go(self, command: Command) -> None:
        """Lets the command run; if it cannot, the file is finished before that is told."""
        try:
            command.go()
        except TcpkmonError as error:
            self._fail(error)

    def _fail(self, error: TcpkmonError | OSError) -> None:
        """Ends the capture in order; the error is raised once the file is finished."""
        self._failure = self._failure or error
        self._stopping.ask(EndReason.ERROR)

    def _outlive(self, command: Command) -> int:
        """The exit code of a command that goes on after the capture; it may be interrupted."""
        if not command.gone:
            return self._stopping.exit_code
        if not self._request.quiet:
            say(f"the capture is over; waiting for {command.argv[0]}")
        while not self._stopping.hurry:
            if (code := command.wait(WAIT_S)) is not None:
                return code
        return self._stopping.exit_code

    def _find_namespaces(self) -> list[int]:
        """Descriptors of the namespaces whose existing sockets to tell; closed at the end."""
        if not self._request.existing:
            return []
        if self._request.filters.namespaces:
            return [space.fd for space in self._request.filters.namespaces]
        found = list(find_namespaces())
        for fd in found:
            self._stack.callback(os.close, fd)
        return found

    def _walk(self, namespaces: list[int]) -> None:
        """Records the connections that are open already, as fast as the rings are emptied."""
        if not namespaces or self._prepared.tcp is None:
            return
        walk = self._kernel.walk(namespaces, self._walk_step)
        if walk is None:
            self._list(namespaces)
            return
        try:
            while walk.step() and not self._stopping.due():
                self._step()
        finally:
            walk.close()

    def _list(self, namespaces: list[int]) -> None:
        """Without an iterator: takes the open connections from sock_diag, as a CPU of its own."""
        # pyroute2 takes a while to import, and hardly a kernel needs it.
        from collector.loader.sock_diag import list_batch

        cpu = len(self._kernel.heads())
        layout, filters = self._prepared.layout, self._request.filters
        batch = list_batch(layout, namespaces, filters, cpu)
        self._listed = len(batch.entries)
        self._stream.push([batch])

    def _ready(self) -> None:
        if not self._request.quiet and self._request.verbose:
            say("capturing")
        if self._request.ready_fd is not None:
            with suppress(OSError):  # who asked for it is gone
                os.write(self._request.ready_fd, b"!")

    def _step(self) -> None:
        """One round: drain, order, hand over; once a second the clock and the books."""
        self._drain()
        self._placing.move()
        if time.monotonic() >= self._next_checkpoint:
            self._next_checkpoint = time.monotonic() + CHECKPOINT_S
            self._rings.refresh()
            self._counters.refresh(self._rings.cpus)
            if (clock := self._clocks.check()) is not None:
                self._stream.clock(clock)
            self._checkpoint()
        self._status.update(
            self._stream.records,
            self._kernel.connections,
            self._stream.bytes_written,
            self._losses_so_far,
        )
        self._tell_error(self._stream.written.error)
        self._write_marks()
        if self._server is not None:
            self._server.serve_pending(self._switching)

    def _drain(self) -> None:
        """Empties the rings and hands over what is old enough."""
        batches = self._rings.drain()
        self._stream.push(batches)
        self._stream.release(watermark_ns(batches, SLACK_NS + self._rings.transport.slack_ns))
        self._stream.settle()
        self._rings.free()
        stop_after = self._request.stop_after
        if stop_after is not None and self._stream.records >= stop_after:
            self._stopping.ask(EndReason.COUNT)

    def _write_marks(self) -> None:
        marks = [Mark(n + 1, "SIGUSR1") for n in range(self._marked, self._stopping.marks)]
        if marks:
            self._marked += len(marks)
            self._stream.marks(marks)

    def _losses_so_far(self) -> dict[str, int]:
        written = self._stream.written
        return {
            "in the kernel": self._stream.order.lost,
            "queue full": written.queue_full.total(),
            "disk full": written.disk_full.total(),
            "write error": written.write_error.total(),
        }

    def _tell_error(self, error: OSError | None) -> None:
        """Says once that the file does not take more, and once that it does again."""
        text = None if error is None else f"{self._request.output}: {error.strerror}"
        if text != self._told_error:
            say(f"{text}; records are being lost, counted" if text else "writing goes on")
            self._told_error = text

    def _books(self) -> Books:
        heads = self._heads()
        order = self._stream.order
        return Books(
            ledger=heads["accounts"].copy(),
            serials=heads["serial"].copy(),
            programs=self._kernel.programs(heads),
            read=dict(order.read),
            late=dict(order.late),
            ring_lost=self._rings.lost(),
            online=frozenset(self._rings.cpus),
        )

    def _heads(self) -> NDArray[Any]:
        """The kernel's counts by CPU, and in the last row those of what sock_diag listed."""
        heads = self._kernel.heads()
        listed = np.zeros(1, heads.dtype)
        listed["serial"] = self._listed
        for name in ("attempts", "written"):
            listed["accounts"][name][0, row_of(EXISTING)] = self._listed
        return np.concatenate((heads, listed))

    def _checkpoint(self) -> None:
        self._stream.checkpoint(self._books())

    def _wait_for(self, command: Command) -> int | None:
        """Goes on capturing while the command, which got the signal, comes to its end."""
        deadline = time.monotonic() + 5.0
        while (code := command.poll()) is None and time.monotonic() < deadline:
            self._rings.wait(0.05)
            self._step()
            if self._stopping.hurry or self._stopping.reason is not EndReason.ASKED:
                break
        return code

    def _finish(self) -> Totals | None:
        """Detaches, writes the rest, the last checkpoint and END; None if that took too long."""
        self._kernel.loaded.detach()
        self._write_marks()
        batches = self._rings.drain()
        while any(len(batch.entries) for batch in batches):
            self._stream.push(batches)
            self._stream.settle()
            self._rings.free()
            batches = self._rings.drain()
        heads = self._heads()
        serials = {cpu: int(serial) for cpu, serial in enumerate(heads["serial"]) if serial}
        self._stream.finish(serials, time.monotonic_ns())
        books = self._books()
        clock = self._clocks.check() or self._clocks.read()
        reason = self._stopping.reason or EndReason.ASKED
        self._stream.end(books, clock, reason, time.monotonic_ns())
        done = self._stream.close(HURRY_S if self._stopping.hurry else WAIT_S)
        while not done and not self._stopping.hurry:
            done = self._stream.close(WAIT_S)
        return books.totals(self._stream.written) if done else None
