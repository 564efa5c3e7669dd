# SPDX-License-Identifier: Apache-2.0
"""One capture from start to end: sets up, drains, sequences, keeps the books, finishes the file."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from collector.accounts import Books, Totals
from collector.clocks import Clocks
from collector.existing import find_namespaces
from collector.kernel import Kernel
from collector.layout import EXISTING, row_of
from collector.ordered import Ordered
from collector.output import Output
from collector.preparing import Prepared, check_privilege, prepare
from collector.printing import Printer
from collector.privilege import (
    drop_capabilities,
    forbid_new_privileges,
    needed_capabilities,
    raise_limits,
    run_first,
)
from collector.records import RAW_PADDING
from collector.reporting import describe, report, say
from collector.request import Request
from collector.rings import Rings, pages_of, watermark_ns
from collector.sequencer import SLACK_NS, Sequencer
from collector.starting import open_spool
from collector.status import Status
from collector.stopping import Stopping
from collector.workload import Command, find_caller
from formats.control import End, EndReason, Mark, is_control
from formats.errors import TcpkmonError, UsageError

CHECKPOINT_S = 1.0
WAIT_S = 0.2
HURRY_S = 0.3
PERF_HEAD_BYTES = 12


def run(request: Request) -> int:
    """Captures as asked; returns the exit code: the command's own, or 0.

    Raises LossError under fail_on_loss, FileError when the file did not take everything, and the
    errors of setting up, before anything is half done.
    """
    check_privilege()
    if request.show and request.output == "-":
        raise UsageError("--print and -o - both want standard output", "choose one of them")
    stdout: TextIO | None = sys.stdout
    if request.show and stdout is None:
        raise UsageError("--print: standard output is closed")
    if request.ready_fd is not None:
        try:
            os.fstat(request.ready_fd)
        except (OSError, OverflowError):
            raise UsageError(f"--ready-fd {request.ready_fd}: no such descriptor is open") from None
    raise_limits()
    with ExitStack() as stack:
        status = stack.enter_context(Status(request.quiet))
        output = Output(request.output, request.force)
        stack.callback(lambda: output.discard() if not session else None)
        session: list[Session] = []
        status.tell("preparing: types, columns, programs")
        prepared = prepare(
            request.columns,
            request.locations,
            request.when_changed,
            request.existing,
            bool(request.filters.pids),
            request.kinds,
        )
        stopping = stack.enter_context(Stopping(request.duration_s))
        command = None
        if request.command:
            caller = None if request.as_root else find_caller()
            command = stack.enter_context(Command(request.command, caller))
            stopping.forward_to(command.forward)
        kernel = stack.enter_context(Kernel(prepared, request.filters))
        if stopping.due():
            return stopping.exit_code
        session.append(Session(request, prepared, kernel, output, status, stopping, stack))
        return session[0].run(command)


class Session:
    """A capture whose programs are loaded: attaches them and begins the file; run() once."""

    def __init__(
        self,
        request: Request,
        prepared: Prepared,
        kernel: Kernel,
        output: Output,
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
        dtype = prepared.layout.dtype
        pages = pages_of(request.buffer_bytes)
        ring_bytes = pages * os.sysconf("SC_PAGESIZE")
        wakeup = max(1, ring_bytes * (100 - request.low_water_percent) // 100)
        self._rings = stack.enter_context(Rings(kernel.events_fd, dtype, pages, wakeup))
        record_bytes = PERF_HEAD_BYTES + dtype.itemsize + RAW_PADDING
        self._walk_step = max(1, ring_bytes // record_bytes // 2)
        self._sequencer = Sequencer(dtype, self._clocks.to_epoch, first_seq=2)
        self._printer = Printer(prepared.layout, sys.stdout) if request.show else None
        self._failure: TcpkmonError | OSError | None = None
        self._records = 0
        self._listed = 0
        self._marked = 0
        # Before the file begins: its header tells what the kernel took.
        kernel.loaded.attach()
        self._spool = open_spool(request, prepared, kernel, output, self._clocks)
        self._next_checkpoint = time.monotonic() + CHECKPOINT_S
        self._told_error: str | None = None

    def run(self, command: Command | None) -> int:
        """Captures until asked to stop, and finishes the file; the exit code."""
        namespaces = self._namespaces()
        forbid_new_privileges()
        self._spool.start()
        run_first()
        describe(self._request, self._kernel.attached(), self._kernel.missing())
        self._checkpoint()
        self._walk(namespaces)
        needed = needed_capabilities()
        drop_capabilities((*needed, "CAP_KILL") if command else needed)
        self._ready()
        if command is not None and not self._stopping.due():
            self._go(command)
        self._stopping.start_clock()
        code: int | None = None
        while not self._stopping.due():
            self._rings.wait(self._stopping.remaining_s(WAIT_S / 4 if self._printer else WAIT_S))
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
        entry_size = self._prepared.layout.entry_size
        connections = max(self._kernel.connections(), self._listed)
        report(self._request, totals, self._spool.written, connections, entry_size)
        return code or 0

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

    def _namespaces(self) -> list[int]:
        """Descriptors of the namespaces whose existing sockets to walk; closed at the end."""
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
        if not namespaces:
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
        from collector.diag import list_batch

        cpu = len(self._kernel.heads())
        layout, filters = self._prepared.layout, self._request.filters
        batch = list_batch(layout, namespaces, filters, cpu)
        self._listed = len(batch.entries)
        self._sequencer.push(batch)

    def _ready(self) -> None:
        if not self._request.quiet and self._request.verbose:
            say("capturing")
        if self._request.ready_fd is not None:
            with suppress(OSError):  # who asked for it is gone
                os.write(self._request.ready_fd, b"!")

    def _step(self) -> None:
        """One round: drain, order, hand over; once a second the clock and the books."""
        batches = self._rings.drain()
        for batch in batches:
            self._sequencer.push(batch)
        self._hand_over(self._sequencer.release(watermark_ns(batches, SLACK_NS)))
        if time.monotonic() >= self._next_checkpoint:
            self._next_checkpoint = time.monotonic() + CHECKPOINT_S
            self._rings.refresh()
            if (clock := self._clocks.check()) is not None:
                self._spool.put_control(lambda _: [clock], clock.mono_ns)
            self._checkpoint()
        written = self._spool.written
        self._status.update(
            self._records, self._kernel.connections(), written.entries
            * self._prepared.layout.entry_size, self._losses_so_far()
        )
        self._tell_error(written.error)
        self._write_marks()

    def _write_marks(self) -> None:
        marks = [Mark(n + 1, "SIGUSR1") for n in range(self._marked, self._stopping.marks)]
        if marks:
            self._marked += len(marks)
            self._spool.put_control(lambda _: marks, time.monotonic_ns())

    def _losses_so_far(self) -> dict[str, int]:
        written = self._spool.written
        return {
            "in the kernel": self._sequencer.lost,
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

    def _hand_over(self, ordered: Ordered) -> None:
        if not len(ordered):
            return
        self._records += int(np.count_nonzero(~is_control(ordered.entries["location"])))
        if self._printer is not None:
            try:
                self._printer.write(ordered.entries)
            except OSError as error:
                self._printer = None
                self._fail(error)
        self._spool.put(ordered)
        if self._request.stop_after is not None and self._records >= self._request.stop_after:
            self._stopping.ask(EndReason.COUNT)

    def _books(self) -> Books:
        heads = self._heads()
        sequencer = self._sequencer
        return Books(
            ledger=heads["accounts"].copy(),
            serials=heads["serial"].copy(),
            programs=self._kernel.programs(heads),
            read=dict(sequencer.read),
            damaged=dict(sequencer.damaged),
            late=dict(sequencer.late),
            perf_lost=self._rings.lost(),
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
        books = self._books()
        self._spool.put_control(books.checkpoint, time.monotonic_ns(), sync=True)

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
            for batch in batches:
                self._sequencer.push(batch)
            batches = self._rings.drain()
        heads = self._heads()
        serials = {cpu: int(serial) for cpu, serial in enumerate(heads["serial"]) if serial}
        now_ns = time.monotonic_ns()
        self._hand_over(self._sequencer.finish(serials, now_ns))
        books = self._books()
        clock = self._clocks.check() or self._clocks.read()
        reason = self._stopping.reason or EndReason.ASKED
        now_ns = time.monotonic_ns()
        self._spool.put_control(lambda _: [clock], now_ns, reserved=True)
        self._spool.put_control(lambda w: books.checkpoint(w, final=True), now_ns, reserved=True)
        self._spool.put_control(
            lambda w: [End(int(reason), w.entries, w.lost, w.checkpoints)], now_ns, reserved=True
        )
        done = self._spool.close(HURRY_S if self._stopping.hurry else WAIT_S)
        while not done and not self._stopping.hurry:
            done = self._spool.close(WAIT_S)
        return books.totals(self._spool.written) if done else None
