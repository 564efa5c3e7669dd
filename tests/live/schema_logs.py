# SPDX-License-Identifier: Apache-2.0
"""Runs `collect --format klogger` around a test's own workload, and hands out what it logged."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tcpkmon.formats.klogger.batch import LogBatch
from tcpkmon.formats.klogger.merge import merge_logs
from tcpkmon.formats.klogger.reader import LogReader
from tcpkmon.formats.klogger.table import LogEvent, native
from tests.live.capturing import WAIT_S, Running

Record = dict[str, Any]
BOOKS = ("attempts", "limited", "written", "table_full")


@dataclass(frozen=True)
class Log:
    """All CPUs' logs of a capture, in time order.

    A record holds its fields (enums by name, strings as text), `event`, `on_cpu` and `time_ns`.
    ways: how each event was attached (kind:target); missing: why another was not.
    ledger: by event, the last of the columns BOOKS, over all CPUs.
    """

    records: Sequence[Record]
    ways: dict[str, str]
    missing: dict[str, str]
    ledger: dict[str, dict[str, int]]
    errors: str

    def of(self, event: str, **values: Any) -> list[Record]:
        """The records of an event whose fields have these values."""
        return [
            record
            for record in self._by_event[event]
            if all(record[name] == value for name, value in values.items())
        ]

    @cached_property
    def _by_event(self) -> dict[str, list[Record]]:
        found = defaultdict(list)
        for record in self.records:
            found[record["event"]].append(record)
        return found

    def one(self, event: str, **values: Any) -> Record:
        """The only one there is."""
        found = self.of(event, **values)
        assert len(found) == 1, f"{len(found)} records of {event}, not one: {found[:5]}"
        return found[0]


class Logging(Running):
    """A capture into a folder, under way."""

    log: Log | None = None

    def finish(self) -> Log:
        """Ends it as Ctrl-C does; the log, once nothing is missing from it."""
        if self.log is None:
            self.interrupt()
            _, errors = self.process.communicate(timeout=WAIT_S)
            assert self.process.returncode == 0, errors
            self.log = read_log(self.path, errors)
        return self.log

    def close(self) -> None:
        """Leaves no process behind."""
        os.close(self._ready)
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def logging(
    folder: Path, *schemata: str, kinds: str = "", more: Sequence[str] = ()
) -> Iterator[Logging]:
    """Logs these schemata while the body runs; call finish() for the log.

    kinds: the ways to attach, parted by commas; all when empty.
    """
    words = [word for name in schemata for word in ("--schema", name)]
    running = Logging(folder, [*words, "--format", "klogger", "--buffer-size", "16", *more], kinds)
    try:
        running.wait_until_ready()
        yield running
        running.finish()
    finally:
        running.close()


Scenario = Generator[None, Log, None]
"""Does something; then gets the log, and looks at what was found of it."""


def play(
    folder: Path, *schemata: str, scenarios: Sequence[Scenario], kinds: str = "",
    more: Sequence[str] = (),
) -> None:  # fmt: skip
    """All in one capture: to start one takes longer than what they do."""
    with logging(folder, *schemata, kinds=kinds, more=more) as running:
        for one in scenarios:
            next(one)
    log = running.finish()
    for one in scenarios:
        with suppress(StopIteration):
            one.send(log)


def read_log(folder: Path, errors: str = "") -> Log:
    """What all files of a folder hold; they must be whole, and nothing lost."""
    records: list[Record] = []
    ledger: dict[str, dict[str, int]] = {}
    with ExitStack() as stack:
        paths = sorted(folder.glob("kernlog.dump.cpu*"))
        assert paths, f"no log in {folder}: {errors}"
        readers = [stack.enter_context(LogReader(path)) for path in paths]
        for batch in merge_logs(readers):
            for event in batch.events():
                records += _records(batch, event)
        for reader in readers:
            assert not reader.tail and not reader.damage, (reader.path, reader.tail, reader.damage)
            assert not reader.losses.missing, (reader.path, reader.losses.by_cause)
        settings = readers[0].header["settings"]
        names = {event.number: event.name for event in readers[0].format.events}
    for record in records:
        # Not in names: what the schema tcp does besides its locations.
        if record["event"] == "LEDGER" and record["final"] and record["number"] in names:
            row = ledger.setdefault(names[record["number"]], dict.fromkeys(BOOKS, 0))
            for name in BOOKS:
                row[name] += record[name]
    records.sort(key=lambda record: record["time_ns"])
    return Log(records, settings["locations"], settings["missing_locations"], ledger, errors)


def _records(batch: LogBatch, event: LogEvent) -> list[Record]:
    at = batch.where(event)
    rows = batch.rows(event, at)
    columns: dict[str, list[Any]] = {
        "event": [event.name] * len(at),
        "time_ns": batch.times_ns[at].tolist(),
        "on_cpu": batch.cpus[at].tolist(),
    }
    for field in event.fields:
        describe = batch.format.converter(field)
        values = rows[field.name]
        plain = (native(values) if field.kind in ("int", "enum") else values).tolist()
        columns[field.name] = plain if describe is None else [describe(one) for one in plain]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def make_schema(folder: Path, conf: str, text: str) -> Path:
    """A schema of a test's own, as a capture takes it; its folder."""
    folder.mkdir()
    (folder / f"{folder.name}.conf").write_text(conf)
    (folder / f"{folder.name}.bpf.c").write_text(text)
    # What others may write to is refused, whatever the umask.
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return folder
