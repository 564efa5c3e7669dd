# SPDX-License-Identifier: Apache-2.0
"""Makes the document: text as HTML, what is drawn as JSON, script and style, and a policy that
allows these and nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.text import human_bytes
from tcpkmon.formats.report.data import Report
from tcpkmon.formats.report.host import Section

_LOOKS = {0: ("ok", "✓"), 3: ("warn", "!")}
_PROOF = ("path", "format", "entries", "lost", "end_reason", "checkpoints", "problems")


def make_page(report: Report) -> str:
    """The whole file. Text of the capture is escaped: it stays text."""
    room = files("tcpkmon.formats.report")
    scripts = [(room / name).read_text("utf-8") for name in ("uplot/uplot.js", "assets/report.js")]
    styles = [(room / name).read_text("utf-8") for name in ("uplot/uplot.css", "assets/report.css")]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = _text(f"tcpkmon report: {report.name}")
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title>",
        *(f"<style>{style}</style>" for style in styles),
    ]
    body = [
        f"<header><h1>{_text(report.name)}</h1>{_summary(report)}</header>",
        "<main>",
        _warnings(report), _verdicts(report), _listed("Causes", report.causes), _proof(report),
        _interactive(report),
        *map(_host, report.host), _listed("Events", report.events), _settings(report),
        "</main>",
        f'<script type="application/json" id="data">{_json(report.plots)}</script>',
        *(f"<script>{script}</script>" for script in scripts),
    ]  # fmt: skip
    return (
        '<!DOCTYPE html>\n<html lang="en"><head>' + "\n".join(head) + "</head>\n<body>"
        + "\n".join(body) + "</body></html>\n"
    )  # fmt: skip


def _hashes(texts: list[str]) -> str:
    return " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in texts
    )


def _json(value: Any) -> str:
    """JSON that ends no script element, whatever its texts are."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(value: Any) -> str:
    return html.escape(for_terminal(str(value)))


def _summary(report: Report) -> str:
    whole = report.proof[-1:]
    parts = [
        f"{row['entries']:,} entries, {human_bytes(row['size_bytes'])}, {_text(row['format'])}"
        for row in whole
    ]
    if report.count:
        parts.append(f"{report.count:,} connection{'s' if report.count > 1 else ''}")
    for row in whole:
        look, sign = _LOOKS.get(row["exit_code"], ("bad", "✗"))
        parts.append(f'<span class="{look}">{sign} {_text(row["verdict"])}</span>')
    return f'<p class="summary">{" · ".join(parts)}</p>'


def _warnings(report: Report) -> str:
    lines = "".join(f"<li>{_text(one)}</li>" for one in report.warnings)
    return f'<ul class="warnings">{lines}</ul>' if lines else ""


def _verdicts(report: Report) -> str:
    if not report.said:
        return ""
    blocks = "".join(
        f'<li><b class="conn" data-conn="{conn}">{_text(name)}</b><ul>'
        + "".join(f"<li>{_text(one)}</li>" for one in texts) + "</ul></li>"
        for conn, name, texts in report.said
    )  # fmt: skip
    more = report.count - len(report.said)
    rest = f"<p>{more:,} more with fewer bytes: <code>tcpkmon why</code></p>" if more else ""
    return f'<section><h2>What limited them</h2><ol class="verdicts">{blocks}</ol>{rest}</section>'


def _proof(report: Report) -> str:
    rows = []
    for row in report.proof[-50:]:
        look, sign = _LOOKS.get(row["exit_code"], ("bad", "✗"))
        cells = "".join(f"<td>{_cell(row[name])}</td>" for name in _PROOF)
        rows.append(f'<tr><td class="{look}">{sign} {_text(row["verdict"])}</td>{cells}</tr>')
    return _table("Proof of completeness", ("verdict", *_PROOF), "".join(rows))


def _listed(title: str, found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in found
    )
    return _table(title, tuple(found[0]), rows)


def _host(section: Section) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{_bar(value) if name == 'share' else _cell(value)}</td>"
                         for name, value in row.items()) + "</tr>"
        for row in section.rows
    )  # fmt: skip
    return _table(_text(section.title), tuple(section.rows[0]), rows)


def _bar(share: float) -> str:
    told = f"{share:.1%}"
    return f'<meter min="0" max="1" value="{share:.4f}">{told}</meter> {told}'


def _table(title: str, names: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    return (
        f'<section><h2>{title}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return "\u2013"
    return f"{value:,}" if type(value) is int else _text(value)


def _interactive(report: Report) -> str:
    if not report.plots:
        return ""
    table = """<section id="table"><h2>Connections</h2>
<p><label>Search <input type="search" id="search"></label>
<span id="found" role="status"></span></p>
<div class="scroll"><table id="connections"><thead></thead><tbody></tbody></table></div></section>
""" if report.count else ""  # fmt: skip
    return f"""<noscript><p class="warnings">Table and graphs need JavaScript.</p></noscript>
{table}<section id="graphs"><h2 id="which"></h2><div class="tools"></div>
<div id="plots" tabindex="0" role="group" aria-label="Graphs: arrow keys, plus, minus and 0"></div>
<p id="values" role="status"></p><p id="legend"></p><p id="notes"></p></section>"""


def _settings(report: Report) -> str:
    if not report.settings:
        return ""
    text = json.dumps(report.settings, indent=1, ensure_ascii=False, default=str)
    lines = "\n".join(_text(line) for line in text.split("\n"))
    return f"<section><details><summary>Settings</summary><pre>{lines}</pre></details></section>"
