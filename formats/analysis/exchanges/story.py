# SPDX-License-Identifier: Apache-2.0
"""Exchanges in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcpkmon.formats.analysis.exchanges.cutting import UNSURE
from tcpkmon.formats.analysis.exchanges.summary import Summary
from tcpkmon.formats.analysis.why.words import human_bytes, human_time
from tcpkmon.formats.base.text import endpoint

_LEAST = 0.05
_SAID = {
    "client": {
        "request": "it wrote the request for {}", "think": "it waited {} for the server's answer",
        "network": "{} are the path's round trip", "response": "the answer arrived for {}",
        "read": "its process read it {} later",
    },
    "server": {
        "request": "the request arrived for {}", "think": "its own program took {} to answer",
        "response": "it sent the answer for {}",
    },
}  # fmt: skip
NAMES = {
    "client": {"wait": "own pause", "request": "writing", "think": "server's thinking",
               "network": "round trip", "response": "answer", "read": "reading", "total": "all"},
    "server": {"wait": "waiting for it", "request": "arrival", "think": "own thinking",
               "response": "answer", "total": "all"},
}  # fmt: skip
"""What a part is for each side."""
_SPENT = {
    "client": {"request": "writing the requests", "think": "waiting for the server's answers",
               "network": "on the path's round trips", "response": "receiving the answers",
               "read": "before its process read the answers"},
    "server": {"request": "receiving the requests", "response": "sending the answers",
               "think": "in its own program, before it answered"},
}  # fmt: skip


def ends(row: Mapping[str, Any]) -> str:
    """From the client to the server."""
    here, there = endpoint(row["laddr"], row["lport"]), endpoint(row["raddr"], row["rport"])
    return f"{here} -> {there}" if row["side"] == "client" else f"{there} -> {here}"


def story(row: Mapping[str, Any], origin_ns: int) -> str:
    """One sentence about one exchange. row: as rows_of() gives it. origin_ns: where time begins."""
    total = row["total_ns"] or 0
    parts = {name: row[f"{name}_ns"] for name in _SAID[row["side"]] if row[f"{name}_ns"]}
    told = sorted(parts.items(), key=lambda item: -item[1])
    texts = [_SAID[row["side"]][name].format(human_time(ns / 1000)) for name, ns in told
             if total and ns >= _LEAST * total]  # fmt: skip
    sums = [*(ns for _, ns in told), 0]
    unknown = row["uncertain_ns"] >= UNSURE * total > 0
    if unknown:
        texts = ["where its time went is not known"]
    elif told and total and sums[0] - sums[1] >= 2 * row["uncertain_ns"]:
        texts[0] += f", {100 * told[0][1] / total:.0f} % of the time"
    if row["side"] == "client" and row["response_bytes"] and row["read_ns"] is None:
        texts.append("when its process read it is not known (collect --requests records that)")
    if row["retransmits"]:
        texts.append(f"segments were sent again {row['retransmits']} times meanwhile")
    if row["pipelined"]:
        texts.append("pipelined")
    if not row["certain"]:
        lost = row["lost_records"]
        texts.append(f"{lost} records are missing meanwhile" if lost
                     else "it may have begun before the capture")  # fmt: skip
    if row["uncertain_ns"] and not unknown:
        texts.append(f"its times are uncertain by up to {human_time(row['uncertain_ns'] / 1000)}")
    took = "a time that is not known" if unknown else human_time(total / 1000)
    who = f" ({row['comm']})" if row["comm"] else ""
    asked, answered = human_bytes(row["request_bytes"]), human_bytes(row["response_bytes"])
    return (
        f"{ends(row)}, {row['side']}{who}: request {row['number']} at "
        f"{(row['start_ns'] - origin_ns) / 1e9:.6f} s, {asked} for {answered}, took "
        f"{took}: {'; '.join(texts) or 'nothing was waited for'}"
    )


def head(summary: Summary, side: str) -> str:
    """How many exchanges, and what most of their time was."""
    text = f"{summary.count} exchange{'s' * (summary.count != 1)}"
    if largest := summary.largest:
        share = f"{100 * summary.share[largest]:.0f} % of their time"
        text += f"; {share} was spent {_SPENT[side][largest]}"
    elif summary.share:
        text += "; the largest part of their time is not known"
    for count, what in (
        (summary.unanswered, "without an answer"),
        (summary.goodbyes, f"goodbye{'s' * (summary.goodbyes != 1)}, closed at once behind"),
        (summary.pipelined, "pipelined"),
        (summary.inexact, "not exact"), (summary.uncertain, "not certain"),
    ):  # fmt: skip
        if count:
            text += f"; {count} {what}"
    return text
