# SPDX-License-Identifier: Apache-2.0
"""An open capture as HTML, for notebooks: what it is, its proof, its first connections."""

from __future__ import annotations

import html
from typing import Any

from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import human_bytes
from tcpkmon.formats.klogger.logs import Logs
from tcpkmon.formats.psc.header import KIND_HOST, KIND_KERNEL
from tcpkmon.formats.psc.reader import Capture
from tcpkmon.formats.tables.views import Opened, reports_of, views_of
from tcpkmon.formats.verify import Report

_FIRST = 10
_SHOWN = ("laddr", "lport", "raddr", "rport", "comm", "duration_us", "bytes_sent",
          "bytes_received", "retransmissions", "srtt_p50_us", "main_limit", "main_share",
          "proven")  # fmt: skip
_COLOURS = {0: "#1a7f37", 3: "#9a6700"}


def as_html(opened: Opened) -> str:
    """Plain tables without style of their own, so that they look as the notebook's others do.

    It reads the capture twice: to prove it, and for its connections. Text of the file is escaped.
    """
    reader, views = opened.reader, views_of(opened)
    parts = [f"<p><b>{_text(reader.path)}</b>{_about(reader)}</p>"]
    try:
        parts.append(_proof(reports_of(opened.paths)))
    except TcpkmonError as error:
        parts.append(f"<p>not verified: {_text(error)}</p>")
    if "connections" in views:
        try:
            parts.append(_connections(why.connections(reader)))
        except TcpkmonError as error:
            parts.append(f"<p>no connections: {_text(error)}</p>")
    parts.append(f"<p>tables: {', '.join(f'<code>{_text(name)}</code>' for name in views)}</p>")
    return f"<div>{''.join(parts)}</div>"


def _about(reader: Any) -> str:
    if isinstance(reader, Capture):
        told = [f"{len(reader):,} entries of {len(reader.names)} columns"]
        found = (reader.header.text(KIND_HOST), reader.header.text(KIND_KERNEL))
    elif isinstance(reader, Logs):
        told = [f"{len(reader.readers)} log(s), {len(reader.kinds)} kinds of events"]
        found = (reader.format.header.get("host"), reader.format.header.get("kernel"))
    else:
        return ""
    host, kernel = (value if isinstance(value, str) else None for value in found)
    told += [f"host {host}"] if host else []
    told += [f"kernel {kernel}"] if kernel else []
    return "".join(f", {_text(one)}" for one in told)


def _proof(reports: list[Report]) -> str:
    """The verdicts; of many files the last one, which is of all, and those that say otherwise."""
    worst = max(report.exit_code for report in reports)
    told = [one for one in reports if one is reports[-1] or one.exit_code][-_FIRST:]
    lines = "<br>".join(
        f'<span style="color:{_COLOURS.get(one.exit_code, "#cf222e")}">{_text(one.verdict)}</span>'
        f" ({_text(one.path)}, {one.entries:,} entries, {human_bytes(one.size_bytes)})"
        for one in told
    )
    more = "" if worst == 0 else "<br><code>tcpkmon verify</code> says more"
    return f"<p>{lines}{more}</p>"


def _connections(table: why.Table) -> str:
    count = len(table["conn_id"])
    shown = [name for name in _SHOWN if not _is_void(table[name])]
    some = why.choose(table, shown, "-bytes_acked" if count > _FIRST else "")
    rows = list(why.rows_of({name: values[:_FIRST] for name, values in some.items()}))
    head = "".join(f"<th>{_text(name)}</th>" for name in shown)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    of = f"those with the most acknowledged bytes of {count:,}" if count > _FIRST else f"{count}"
    return (
        f"<table><caption>connections: {of}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _is_void(values: Any) -> bool:
    return values.dtype == object and all(value is None for value in values)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _text(f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}")
    return _text(str(value).lower() if isinstance(value, bool) else value)


def _text(value: Any) -> str:
    return html.escape(for_terminal(str(value)))
