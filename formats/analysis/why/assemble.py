# SPDX-License-Identifier: Apache-2.0
"""Makes the columns of the tables connections and intervals from what was added up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array, each_once
from tcpkmon.formats.analysis.why.above import protocols_of
from tcpkmon.formats.analysis.why.arrivals import QUIET_NS
from tcpkmon.formats.analysis.why.columns import CONNECTIONS, INTERVALS, Column
from tcpkmon.formats.analysis.why.folding import (
    ACTIVE,
    FIN_LOCAL,
    FIN_REMOTE,
    GIVEN_UP,
    GROWTHS,
    NO_RATE,
    NONE_32,
    PASSIVE,
    Values,
)
from tcpkmon.formats.analysis.why.limits import FAMILY, LIMITS
from tcpkmon.formats.analysis.why.receiving import RECEIVING
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.limits import MOST_CONNECTIONS
from tcpkmon.formats.base.text import address_of, text_of
from tcpkmon.formats.base.whose import Groups

Table = dict[str, Array]
"""Columns by name, of equal lengths; see columns.Column for their kinds."""
_ETIMEDOUT = 110
OWNERS = ("unit", "container", "pod")
"""Columns, and fields of Group."""
BLOAT_RTT_US = 1000
_MOST_LOST = 1 << 60
_AT_ONCE = 1 << 14
"""Texts that are made at a time."""
_ROLES = {0: "existing", ACTIVE: "active", PASSIVE: "passive"}
_NONE = {
    "cwnd_min": NONE_32, "ssthresh_min": NONE_32, "snd_wnd_min": NONE_32, "rcv_wnd_min": NONE_32,
    "srtt_min_us": NONE_32, "min_rtt_us": NONE_32, "srtt_max_us": 0, "errno": 0, "pid": 0,
    "pacing_rate_min": NO_RATE, "pacing_rate_max": 0,
    "established_ns": 0, "first_seq": 0, "last_seq": 0,
    "uid": NONE_32, "mptcp_token": 0, "mptcp_sent": 0, "mptcp_received": 0, "mptcp_retrans": 0,
}  # fmt: skip
"""The value that stands for null."""


def connections_table(
    found: list[Values], names: Collection[str], about: Mapping[str, Any] | None = None,
    proven: bool = False, ended: bool = False,
    records: Callable[[str], bool] = lambda location: True, lost: tuple[int, int] = (0, 0),
) -> Table:  # fmt: skip
    """The table connections, in the order in which they were seen. It takes the values out of
    `found`, which are those of each block: a million connections would need both.

    names: the columns that the capture has. about: what of the capture is a column (host ...), and
    ahead_ns: the time of day less CLOCK_MONOTONIC.

    proven: the capture is not damaged, and of all missing records is known where. ended: its end is
    known. records: whether it records a location. lost: how many records are missing in the
    capture, those of which is known where, and others. UsageError: too many connections.
    """
    values = _joined(found)
    count = len(values["conn_id"]) if values else 0

    def get(name: str, kind: Any = np.int64) -> Array:
        return values.get(name, np.zeros(count, kind))

    made: Table = {}
    for name in ("laddr", "raddr"):
        made[name] = each_once(get(name, "V16"), address)
    for name in ("comm", "ca_name"):
        made[name] = each_once(get(name, "S16"), lambda data: text_of(data) or None)
    made |= {name: get(name) for name in GROWTHS}
    made["role"] = _named(get("role"), _ROLES)
    made |= _times(get, values)
    counted = made["bytes_retrans"] if "bytes_retrans" in names else None
    made |= _bytes(get, counted, records("RETRANSMIT"))
    made["bytes_at_least"] = (
        get("may_go_on", np.bool_) & ~get("destroyed", np.bool_)
        & (not records("SEGMENT_CLOSING"))
    )  # fmt: skip
    made["end_reason"] = _reasons(get, records("SOCKET_ERROR"))
    made |= _rates(get, made)
    made |= _shares(get, values)
    made["disagreement_us"] = np.maximum(
        np.abs(made["us_rwnd"] + made["us_zero_window"] - made["rwnd_limited_us"]),
        np.abs(made["us_sndbuf"] - made["sndbuf_limited_us"]),
    )
    if "delivered" in names:
        delivered = made["delivered"].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            made["delivered_ce_ratio"] = made["delivered_ce"] / delivered
    made["late_ack_us"] = get("late_ack_ns") / 1000
    made["snd_wnd_low_us"] = get("low_ns") / 1000
    made |= _silence(get)
    made |= _missing(get, *lost)
    made["proven"] = (made["lost_records"] == 0) & proven & (get("destroyed", np.bool_) | ended)
    made["retransmissions"] = get("segments_retransmitted")
    told = dict(about or {})
    spaces: Mapping[str, str] = told.pop("netns_name", {})
    made["netns_name"] = each_once(get("netns", np.uint64), lambda cookie: spaces.get(str(cookie)))
    groups: Groups = told.pop("groups", Groups())
    for name, field in (("cgroup_path", "path"), *zip(OWNERS, OWNERS, strict=True)):
        owner = partial(_owner, groups, field)
        made[name] = each_once(get("cgroup", np.uint64), owner)
    made["protocols"] = each_once(get("protocols", np.uint16), protocols_of)
    if (ahead_ns := told.pop("ahead_ns", None)) is not None:
        made["start"] = times_of_day(get("start_ns").astype(np.int64) + np.int64(ahead_ns))
    for name, value in told.items():
        made[name] = np.full(count, value, object if isinstance(value, str) else np.float64)
    for name in [name for name in values if name not in _NAMES or name in made]:
        del values[name]
    return {
        column.name: _column(column, made.pop(column.name, values.pop(column.name, None)),
                             count, names)
        for column in CONNECTIONS
    }  # fmt: skip


def _column(column: Column, values: Array | None, count: int, names: Collection[str]) -> Array:
    """A column in its kind, with its nulls."""
    if (column.needs and column.needs not in names) or (
        values is None and column.name in _UNKNOWN
    ):
        return np.full(count, None) if column.kind == "text" else np.full(count, np.nan)
    if values is None:
        values = np.zeros(count, np.int64)
    if column.kind in ("text", "bool"):
        return values
    if column.null and column.name in _NONE:
        values = values.astype(np.float64)
        values[values == _NONE[column.name]] = np.nan
        return values
    is_float = column.null or column.kind == "float"
    return values.astype(np.float64 if is_float else np.int64, copy=False)


_UNKNOWN = {"start", "host", "boot_id", "capture_id", "segment", "delivered_ce_ratio"}
"""Null where the capture does not say."""
_NAMES = {column.name for column in CONNECTIONS}


def address(raw: bytes) -> str:
    """The text of an address of 16 bytes, of which numpy may leave out zeros at the end."""
    return address_of(raw.ljust(16, b"\0"))


def _owner(groups: Groups, name: str, cgroup: int) -> str | None:
    """What the capture tells of a control group; None where it does not, and for none."""
    return getattr(groups.get(cgroup), name, None) or None


def times_of_day(epoch_ns: Array) -> Array:
    """(n,) texts, UTC, of ns since 1970."""
    found = np.empty(len(epoch_ns), object)
    for low in range(0, len(found), _AT_ONCE):
        some = epoch_ns[low : low + _AT_ONCE].astype("datetime64[ns]")
        texts = np.datetime_as_string(some, unit="us").tolist()
        found[low : low + _AT_ONCE] = [f"{text}Z" for text in texts]
    return found


def _named(numbers: Array, names: Mapping[int, str]) -> Array:
    told = np.array([names[n] for n in range(len(names))], object)
    return told[numbers.astype(np.int64)]


def _times(get: Callable[..., Array], values: Mapping[str, Array]) -> Table:
    start, end = get("start_ns"), get("end_ns")
    established = get("established_ns")
    known = (get("role") == ACTIVE) & (established > 0)
    return {
        "duration_us": (end - start) / 1000,
        "handshake_us": np.where(known, (established - start) / 1000, np.nan),
    }


def _bytes(get: Callable[..., Array], counted: Array | None, retransmits: bool) -> Table:
    """Bytes of data: a FIN has a sequence number too, and is none. counted: sent again."""
    told = get("has_data_end", np.bool_)
    fin = (get("data_end").astype(np.uint32) + np.uint32(1)).astype(np.uint32)
    found = {
        name: get(name) - (told & (get(column).astype(np.uint32) == fin))
        for name, column in (("bytes_sent", "snd_max"), ("bytes_acked", "snd_una"))
    }
    received = get("bytes_received") + get("arriving")
    found["bytes_received"] = received - get("fin_received", np.bool_)
    again = get("retrans_len") if counted is None else counted
    is_known = counted is not None or retransmits
    found["bytes_retrans"] = again if is_known else np.full(len(again), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        found["retrans_ratio"] = found["bytes_retrans"] / np.where(
            found["bytes_sent"] > 0, found["bytes_sent"], np.nan
        )
    return found


def _missing(get: Callable[..., Array], placed: int, others: int) -> Table:
    """Records that may be its own: also those before its first one, unless it began with that, and
    behind its last one, unless it ended with that."""
    destroyed = get("destroyed", np.bool_)
    after = np.where(destroyed, 0, _bounded(min(placed, _MOST_LOST) - get("lost_until")))
    told = _bounded(get("lost_records")) + _bounded(get("lost_before")) + after
    return {"lost_records": told + min(others, _MOST_LOST), "lost_after": after}


def _bounded(counts: Array) -> Array:
    """Counts that a damaged file may tell, so that a sum of four of them does not overflow."""
    return np.clip(counts, 0, _MOST_LOST)


def _silence(get: Callable[..., Array]) -> Table:
    """Of the end: the timeouts that nothing answered, and since when no segment arrived."""
    runs = np.where(get("rto_una") == get("snd_una").astype(np.int64), get("rto_run"), 0)
    end, heard, opened = get("end_ns"), get("heard_ns"), get("opened_ns")
    data = get("data_ns")
    rest = end - np.where(data > 0, data, opened)
    quiet = get("quiet_ns") + np.where(rest > QUIET_NS, rest, 0)
    return {
        "rto_unanswered": runs,
        "rto_unanswered_us": np.where(runs > 0, end - get("rto_since_ns"), 0) / 1000,
        "quiet_us": quiet / 1000,
        "silent_us": (end - np.where(heard > 0, heard, get("start_ns"))) / 1000,
    }


def _reasons(get: Callable[..., Array], errors: bool) -> Array:
    """errors: the capture records errors of sockets. Without them nobody knows who gave up."""
    errno, closed = get("errno"), get("closed_by")
    rules = (
        (get("rst_received", np.bool_), "rst_received"), (errno == _ETIMEDOUT, "timeout"),
        (get("rst_sent", np.bool_), "rst_sent"), (errno != 0, "error"),
        (closed == FIN_LOCAL, "fin_local"), (closed == FIN_REMOTE, "fin_remote"),
        ((closed == GIVEN_UP) & get("denied", np.bool_), "error"),
        ((closed == GIVEN_UP) & errors, "given_up"),
    )  # fmt: skip
    names = np.array([*(name for _, name in rules), "open"], object)
    at = np.select([holds for holds, _ in rules], list(range(len(rules))), len(rules))
    found: Array = names[at]
    return found


def _rates(get: Callable[..., Array], made: Table) -> Table:
    """Goodput, and whether queues are long."""
    seconds = made["duration_us"] / 1e6
    most = np.maximum(made["bytes_acked"], made["bytes_received"])
    mean = np.divide(most, seconds, out=np.zeros(len(seconds)), where=seconds > 0)
    told: Table = {"goodput_mean": mean}
    for name in ("goodput_p50", "goodput_p99", "goodput_max"):
        rates = get(name, np.float64)
        told[name] = np.where(np.isnan(rates), mean, rates)
    least = get("min_rtt_us").astype(np.float64)
    least[least == NONE_32] = np.nan
    p95 = get("srtt_p95_us", np.float64)
    told["bloat"] = (p95 > 2 * least) & (p95 > BLOAT_RTT_US)
    return told


def _joined(found: list[Values]) -> Values:
    """The values of all blocks, in the order in which connections were seen, which takes them."""
    if not found:
        return {}
    if sum(len(one["seen"]) for one in found) > MOST_CONNECTIONS:
        raise UsageError(f"the capture has more than {MOST_CONNECTIONS} connections")
    order = np.argsort(np.concatenate([one.pop("seen") for one in found]), kind="stable")
    names = list(found[0])
    return {name: np.concatenate([one.pop(name) for one in found])[order] for name in names}


def _shares(get: Callable[..., Array], values: dict[str, Array]) -> Table:
    """The time of each limit, its bounds, and the main one with its parts. values: these times are
    taken out of them."""
    spans, certain = (
        values.pop(name, np.zeros(0, np.int64)).reshape(-1, len(LIMITS))
        for name in ("limit_ns", "certain_ns")
    )
    unsure = (spans - certain).sum(axis=1)
    told: Table = {"uncertain_us": unsure / 1000}
    families = np.zeros_like(spans)
    for number, name in enumerate(LIMITS):
        told[f"us_{name}"] = spans[:, number] / 1000
        told[f"us_{name}_min"] = certain[:, number] / 1000
        told[f"us_{name}_max"] = (certain[:, number] + unsure) / 1000
        families[:, LIMITS.index(FAMILY.get(name, name))] += spans[:, number]
    for name in RECEIVING:
        held, sure = get(f"{name}.ns"), get(f"{name}.certain_ns")
        told |= {f"us_{name}": held / 1000, f"us_{name}_min": sure / 1000,
                 f"us_{name}_max": (sure + unsure) / 1000}  # fmt: skip
    total = spans.sum(axis=1)
    names: Any = np.array([*LIMITS, None], object)
    main: Any = np.where(total > 0, families.argmax(axis=1), len(LIMITS))
    told["main_limit"] = names[main]
    largest = families.max(axis=1)
    told["main_share"] = np.divide(
        largest, total, out=np.full(len(total), np.nan), where=total > 0
    )
    return told


def intervals_table(rows: Callable[[str], Array]) -> Table:
    """The table intervals. rows: the values of a field of INTERVAL, by its name."""
    limits: Any = np.array(LIMITS, object)
    families: Any = np.array([FAMILY.get(name, name) for name in LIMITS], object)
    rate = rows("pacing_rate")
    made: Table = {
        "limit": limits[rows("limit")], "family": families[rows("limit")],
        "pacing_rate": np.where(rate == (1 << 64) - 1, np.inf, rate.astype(np.float64)),
        "certain_us": rows("certain_ns") / 1000,
        "certain": (rows("lost_records") == 0)
        & (rows("certain_ns") == rows("end_ns") - rows("start_ns")),
    }  # fmt: skip
    return {
        column.name: made[column.name] if column.name in made
        else rows(column.name).astype(np.int64, copy=False) for column in INTERVALS
    }  # fmt: skip
