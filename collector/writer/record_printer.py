# SPDX-License-Identifier: Apache-2.0
"""The lines of collect --print: one for each record, with the columns that the capture stores."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from tcpkmon.formats.base.control import is_control
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import address_of, quote_word, text_of
from tcpkmon.formats.psc.columns import Column
from tcpkmon.formats.schema import Schema, field_type

_HIDDEN = {
    "seq_no", "time", "callvalue", "location", "lport", "rport", "seq", "time_ns", "serial",
    "laddr", "raddr", "family", "netns", "cpu", "sk_addr",
}


class Printer:
    """Writes records as text lines to a stream, without control entries.

    `fail` is called once, when a write to the stream fails (its reader closed it, say).
    """

    def __init__(
        self,
        schema: Schema,
        columns: Sequence[Column],
        stream: TextIO,
        fail: Callable[[OSError], None],
    ) -> None:
        self._stream: TextIO | None = stream
        self._fail = fail
        self._names = {m.value: m.name for m in schema.enum("location").members}
        placed = [column.name for column in columns if column.length]
        self._addresses = "laddr" in placed and "raddr" in placed
        self._shown = [name for name in placed if name not in _HIDDEN]
        self._enums: dict[str, dict[int, str]] = {}
        for name in self._shown:
            field = schema.event("SNAPSHOT").find_field(name)
            if field_type(schema, field).kind == "enum":
                members = schema.enum(field.type).members
                self._enums[name] = {m.value: m.name for m in members}

    def write(self, entries: npt.NDArray[Any]) -> None:
        """Print the records among these entries."""
        if self._stream is None:
            return
        records = entries[~is_control(entries["location"])]
        try:
            self._stream.writelines(self._lines(records))
            self._stream.flush()
        except OSError as error:
            self._stream = None
            self._fail(error)

    def _lines(self, records: npt.NDArray[Any]) -> Iterator[str]:
        for record in records:
            when = datetime.datetime.fromtimestamp(int(record["tv_sec"])).strftime("%H:%M:%S")
            location = int(record["location"])
            ends = f":{int(record['lport'])} > :{int(record['rport'])}"
            if self._addresses:
                local = address_of(record["laddr"].tobytes())
                remote = address_of(record["raddr"].tobytes())
                ends = f"{local}:{int(record['lport'])} > {remote}:{int(record['rport'])}"
            words = [
                f"{when}.{int(record['tv_usec']):06}",
                self._names.get(location, str(location)),
                ends,
                f"callvalue={int(np.int32(record['callvalue'].astype(np.int32)))}",
            ]
            words += [f"{name}={self._value(record, name)}" for name in self._shown]
            yield for_terminal(" ".join(words)) + "\n"

    def _value(self, record: Any, name: str) -> str:
        value = record[name]
        if isinstance(value, np.void):
            return quote_word(text_of(value.tobytes()))
        number = int(value)
        return self._enums.get(name, {}).get(number, str(number))
