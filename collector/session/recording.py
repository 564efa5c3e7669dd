# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of a session: its stream, its triggers, and the users who ask for a dump."""

from __future__ import annotations

from collections.abc import Callable

from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.plan.columns import (
    EVENT,
    choose_columns,
    choose_locations,
    make_layout,
)
from tcpkmon.collector.plan.event_layout import lay_out_sources
from tcpkmon.collector.plan.event_triggers import EventWatch, compile_event_triggers
from tcpkmon.collector.plan.extension import tcp_schema
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.plan.schema_sources import find_sources
from tcpkmon.collector.plan.trigger_watch import Watch
from tcpkmon.collector.plan.triggers import compile_triggers
from tcpkmon.collector.session.summary import say
from tcpkmon.collector.writer.base_stream import Stream
from tcpkmon.collector.writer.dump import Keeping
from tcpkmon.collector.writer.ledger import Books
from tcpkmon.collector.writer.recorder import Recorder
from tcpkmon.collector.writer.stream import STREAMS

WAIT_S = 0.04
"""A trigger fires within 100 ms of its record: of two rounds, as a record that is younger than the
sequencer's slack waits for the second."""


def open_stream(request: Request) -> Stream:
    """The stream that the request wants. FileError or UsageError; ExpressionError too."""
    recorder = request.recorder
    codec = STREAMS[request.file_format]()
    if recorder is None:
        return Stream(codec, request.output, request.force, request.rotates)
    _check(request, recorder.triggers)
    keeping = Keeping(**vars(recorder))
    return Recorder(codec, request.output, keeping, request.force)


def _check(request: Request, texts: tuple[str, ...]) -> None:
    """ExpressionError for triggers that this capture cannot have, before anything is prepared."""
    sources = find_sources(request.schemata)
    schema, tcp = tcp_schema(sources), None
    if request.has_tcp:
        chosen = choose_columns(schema.event(EVENT), request.stored_columns)
        tcp = make_layout(schema, chosen, ())
    locations = choose_locations(schema, request.locations)
    if request.format.has_entries:
        assert tcp is not None
        compile_triggers(texts, tcp, locations)
        return
    events = lay_out_sources(sources, request.using, request.data)
    recorded = [*locations, *(slot.name for slot in events.logged)]
    size = max(events.entry_size, tcp.dtype.itemsize if tcp is not None else 0)
    compile_event_triggers(texts, events, tcp, recorded, size)


class Recording:
    """The recorder of a session, or none. ExpressionError where this kernel lacks a column."""

    def __init__(self, request: Request, prepared: Prepared, stream: Stream) -> None:
        self._stream = stream if isinstance(stream, Recorder) else None
        self._quiet = request.quiet
        self._asked = 0
        if self._stream is None or request.recorder is None:
            return
        texts, tcp = request.recorder.triggers, prepared.tcp
        if request.format.has_entries and tcp is not None:
            triggers = compile_triggers(texts, tcp.layout, prepared.enabled)
            self._stream.watch = Watch(triggers) if triggers else None
        elif texts:
            found = compile_event_triggers(
                texts,
                prepared.events.layout if prepared.events else None,
                tcp.layout if tcp else None,
                prepared.enabled,
                prepared.dtype.itemsize,
            )
            self._stream.watch = EventWatch(found)

    def begin(self, read_books: Callable[[], Books]) -> None:
        """Call it before the stream begins."""
        if self._stream is not None:
            self._stream.read_books = read_books
            if not self._quiet:
                self._stream.say = say

    def wait_s(self, most: float) -> float:
        """How long a round may wait for records."""
        return most if self._stream is None else min(most, WAIT_S)

    def asked(self, signals: int) -> None:
        """SIGUSR2 came so many times since the start."""
        if self._stream is not None and signals > self._asked:
            self._stream.ask()
        self._asked = signals
