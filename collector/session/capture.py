# SPDX-License-Identifier: Apache-2.0
"""A capture between its set-up and its report: the file begins, records come, the file ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from tcpkmon.collector.control.handlers import Handlers
from tcpkmon.collector.linux import privileges
from tcpkmon.collector.linux.cpu_affinity import Placing
from tcpkmon.collector.linux.first_process import find_cpu_clock
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.perf_counters import OpenCounters
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.metrics.watching import watch
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring.batch import watermark_ns
from tcpkmon.collector.sequencer.clock_pairs import Clocks
from tcpkmon.collector.sequencer.sequencer import SLACK_NS
from tcpkmon.collector.session.budget import Shedding
from tcpkmon.collector.session.capture_info import make_info
from tcpkmon.collector.session.command import Command, await_exit
from tcpkmon.collector.session.container_names import Names
from tcpkmon.collector.session.control_socket import open_server
from tcpkmon.collector.session.counts import Counts
from tcpkmon.collector.session.drop_places import DropPlaces
from tcpkmon.collector.session.existing import Existing
from tcpkmon.collector.session.failures import Failures
from tcpkmon.collector.session.pulse import Pulse
from tcpkmon.collector.session.reconciling import Reconciling
from tcpkmon.collector.session.recording import Recording
from tcpkmon.collector.session.rights import Rights
from tcpkmon.collector.session.rotating import Rotating
from tcpkmon.collector.session.status_line import Status
from tcpkmon.collector.session.stop_signals import Stopping
from tcpkmon.collector.session.summary import describe, report, say
from tcpkmon.collector.session.takeover import Takeover
from tcpkmon.collector.session.whose import Whose
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.ledger import Totals
from tcpkmon.collector.writer.record_printer import Printer
from tcpkmon.formats.base.control import EndReason, Mark
from tcpkmon.formats.base.errors import TcpkmonError

Step = tuple[str, Callable[[], Any]]
"""What a part does, for people, and the call."""
CHECKPOINT_S = 1.0
WAIT_S = 0.2
HURRY_S = 0.3


class Session:
    """A capture: open(), begin() when its programs are attached, run(), end(), report()."""

    def __init__(
        self,
        request: Request,
        prepared: Prepared,
        kernel: Kernel,
        stream: Stream,
        status: Status,
        stopping: Stopping,
        command: Command | None,
        rights: Rights,
        takeover: Takeover,
    ) -> None:
        self._request, self._takeover = request, takeover
        self._recording = Recording(request, prepared, stream)
        self._rights = rights
        self._prepared = prepared
        self._kernel = kernel
        self._stream = stream
        self._status = status
        self._stopping = stopping
        self._command = command
        self._clocks = Clocks()
        self._placing = Placing(lambda: rights.writer)
        self._failures = Failures(stopping, request.output)
        self._marked = 0

    def open(self, stack: ExitStack) -> None:
        """Open what the capture needs beside its programs; `stack` closes it."""
        request, kernel, maps = self._request, self._kernel, self._kernel.loaded.maps
        self._rings = stack.enter_context(self._takeover.open_rings(kernel))
        stack.enter_context(self._stopping.waking(self._rings.wake))
        self._counters = stack.enter_context(OpenCounters(maps, self._prepared.counters))
        self._existing = stack.enter_context(Existing(request, self._prepared, kernel))
        stream = self._stream
        self._places = DropPlaces(self._prepared, kernel, stream)
        clock = find_cpu_clock() if self._prepared.plan.unseen else None
        self._counts = Counts(kernel, self._rings, self._counters, self._existing, stream, clock)
        pulse = Pulse(request.output, lambda: stream.records, stream.bytes_written)
        self._pulse = stack.enter_context(pulse)
        server = open_server(request, self._rings.wake, self._rights.user)
        self._server = stack.enter_context(server) if server is not None else None

    def begin(self) -> None:
        """Begin the file, and let the programs record. FileError: then there is no file."""
        request, kernel, stream = self._request, self._kernel, self._stream
        show = None
        if request.show:
            layout = self._prepared.layout
            show = Printer(layout.schema, layout.columns, sys.stdout, self._failures.fail).write
        (refused := self._failures.refused).update(self._counts.refused())
        command = self._command.pid if self._command is not None else 0
        sockets = self._existing.sockets
        info = make_info(request, self._prepared, kernel, dict(refused), command, sockets)
        self._whose = Whose(request.filters, self._prepared, kernel, stream)
        info = replace(info, settings={**info.settings, **self._whose.begin()})
        self._recording.begin(self._counts.books)
        ordered = self._prepared.tcp if request.orders_tcp else None
        raw = not request.format.has_entries
        tcp, ways = ordered.layout if ordered else None, info.settings.get("locations")
        find, most = self._whose.get, request.remembered
        watching = watch(tcp, request.counts_at_once, show, raw, ways, find, most)
        why_next = self._takeover.begin(
            info, kernel, self._clocks, self._rings, self._existing,
            watching.add if ordered else None,
        )
        if self._takeover.parked is not None:
            self._whose.tell()
        elif (unseen := self._counts.unseen()) is not None:
            stream.tell([unseen])
        kernel.switch_on()
        self._reconciling = Reconciling(request, self._counts, watching)
        self._handlers = Handlers(
            request, kernel, self._rings, stream, self._counts.causes, self._refused,
            self._pulse.told, watching,
        )  # fmt: skip
        self._shedding = Shedding(request, self._prepared, kernel, stream, self._handlers)
        self._next_checkpoint = time.monotonic() + CHECKPOINT_S
        self._rotating = Rotating(
            request.rotation, stream, self._counts.books, self._clocks, fail=self._failures.fail
        )
        self._handlers.next_file = self._rotating.ask
        self._handlers.free = partial(self._takeover.free, self._rings)
        self._rotating.ask(why_next)
        self._rotating.rotated = self._reconciling.rotated
        self._each_round, self._each_second = self._steps()

    def _steps(self) -> tuple[Sequence[Step], Sequence[Step]]:
        """What the parts do in each round, and once a second. An error leaves out its step only."""
        kernel, loaded = self._kernel, self._kernel.loaded
        each_round = [
            ("moving to an idler CPU", self._placing.move),
            ("second copies of programs", loaded.attach_second_copies),
            ("programs in new namespaces", kernel.look_for_namespaces),
            ("control groups", self._whose.step),
            ("the next file", self._rotating.step),
            ("asking sock_diag", self._reconciling.step),
            ("status line", self._show_status),
        ]
        each_second = [
            ("rings of new CPUs", self._refresh_rings),
            ("counters of new CPUs", lambda: self._counters.refresh(self._rings.cpus)),
            ("programs at new places", loaded.refresh),
            ("control groups", self._whose.step_slowly),
            ("functions that drop packets", self._places.step),
            ("parking", lambda: self._takeover.park(kernel)),
            *self._rights.checks.items(),
        ]
        return each_round, each_second

    def run(self) -> None:
        """Capture until there is a reason to stop, or the command ends. Any error is a reason."""
        with self._failures.ending():
            self._run()

    def _run(self) -> None:
        command, stopping = self._command, self._stopping
        privileges.forbid_new_privileges()
        self._stream.start(self._rights.begin_writing)
        privileges.run_first()
        describe(self._request, self._prepared, self._kernel)
        self._checkpoint()
        step = max(1, self._rings.rows // 2)  # as fast as the rings are drained
        self._existing.record(step, self._failures.optional, self._drain_on)
        while self._kernel.loaded.is_loading:
            self._rings.wait(WAIT_S / 10)
            self._step()
        self._reconciling.start(self._step)
        self._kernel.loaded.enter_by(self._rights.entrance)
        self._takeover.park(self._kernel)
        self._rights.give_up()
        self._whose.names = Names(self._rights.opener)
        if not self._request.quiet and self._request.verbose:
            say("capturing")
        self._takeover.overseer.ready()
        if command is not None and not stopping.due():
            try:
                command.go()
            except TcpkmonError as error:
                self._failures.fail(error)
        stopping.start_clock()
        while not stopping.due():
            most_s = self._recording.wait_s(WAIT_S / 4 if self._request.show else WAIT_S)
            self._rings.wait(stopping.remaining_s(self._reconciling.wait_s(most_s)))
            self._step()
            self._failures.optional("the budget", self._shedding.step)
            if command is not None and command.poll() is not None:
                stopping.ask(EndReason.COMMAND_ENDED)
        if command is not None:
            for _ in command.ending(stopping):
                self._rings.wait(0.05)
                self._step()

    def end(self) -> None:
        """Finish the file. Raises the error that ended the capture."""
        self._totals = self._end()
        if self._failures.first is not None:
            raise self._failures.first
        self._connections = self._failures.optional("connections", self._counts.connections) or 0

    def report(self) -> int:
        """Wait for the command, if it still runs, and report; returns the exit code."""
        self._status.close()
        code = await_exit(self._command, self._stopping, self._request.quiet)
        report(
            self._request, self._totals, self._stream, self._connections, self._failures.refused
        )
        return code

    def _drain_on(self) -> bool:
        """A round while the open connections are recorded, unless it is time to stop."""
        if not self._stopping.due():
            self._step()
        return not self._stopping.due()

    def _step(self) -> None:
        """One round: drain, order, write; once a second the clock and a checkpoint."""
        self._drain()
        if time.monotonic() >= self._next_checkpoint:
            self._next_checkpoint = time.monotonic() + CHECKPOINT_S
            for what, do in self._each_second:
                self._failures.optional(what, do)
            self._failures.refused |= self._counts.refused()
            if (clock := self._clocks.check()) is not None:
                self._stream.clock(clock)
            self._checkpoint()
            self._pulse.beat()
            overseer = self._takeover.overseer
            if not overseer.is_there(self._stream.records, self._counts.losses()):
                self._stopping.ask(EndReason.ASKED)
        for what, do in self._each_round:
            self._failures.optional(what, do)
        self._failures.show_writing(self._stream.written.error)
        self._write_marks()
        self._recording.asked(self._stopping.dumps)
        if self._server is not None:
            self._server.serve_pending(self._handlers)

    def _checkpoint(self) -> None:
        if (books := self._failures.optional("ledger", self._counts.books)) is not None:
            self._stream.checkpoint(books)

    def _refused(self) -> dict[str, str]:
        """What the capture does without now, and why."""
        return {**self._failures.now, **self._counts.refused()}

    def _refresh_rings(self) -> None:
        with self._handlers.changes.making():
            self._rings.refresh()

    def _show_status(self) -> None:
        stream, counts = self._stream, self._counts
        self._status.update(stream.records, counts.connections, stream.bytes_written, counts.losses)

    def _drain(self) -> None:
        """Drain the rings, and write the records up to the watermark."""
        batches = self._rings.drain()
        self._pulse.drained(batches, self._rings.rows)
        self._stream.push(batches)
        self._stream.release(watermark_ns(batches, SLACK_NS + self._rings.transport.slack_ns))
        self._stream.settle()
        self._takeover.free(self._rings)
        if (most := self._request.stop_after) is not None and self._stream.records >= most:
            self._stopping.ask(EndReason.COUNT)

    def _write_marks(self) -> None:
        marks = [Mark(n + 1, "SIGUSR1") for n in range(self._marked, self._stopping.marks)]
        if marks:
            self._marked += len(marks)
            self._stream.marks(marks)

    def _end(self) -> Totals | None:
        """Detach, write the rest, the last checkpoint and END; None if that took too long.

        An error leaves out its step only; without the last counts there is no last checkpoint.
        """
        books, done = None, False
        self._failures.optional("asking sock_diag", lambda: self._reconciling.ask(self._step))
        detach = partial(self._takeover.detach, self._kernel)
        last = (self._whose.end, self._places.step)
        for step in (detach, self._write_marks, self._drain_rest, *last):
            with self._failures.ending():
                step()
        serials: dict[int, int] = {}
        with self._failures.ending():
            serials = self._counts.serials()
        with self._failures.ending():
            self._stream.finish(serials, time.monotonic_ns())
            books = self._counts.books()
            self._reconciling.compare(books.totals(self._stream.written).absent)
        with self._failures.ending():
            clock = self._clocks.check() or self._clocks.read()
            self._stream.end(books, clock, self._failures.end_reason, time.monotonic_ns())
        with self._failures.ending():
            done = self._stream.close(HURRY_S if self._stopping.hurry else WAIT_S)
            while not done and not self._stopping.hurry:
                done = self._stream.close(WAIT_S)
        return books.totals(self._stream.written) if books is not None and done else None

    def _drain_rest(self) -> None:
        """Write what the rings hold after the programs were detached."""
        batches = self._rings.drain()
        while any(len(batch.entries) for batch in batches):
            self._stream.push(batches)
            self._stream.settle()
            self._takeover.free(self._rings)
            batches = self._rings.drain()
