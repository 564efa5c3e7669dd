# SPDX-License-Identifier: Apache-2.0
"""The flight recorder of a session: its stream, its triggers, and the users who ask for a dump."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collector.loader.prepare import Prepared
from collector.plan.columns import (
    EVENT,
    choose_columns,
    choose_locations,
    load_schema,
    make_layout,
)
from collector.plan.request import Request
from collector.plan.trigger_watch import Watch
from collector.plan.triggers import compile_triggers
from collector.session.summary import say
from collector.writer.base_stream import Stream
from collector.writer.dump import Keeping
from collector.writer.ledger import Books
from collector.writer.recorder_stream import RecorderStream
from collector.writer.stream import STREAMS

WAIT_S = 0.04
"""A trigger fires within 100 ms of its record: of two rounds, as a record that is younger than the
sequencer's slack waits for the second."""


def open_stream(request: Request) -> Stream[Any]:
    """The stream that the request wants. FileError or UsageError; TriggerError too."""
    recorder = request.recorder
    if recorder is None:
        return STREAMS[request.file_format](request.output, request.force, request.rotates)
    schema = load_schema()
    chosen = choose_columns(schema.event(EVENT), request.columns)
    locations = choose_locations(schema, request.locations)
    compile_triggers(recorder.triggers, make_layout(schema, chosen, ()), locations)
    keeping = Keeping(
        recorder.last_s,
        recorder.last_bytes,
        recorder.after_s,
        recorder.triggers,
        recorder.dumps_per_hour,
    )
    return RecorderStream(request.output, keeping, request.force)


class Recording:
    """The recorder of a session, or none. TriggerError where this kernel lacks a column."""

    def __init__(self, request: Request, prepared: Prepared, stream: Stream[Any]) -> None:
        self._stream = stream if isinstance(stream, RecorderStream) else None
        self._quiet = request.quiet
        self._asked = 0
        if self._stream is not None and request.recorder is not None and prepared.tcp is not None:
            texts, layout = request.recorder.triggers, prepared.tcp.layout
            triggers = compile_triggers(texts, layout, prepared.enabled)
            self._stream.watch = Watch(triggers) if triggers else None

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
