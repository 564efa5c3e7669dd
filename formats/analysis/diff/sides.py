# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: which captures the arguments name, and what is read of each."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.formats.analysis.arrays import Array
from tcpkmon.formats.analysis.check import fulfil, share_of, times_of
from tcpkmon.formats.analysis.diff.statistics import BY_NAME, METRICS, SHARED
from tcpkmon.formats.analysis.why.assemble import Table
from tcpkmon.formats.analysis.why.snapshots import Source
from tcpkmon.formats.analysis.why.tables import connections
from tcpkmon.formats.base.errors import DamagedError, Errors, UsageError
from tcpkmon.formats.conditions import Value
from tcpkmon.formats.klogger.logs import LOG_NAME, Logs
from tcpkmon.formats.psc.header import KIND_HOST, KIND_KERNEL
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.registry import format_of, kind_of

# The settings of captures, as their headers have them, and those in which two sides differ.

NOT_RECORDED = "(not recorded)"
_CAPTURED = ("schemata", "columns", "locations", "filters", "data", "when_changed", "rings",
             "buffer_bytes", "absent_columns", "refused", "hz")  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """a, b: the distinct values of each side's captures."""

    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def read_settings(reader: Any) -> dict[str, str]:
    """What a capture's header tells of the machine and the capture, by name, in order of weight."""
    if isinstance(reader, Capture):
        settings: Any = reader.settings
        kernel, host = (reader.header.text(kind) for kind in (KIND_KERNEL, KIND_HOST))
    else:
        header = reader.format.header
        settings, kernel, host = header.get("settings"), header.get("kernel"), header.get("host")
    settings = settings if isinstance(settings, dict) else {}
    found = {"kernel": kernel, "host": host}
    machine = dict(_group(settings, "machine"))
    found["cpu model"] = machine.get("cpu_model")
    if isinstance(size := machine.get("memory_bytes"), int):
        found["memory"] = f"{size / 1e9:.3g} GB"  # some pages more or less at each boot
    found |= dict(_system(settings.get("system")))
    found |= {name.replace("_", " "): settings[name] for name in _CAPTURED if name in settings}
    found["tcpkmon"] = settings.get("tcpkmon")
    return {name: _text(value) for name, value in found.items() if value is not None}


def differences(
    a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]
) -> list[Difference]:
    """The settings whose values are not those of the other side, in order of weight.

    a, b: of each capture of a side. A setting that no capture of a side has is NOT_RECORDED there.
    """
    names = dict.fromkeys(name for one in (*a, *b) for name in one)
    order = sorted(names, key=_weight)
    found = []
    for name in order:
        values = [
            tuple(sorted({one.get(name, NOT_RECORDED) for one in side})) for side in (a, b)
        ]
        if values[0] != values[1]:
            found.append(Difference(name, values[0], values[1]))
    return found


def _weight(name: str) -> int:
    first = ("kernel", "host", "cpu model", "memory", "congestion control", "net.", "qdisc ",
             "offloads ", "driver ")  # fmt: skip
    return next((n for n, start in enumerate(first) if name.startswith(start)), len(first))


def _group(settings: Any, name: str) -> list[tuple[str, Any]]:
    found = settings.get(name) if isinstance(settings, dict) else None
    return list(found.items()) if isinstance(found, dict) else []


def _system(system: Any) -> Iterator[tuple[str, Any]]:
    yield from _group(system, "sysctl")
    queues: dict[str, list[str]] = {}
    listed = system.get("qdiscs") if isinstance(system, dict) else None
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict):
            # The kernel gives handles in turn: only the class below one is a setting.
            parent = str(one.get("parent")).rpartition(":")[2]
            options = f" {one['options']}" if one.get("options") else ""
            name = f"qdisc {one.get('device')} {parent}"
            queues.setdefault(name, []).append(f"{one.get('kind')}{options}")
    yield from queues.items()
    for device, offloads in _group(system, "offloads"):
        if isinstance(offloads, dict):
            yield f"offloads {device}", [name for name, on in offloads.items() if on]
    for device, driver in _group(system, "drivers"):
        told = driver.values() if isinstance(driver, dict) else [driver]
        yield f"driver {device}", " ".join(map(str, told))


def _text(value: Any) -> str:
    """A value as text: names alone of a list, and of a map those with their values."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list):
        text = ", ".join(one if isinstance(one, str) else json.dumps(one) for one in value)
    elif isinstance(value, dict):
        text = ", ".join(f"{name}={_text(value[name])}" for name in sorted(value))
    else:
        text = json.dumps(value)
    return text or "none"


# Which connections and flows of a capture count, and the values of each metric by unit.
#
# A unit is a connection (a flow, for the times of schema magnet) or a run: a capture as a whole. An
# ACK is none: those of one connection depend on each other.

Flows = dict[str, Array]
"""Columns latency_*_us by name, and `bytes`, a row for each flow."""
CONNECTION, RUN = "connection", "run"


def choose_connections(table: Table, where: Value | None = None) -> tuple[Table, int]:
    """Those that moved data and fulfil the condition; of two ends of one, the sender's.

    And how many receivers fulfil it whose senders do not.
    """
    chosen = (table["bytes_acked"] + table["bytes_received"]) > 0
    if where is not None:
        chosen &= fulfil(table, where)
    counts = np.ones(len(chosen), np.bool_)
    first_of = _second_ends(table)
    counts[[*first_of]] = False
    others = sum(chosen[second] and not chosen[first] for second, first in first_of.items())
    return _take(table, chosen & counts), int(others)


def _take(table: Table, kept: Array) -> Table:
    return {name: values[kept] for name, values in table.items()}


def _second_ends(table: Table) -> dict[int, int]:
    """The rows of which the other end is in the capture too, and sent more; and that one's row."""
    ends: dict[tuple[Any, ...], list[int]] = {}
    names = ("laddr", "lport", "raddr", "rport")
    keys = list(zip(*(table[name].tolist() for name in names), strict=True))
    begins, lasts = table["start_ns"].tolist(), table["end_ns"].tolist()
    sent = list(zip(table["bytes_acked"].tolist(), (table["role"] == "active").tolist(),
                    strict=True))  # fmt: skip
    for at, key in enumerate(keys):
        ends.setdefault(key, []).append(at)
    found = {}
    for at, (laddr, lport, raddr, rport) in enumerate(keys):
        for other in ends.get((raddr, rport, laddr, lport), ()):
            overlaps = begins[at] <= lasts[other] and begins[other] <= lasts[at]
            if other != at and overlaps and (*sent[at], -at) < (*sent[other], -other):
                found[at] = other
                break
    return found


def values_by_connection(table: Table | None, flows: Flows | None) -> dict[str, Array]:
    """(n,) float64 of each metric that the capture has, without its nulls."""
    found: dict[str, Array] = {}
    if table is not None:
        sends = table["bytes_acked"] >= table["bytes_received"]
        for metric in METRICS:
            if metric.name in table:
                values = table[metric.name].astype(np.float64)
            elif metric.name.startswith("share_"):
                values = share_of(table, metric.name.removeprefix("share_"))
            else:
                continue
            found[metric.name] = values[sends] if metric.of_sender else values
    if flows is not None:
        found |= {name: values for name, values in flows.items() if name in BY_NAME}
    return {name: values[np.isfinite(values)] for name, values in found.items()}


def values_of_run(table: Table | None, flows: Flows | None) -> dict[str, Array]:
    """(1,) of each metric: the median of its connections; ratios and shares of all their sums.

    The mean time of a byte is that of all bytes.
    """
    found = {
        name: np.array([np.median(values)])
        for name, values in values_by_connection(table, flows).items() if len(values)
    }  # fmt: skip
    if table is not None:
        mine = _take(table, table["bytes_acked"] >= table["bytes_received"])
        sums = {f"share_{name}": tuple(times.sum() for times in times_of(mine, name))
                for name in SHARED}  # fmt: skip
        known = np.isfinite(mine["bytes_retrans"])
        sums["retrans_ratio"] = tuple(mine[name][known].sum() for name in
                                      ("bytes_retrans", "bytes_sent"))  # fmt: skip
        for name, (one, other) in sums.items():
            if name in found and other > 0:
                found[name] = np.array([one / other])
    if flows is not None and len(flows["bytes"]):
        for name, values in flows.items():
            known = np.isfinite(values)
            if name in found and not name.endswith("_p95_us"):
                weights = flows["bytes"][known]
                found[name] = np.array([np.average(values[known], weights=weights)])
    return found


def values_of_side(
    tables: Sequence[tuple[Table | None, Flows | None]], unit: str
) -> dict[str, Array]:
    """The values of all captures of a side together: (units,) of each metric."""
    values_of: Callable[..., dict[str, Array]] = (
        values_by_connection if unit == CONNECTION else values_of_run
    )
    found: dict[str, list[Array]] = {}
    for table, flows in tables:
        for name, values in values_of(table, flows).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def read_flows(path: Path) -> tuple[Flows, str] | None:
    """The times of a log's flows, and which ends were joined; None without schema magnet."""
    from tcpkmon.formats.analysis.latency import Latency, Summary, find_flows, make_report
    from tcpkmon.formats.analysis.latency.report import SIDES
    from tcpkmon.formats.analysis.log import open_log

    with open_log(path) as log:
        try:
            latency = Latency(log)
        except UsageError:
            return None
        summary = Summary(find_flows(latency.survey, []), latency.survey.begin_ns, 0)
        for some in latency:
            summary.add(some)
        report = make_report(latency, summary)
    flows = [one for one in report.flows if one.once or one.again]
    names = [name for name in BY_NAME if name.startswith("latency_")]
    found = {name: np.full(len(flows), np.nan) for name in (*names, "bytes")}
    for at, flow in enumerate(flows):
        for name, value in _flow_values(flow).items():
            found[name][at] = value
    return found, ", ".join(sorted({SIDES[flow.side] for flow in flows}))


def _flow_values(flow: Any) -> dict[str, float]:
    from tcpkmon.formats.analysis.latency.summary import middle_of

    spreads = [one for one in (flow.once, flow.again) if one]
    total = sum(int(one["whole"].weights.sum()) for one in spreads)
    found = {"bytes": float(total)}
    for part in dict.fromkeys(name for one in spreads for name in one):
        spent = sum(one[part].total_ns for one in spreads if part in one)
        found[f"latency_{part}_us"] = spent / total / 1000
    classes = np.concatenate([one["whole"].classes for one in spreads])
    weights = np.concatenate([one["whole"].weights for one in spreads])
    order = np.argsort(classes, kind="stable")
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, 0.95 * reached[-1]))
    found["latency_whole_p95_us"] = float(middle_of(classes[order][at : at + 1])[0]) / 1000
    return found


_ENDINGS = (".pm", ".pm.zst")
_TRY = "tcpkmon diff before.pm after.pm, or tcpkmon diff before=a1.pm,a2.pm after=b1.pm,b2.pm"


@dataclass(frozen=True)
class Run:
    """One capture. connections: those that count, None in a log without the schema tcp.

    flows: of the schema magnet, None without it. settings: what its header tells, by name.
    other_ends: receivers that were chosen though their senders, which would count, were not.
    """

    path: Path
    proven: bool
    verdict: str
    settings: dict[str, str]
    connections: Table | None
    flows: Flows | None
    other_ends: int = 0


@dataclass(frozen=True)
class Side:
    """A side: one capture or several."""

    name: str
    runs: tuple[Run, ...]


def parse_sides(arguments: Sequence[str]) -> dict[str, list[Path]]:
    """The captures of two sides by name, from [NAME=]CAPTURE[,...]. UsageError, SeveralErrors.

    Arguments of one name are one side. Without a name it is that of the file.
    """
    named: dict[str, list[Path]] = {}
    errors = Errors()
    for text in arguments:
        name, given, rest = text.partition("=")
        is_named = given and not _exists(text)
        rest = rest if is_named else text
        paths = [rest] if _exists(rest) else [part for part in rest.split(",") if part]
        side = named.setdefault(f"{name}=" if is_named else text, [])
        with errors.caught():
            if not paths or (is_named and not name):
                raise UsageError(f"{text!r} names no capture", _TRY)
            for path in paths:
                with errors.caught():
                    side.extend(_captures(Path(path)))
    captures = {path: os.path.realpath(path) for side in named.values() for path in side}
    counts = Counter(os.path.realpath(path) for side in named.values() for path in side)
    twice = [str(path) for path, real in captures.items() if counts[real] > 1]
    with errors.caught():
        if twice:
            raise UsageError(f"named twice: {', '.join(twice)}", "a capture counts once")
    with errors.caught():
        if len(named) != 2:
            raise UsageError(f"a comparison has two sides, and here are {len(named)}", _TRY)
    errors.raise_all()
    short = [name[:-1] if name.endswith("=") else Path(name).name or name for name in named]
    names = short if short[0] != short[1] else list(named)
    return dict(zip(names, named.values(), strict=True))


def parse_folder(paths: Sequence[Path]) -> list[Path]:
    """The captures of one side: files, logs, and what is in folders of them. SeveralErrors."""
    errors, found = Errors(), []
    for path in paths:
        with errors.caught():
            found += _captures(path)
    errors.raise_all()
    return found


def verify(path: Path) -> tuple[bool, str]:
    """Whether a capture proves that nothing is missing, and what it says."""
    reports = format_of(path).verify(path)
    told = "; ".join(report.verdict for report in reports if report.exit_code)
    return bool(reports) and not told, told or "nothing lost"


def read_run(path: Path, where: Value | None = None) -> Run:
    """What a capture has. where: chooses connections. Errors as Source has them."""
    if kind_of(path) == "magnet":
        raise UsageError(
            f"{path} is a MAGNeT file, which does not name the ends of its connections",
            "compare logs: collect --schema magnet --format klogger",
        )
    proven, verdict = verify(path)
    table, flows, other_ends = None, None, 0
    with format_of(path).open(path) as reader:
        settings = read_settings(reader) | {"format": kind_of(path)}
        if isinstance(reader, Logs) and (found := read_flows(path)) is not None:
            flows, settings["latency from"] = found
    try:
        with Source(path) as source:
            table, other_ends = choose_connections(connections(source), where)
    except UsageError:
        if flows is None:
            raise
    if table is not None:
        names = {str(name) for name in table["ca_name"].tolist() if name is not None}
        if names:
            settings["congestion control"] = ", ".join(sorted(names))
    return Run(path, proven, verdict, settings, table, flows, other_ends)


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def _captures(path: Path) -> list[Path]:
    """The capture, or those in a folder that is none itself."""
    if not path.is_dir() or _is_capture(path):
        return [path]
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    found = [
        one for one in inside
        if (_is_capture(one) if one.is_dir() else one.name.endswith(_ENDINGS))
    ]  # fmt: skip
    if not found:
        raise UsageError(f"no capture in {path}", "a folder holds *.pm files or folders of logs")
    return found


def _is_capture(folder: Path) -> bool:
    """Segments, or a Klogger log."""
    return format_of(folder).name != "klogger" or any(
        LOG_NAME.match(one.name) for one in folder.iterdir()
    )


def refuse_unproven(runs: Sequence[Run]) -> None:
    """DamagedError if a capture does not prove that nothing is missing."""
    bad = [f"{run.path}: {run.verdict}" for run in runs if not run.proven]
    if bad:
        raise DamagedError(f"not proven: {'; '.join(bad)}", "--unproven-ok compares all the same")
