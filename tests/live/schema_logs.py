# SPDX-License-Identifier: Apache-2.0
"""Runs `collect --format klogger` around a test's own workload, and hands out what it logged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formats.klogger import LogFormat, LogReader, merge_logs
from formats.klogger.values import describe_value, native
from tests.live.capturing import WAIT_S, Running

Record = dict[str, Any]


@dataclass(frozen=True)
class Log:
    """All CPUs' logs of a capture: the kernel's events, in time order.

    A record holds its fields (enums by name, strings as text), and `event`, `cpu`, `time_ns`.
    ways: how each event was attached (kind:target ...).
    """

    records: Sequence[Record]
    ways: dict[str, str]
    ledger: dict[str, dict[str, int]]
    errors: str

    def of(self, event: str, **values: Any) -> list[Record]:
        """The records of an event whose fields have these values."""
        return [
            record
            for record in self.records
            if record["event"] == event
            and all(record[name] == value for name, value in values.items())
        ]

    def one(self, event: str, **values: Any) -> Record:
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
def logging(folder: Path, *schemata: str, kinds: str = "", more: Sequence[str] = ()) -> Iterator[Logging]:
    """Logs these schemata while the body runs; call finish() for the log. `kinds`: ways to attach."""
    words = [word for name in schemata for word in ("--schema", name)]
    arguments = [*words, "--format", "klogger", "--buffer-size", "16", *more]
    running = Logging(folder, arguments, kinds)
    try:
        running.wait_until_ready()
        yield running
        running.finish()
    finally:
        running.close()


def read_log(folder: Path, errors: str = "") -> Log:
    """What all files of a folder hold; they must be whole, and nothing lost."""
    records: list[Record] = []
    ledger: dict[str, dict[str, int]] = {}
    ways: dict[str, str] = {}
    with ExitStack() as stack:
        paths = sorted(folder.glob("kernlog.dump.cpu*"))
        assert paths, f"no log in {folder}: {errors}"
        readers = [stack.enter_context(LogReader(path)) for path in paths]
        for batch in merge_logs(readers):
            for event in batch.events():
                at = batch.where(event)
                rows = batch.rows(event, at)
                columns = {field.name: _texts(batch.format, field, rows[field.name]) for field in event.fields}
                for index, place in enumerate(at.tolist()):
                    record: Record = {name: column[index] for name, column in columns.items()}
                    record |= {
                        "event": event.name,
                        "cpu_of_log": int(batch.cpus[place]),
                        "time_ns": int(batch.times_ns[place]),
                        "serial": int(batch.serials[place]),
                    }
                    records.append(record)
                    if event.name == "LEDGER" and record["final"]:
                        row = ledger.setdefault(record["name"], {})
                        for name in ("attempts", "limited", "written", "table_full"):
                            row[name] = row.get(name, 0) + record[name]
        for reader in readers:
            assert not reader.tail and not reader.damage, (reader.path, reader.tail, reader.damage)
            assert not reader.losses.missing, reader.losses.by_cause
            ways = dict(reader.header.get("settings", {}).get("events", {}))
    records.sort(key=lambda record: (record["time_ns"], record["serial"]))
    return Log(records, ways, ledger, errors)


def _texts(log: LogFormat, field: Any, values: Any) -> list[Any]:
    describe = describe_value(log, field)
    plain = native(values) if field.kind in ("int", "enum") else values
    return plain.tolist() if describe is None else [describe(value) for value in plain.tolist()]
