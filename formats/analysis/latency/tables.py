# SPDX-License-Identifier: Apache-2.0
"""The table `latency`: a row for each byte range, for Parquet and other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.analysis.latency.measure import Latency
from tcpkmon.formats.analysis.latency.parts import Measured
from tcpkmon.formats.analysis.latency.stages import PARTS, TIMES, Chain, State
from tcpkmon.formats.analysis.latency.survey import Survey
from tcpkmon.formats.base.arrow import import_pyarrow
from tcpkmon.formats.base.errors import UsageError

KIND = "latency"
COLUMNS = {name: f"t_{name}" for name in TIMES}
"""The columns of the times."""
PART_COLUMNS = {name: "hol_us" if name == "hole" else f"{name}_us" for name in PARTS}
"""Those of the parts."""
_LOW = (1 << 32) - 1


class Ranges:
    """All ranges of a capture as tables; a formats.base.reader.Records. each: gets each piece."""

    kinds: Sequence[str] = (KIND,)

    def __init__(self, latency: Latency, each: Callable[[Measured], None]) -> None:
        self._latency = latency
        self._each = each

    def tables(self, reuse: bool = False) -> Iterator[dict[str, Any]]:
        """A table for each piece. `reuse` has no effect."""
        for some in self._latency:
            self._each(some)
            yield {KIND: make_table(some, self._latency.survey)}

    def write_text(self, form: str, out: BinaryIO) -> None:
        """There is no text of them."""
        raise UsageError(f"byte ranges have no form {form}", "choose parquet")


def make_table(some: Measured, survey: Survey) -> Any:
    """A pyarrow.Table; what is not known is null. Times: CLOCK_MONOTONIC in ns, as int64."""
    pyarrow = import_pyarrow("Parquet")
    ranges = some.ranges
    sender, receiver = survey.sender[ranges.flow], survey.receiver[ranges.flow]
    known = some.state == State.MEASURED

    def numbers(values: NDArray[Any], there: NDArray[np.bool_]) -> Any:
        return pyarrow.array(values, mask=~there)

    def texts(values: NDArray[Any], names: list[str]) -> Any:
        indices = pyarrow.array(values.astype(np.int8))
        return pyarrow.DictionaryArray.from_arrays(indices, names)

    ids = survey.ids if len(survey.ids) else np.zeros(1, np.int64)
    own = np.where(sender >= 0, sender, receiver)
    arrays = {
        "conn_id": pyarrow.array(ids[own]),
        "peer_conn_id": numbers(ids[receiver], (sender >= 0) & (receiver >= 0)),
        "dir": texts(np.where(sender >= 0, 0, 1), ["out", "in"]),
        "seq_lo": pyarrow.array(ranges.lo & _LOW),
        "seq_hi": pyarrow.array(ranges.hi & _LOW),
        "bytes": pyarrow.array(some.sizes),
    }
    for name, column in COLUMNS.items():
        arrays[column] = numbers(ranges.times[name], ranges.times[name] >= 0)
    for name in PARTS:
        there = known & _has_part(some, name)
        arrays[PART_COLUMNS[name]] = numbers(some.parts[name] / 1000, there)
    arrays["retrans"] = numbers(ranges.sent_again, ranges.has_sender)
    arrays["certain"] = pyarrow.array(known)
    arrays["state"] = texts(some.state, [state.name.lower() for state in State])
    return pyarrow.table(arrays, metadata={"tcpkmon.table": KIND})


def _has_part(some: Measured, name: str) -> NDArray[np.bool_]:
    """(n,) whether the ranges' chains have a part at all."""
    at_sender = some.chain != Chain.RECEIVER
    at_receiver = (some.chain == Chain.BOTH) | (some.chain == Chain.RECEIVER)
    once_known = (some.chain == Chain.BOTH) | (some.chain == Chain.SENDER)
    found: dict[str, NDArray[np.bool_]] = {
        "buffer": at_sender,
        "stack": np.ones_like(at_sender),
        "qdisc": once_known,
        "network": once_known,
        "return": some.chain == Chain.SENDER,
        "recovery": at_sender,
        "hole": at_receiver,
        "reader": at_receiver,
    }
    return found[name]
