# SPDX-License-Identifier: Apache-2.0
"""Plays a case under a capture, and compares what `tcpkmon requests` has with the truth."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.base.errors import TcpkmonError
from tests.truth.base import tell
from tests.truth.requests.cases import Case
from tests.truth.requests.clients import by_connection
from tests.truth.requests.stage import Stage
from tests.truth.requests.truth import TOLERANCE_NS, Exchange, bounds, enough, largest

Row = dict[str, Any]
SIDES = ("client", "server")
_CANNOT = re.compile(r"can ?not|can't", re.IGNORECASE)
_OPENING = 8
"""Rows before the first multiplexed requests of a connection: TLS, settings."""
_PARTS = {"wait": "wait_ns", "request": "request_ns", "think": "think_ns", "network": "network_ns"}


@dataclass
class Judged:
    """What was compared in a case.

    made: exchanges. lost, invented: rows that are missing or too many, both sides together.
    right: of each side and column the rows within the tolerance, and how many were compared;
    errors: the 99th percentile of how far they were off [ns]. largest: the same of the largest
    part. hidden: of the invented, those whose bytes look like single requests. flagged: rows that
    say that single requests cannot be told. uncertain_ns: the median. wrong: in words, what is not
    as it must be.
    """

    name: str
    made: int = 0
    lost: int = 0
    invented: int = 0
    hidden: int = 0
    lost_records: int = 0
    flagged: int = 0
    unanswered: int = 0
    uncertain_ns: int = 0
    right: dict[str, tuple[int, int]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    largest: tuple[int, int] = (0, 0)
    wrong: list[str] = field(default_factory=list)

    def count(self, what: str, errors: Sequence[int]) -> None:
        """errors: by how much each row is off beyond what it allows itself; -1: it has no value."""
        good = sum(0 <= one <= TOLERANCE_NS for one in errors)
        self.right[what] = (good, len(errors))
        self.errors[what] = int(np.percentile([one if one >= 0 else 10**12 for one in errors], 99))
        if not enough(good, len(errors)):
            self.wrong.append(f"{what} is right in {good} of {len(errors)} rows, "
                              f"99 % within {self.errors[what] / 1e6:.3f} ms")  # fmt: skip


def play(case: Case, folder: Path) -> Judged:
    """One round; capture and truth stay in the folder. TcpkmonError, PrivilegeError."""
    if not (shutil.which(case.program) or shutil.which(case.program, path="/usr/sbin")):
        raise TcpkmonError(f"{case.program} is missing; try: apt-get install {case.program}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Lab(link=case.link) as lab:
        stage = Stage(lab, folder, bool(case.rtt_ms), case.pinned, case.options)
        found = case.play(stage)
    (folder / "truth.json").write_text(json.dumps([asdict(one) for one in found]))
    return judge(case, stage.path, found)


def read_rows(path: Path) -> list[Row]:
    """The exchanges of a capture, as --json tells them."""
    read = (json.loads(line) for line in tell("requests", "--json", path).splitlines())
    return [one for one in read if "number" in one]


def judge(case: Case, path: Path, found: Sequence[Exchange]) -> Judged:
    """Compares a capture with what was made."""
    judged = Judged(case.name, len(found))
    rows, servers = read_rows(path), {one.server for one in found}
    if "--output" in tell("requests", "--help"):
        _check_table(judged, path, rows)
    by_ports: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["conn_id"], row["number"])):
        ports = (row["lport"], row["rport"])
        client, server = ports if row["side"] == "client" else ports[::-1]
        if server in servers:
            by_ports[row["side"], client, server].append(row)
        elif client in servers:
            judged.wrong.append(f"the sides are exchanged: {row}")
    mine = [row for rows in by_ports.values() for row in rows]
    judged.lost_records = sum(row["lost_records"] or 0 for row in mine)
    judged.flagged = sum(row["pipelined"] for row in mine)
    judged.uncertain_ns = int(np.median([row["uncertain_ns"] or 0 for row in mine] or [0]))
    vague = [row for row in mine if row["certain"] and row["uncertain_ns"] > TOLERANCE_NS]
    if case.options and not enough(len(mine) - len(vague), len(mine)):
        judged.wrong.append(f"{len(vague)} rows are not exact to the millisecond")
    if not case.options and any(row["exact"] for row in mine):
        judged.wrong.append(f"{sum(row['exact'] for row in mine)} rows are exact without calls")
    compare = _compare_told if case.told else _compare_untold
    compare(case, judged, by_ports, by_connection(found))
    if case.says:
        said = tell("why", path)
        judged.wrong += [f"why does not say {one!r}" for one in case.says
                         if not re.search(one, said)]  # fmt: skip
    hides = case.may_hide and not judged.flagged
    judged.hidden = judged.invented if hides else 0
    if not case.told and not hides and not _CANNOT.search(tell("requests", path)):
        judged.wrong.append("the summary does not say that requests cannot be told apart")
    return judged


def _check_table(judged: Judged, path: Path, rows: Sequence[Row]) -> None:
    """The table in Parquet has the same rows."""
    import pyarrow.parquet

    table = path.with_suffix(".parquet")
    table.unlink(missing_ok=True)
    tell("requests", path, "-o", table)
    read = pyarrow.parquet.read_table(table).to_pylist()
    names = ("conn_id", "side", "number", "start_ns", "think_ns", "total_ns", "request_bytes")
    if sorted(repr([row[name] for name in names]) for row in read) != sorted(
        repr([row[name] for name in names]) for row in rows
    ):
        judged.wrong.append(f"the table has {len(read)} rows, not the {len(rows)} of --json")


def _compare_told(
    case: Case, judged: Judged, rows: dict[tuple[str, int, int], list[Row]],
    found: dict[tuple[int, int], list[Exchange]],
) -> None:  # fmt: skip
    """Each request has its row at either end."""
    rtt_ns, parts = int(case.rtt_ms * 1e6), [0, 0]
    errors: dict[str, list[int]] = defaultdict(list)
    bytes_wrong = 0
    for key in set(rows) - {(side, *ports) for side in SIDES for ports in found}:
        judged.invented += len(rows[key])
        judged.wrong.append(f"a connection that nobody made: {key}, {len(rows[key])} rows")
    for ports, made in found.items():
        for side in SIDES:
            mine = rows.get((side, *ports), [])
            answered = [row for row in mine if row["response_bytes"] and row["request_bytes"]]
            judged.unanswered += len(mine) - len(answered)
            if len(mine) - len(answered) > max(1, case.unanswered):
                judged.wrong.append(f"{ports} {side}: {len(mine) - len(answered)} rows without "
                                    "a request or an answer")  # fmt: skip
            pairs = list(_pair(made, answered))
            known = made[-1].send or len(pairs)  # else nobody knows which are lost
            judged.lost += len(made) - len(pairs) if known else max(0, len(made) - len(answered))
            judged.invented += max(0, len(answered) - (len(pairs) if known else len(made)))
            for one, before, row in pairs:
                for name, (low, high) in bounds(one, before, side, rtt_ns).items():
                    errors[f"{side} {name}"].append(_error(row, name, low, high))
                if one.asked >= 0:
                    bytes_wrong += row["request_bytes"] != one.asked
                if one.answered >= 0:
                    bytes_wrong += row["response_bytes"] != one.answered
                clear, clear_ns = largest(one, rtt_ns)
                if side == "client" and clear and row["uncertain_ns"] <= clear_ns // 2:
                    parts[0] += _largest(row, one.read is not None) == clear
                    parts[1] += 1
    judged.largest = (parts[0], parts[1])
    for what, values in errors.items():
        judged.count(what, values)
    if judged.lost or judged.invented:
        judged.wrong.append(f"{judged.lost} exchanges are lost, {judged.invented} are invented")
    if bytes_wrong:
        judged.wrong.append(f"{bytes_wrong} numbers of bytes are wrong")
    if not enough(*parts):
        judged.wrong.append(f"the largest part is right in {parts[0]} of {parts[1]} rows")
    if judged.flagged:
        judged.wrong.append(f"{judged.flagged} rows say that requests cannot be told apart")


def _pair(
    made: Sequence[Exchange], rows: Sequence[Row]
) -> list[tuple[Exchange, Exchange | None, Row]]:
    """What belongs together, with the exchange before: in order, or by the begin if some lack."""
    before = [None, *made]
    if len(made) == len(rows):
        return list(zip(made, before, rows, strict=False))
    pairs, left = [], list(rows) if made[-1].send else []
    for one, last in zip(made, before, strict=False):
        near = [row for row in left if abs(row["start_ns"] - one.send) <= 5 * TOLERANCE_NS]
        if near:
            row = min(near, key=lambda row: abs(row["start_ns"] - one.send))
            left.remove(row)
            pairs.append((one, last, row))
    return pairs


def _error(row: Row, name: str, low: int, high: int) -> int:
    value = row["response_ns"] if name == "answer" else row[name]
    if value is None:
        return -1
    if name == "answer":
        value += row["read_ns"] or 0
    return int(max(0, max(low - value, value - high) - (row["uncertain_ns"] or 0)))


def _largest(row: Row, knows_read: bool) -> str:
    parts = {name: row[column] or 0 for name, column in _PARTS.items()}
    parts["answer"] = row["response_ns"] or 0
    if knows_read:
        parts["read"] = row["read_ns"] or 0
    else:
        parts["answer"] += row["read_ns"] or 0
    return max(parts, key=lambda name: parts[name])


def _compare_untold(
    case: Case, judged: Judged, rows: dict[tuple[str, int, int], list[Row]],
    found: dict[tuple[int, int], list[Exchange]],
) -> None:  # fmt: skip
    """No row may claim what is not so: it says that it cannot tell, or it is right."""
    for ports, made in found.items():
        for side in SIDES:
            mine = rows.get((side, *ports), [])
            if not mine:
                judged.lost += 1
                judged.wrong.append(f"{ports} {side}: no row")
            claims = [row for row in mine if not row["pipelined"] and row["certain"]]
            if not made[0].send:
                false = max(0, len(claims) - _OPENING)
            else:
                false = sum(not _is_one_of(row, made) for row in claims)
                for name, wanted in (("request_bytes", "asked"), ("response_bytes", "answered")):
                    total = sum(row[name] or 0 for row in mine)
                    if total != sum(getattr(one, wanted) for one in made):
                        judged.wrong.append(f"{ports} {side}: {total} {name} in all")
            judged.invented += false
            if false and (judged.flagged or not case.may_hide):
                judged.wrong.append(f"{ports} {side}: {false} of {len(mine)} rows claim to be one "
                                    "request and are not")  # fmt: skip


def _is_one_of(row: Row, made: Sequence[Exchange]) -> bool:
    allowed = TOLERANCE_NS + (row["uncertain_ns"] or 0)
    return any(
        abs(row["start_ns"] - one.send) <= allowed
        and abs(row["start_ns"] + row["total_ns"] - one.last) <= allowed
        for one in made
    )
