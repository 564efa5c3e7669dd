# SPDX-License-Identifier: Apache-2.0
"""The options of pmgraph: the letters of the report, their columns, and how values are parsed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.escape import for_terminal
from tcpkmon.formats.base.ports import parse_connection

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_LEAST_PIXELS, _MOST_PIXELS = 200, 20_000
M_CLUSED_BYTES = "m_clused_bytes"
"""Derived column of -m: m_clused times the cluster size that KIND_MCLSIZE gives."""


@dataclass(frozen=True)
class Parameter:
    """One letter of the report: its column, its long option and its unit."""

    letter: str
    column: str
    option: str
    unit: str
    help: str


PARAMETERS = (
    Parameter("b", "snd_sb_cc", "snd-sb-cc", "bytes", "show so_snd.sb_cc"),
    Parameter("c", "snd_cwnd", "snd-cwnd", "bytes", "show cwnd: the congestion window"),
    Parameter("f", "snd_fack", "snd-fack", "sequence", "show snd_fack: highest sequence (s)acked"),
    Parameter("F", "hiwat_fair_share", "hiwat-fair-share", "bytes", "show hiwat_fair_share"),
    Parameter("H", "sb_hiwat", "sb-hiwat", "bytes", "show so_snd.sb_hiwat: send buffer limit"),
    Parameter("l", "location", "location", "", "show calling location"),
    Parameter("m", M_CLUSED_BYTES, "m-clused", "bytes", "show mbuf clusters in use (in bytes)"),
    Parameter("n", "sb_net_target", "sb-net-target", "bytes", "show so_snd.sb_net_target"),
    Parameter("r", "rcv_sb_cc", "rcv-sb-cc", "bytes", "show so_rcv.sb_cc"),
    Parameter("s", "snd_max", "snd-max", "sequence", "show snd_max: highest sequence sent"),
    Parameter("t", "sb_target_hiwat", "sb-target-hiwat", "bytes", "show so_snd.sb_mem_target"),
    Parameter("v", "callvalue", "callvalue", "", "show calling values"),
)
"""The report's column options, in its alphabetical order."""

BY_LETTER = {parameter.letter: parameter for parameter in PARAMETERS}

EVERYTHING = tuple(BY_LETTER[letter].column for letter in "cHbrntsfmFlv")
"""The columns that are drawn if none is chosen, the most important first."""


@dataclass(frozen=True)
class Selection:
    """The chosen columns (in their order; none: all), connections (none: all) and scales."""

    columns: tuple[str, ...] = ()
    connections: tuple[tuple[int, int], ...] = ()
    scales: dict[str, float] = field(default_factory=dict)
    by_parameter: bool = False
    zoom: tuple[float, float] | None = None
    """the part of the time axis that is drawn, in its seconds"""


def parse_scale(text: str) -> tuple[str, float]:
    """Return (column, factor) of "1000l" or "1000srtt_us"; raises UsageError."""
    match = re.fullmatch(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(\w+)", text, re.ASCII)
    factor = float(match[1]) if match else math.nan
    if match is None or not math.isfinite(factor) or factor == 0:
        raise UsageError(
            f"-S '{for_terminal(text)}': not a factor and an option's letter",
            "write the number and the letter together, as in -S 1000l",
        )
    name = match[2]
    if len(name) == 1:
        if name not in BY_LETTER:
            raise UsageError(
                f"-S '{for_terminal(text)}': no option -{name} that could be scaled",
                "the letters are " + " ".join(BY_LETTER),
            )
        name = BY_LETTER[name].column
    return name, factor


def parse_names(text: str) -> tuple[str, ...]:
    """Return the column names of "NAME,NAME"; raises UsageError when there is none."""
    names = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not names:
        raise UsageError("--show without a column", "name columns, as in --show srtt_us,min_rtt_us")
    return names


def parse_zoom(text: str) -> tuple[float, float]:
    """Return the seconds of "3.2s..3.4s", "200ms..1s" or "3..4"; raises UsageError."""
    number = r"(\d+(?:\.\d+)?)(us|ms|s|)"
    match = re.fullmatch(rf"{number}\.\.{number}", text, re.ASCII)
    if match is not None:
        begin, end = (float(match[at]) * _SECONDS[match[at + 1]] for at in (1, 3))
        if begin < end < math.inf:
            return begin, end
    raise UsageError(
        f"--zoom '{for_terminal(text)}': not a part of the time axis",
        "write two times since its begin, as in --zoom 3.2s..3.4s or 200ms..1s",
    )


def parse_size(text: str) -> tuple[int, int]:
    """Return the pixels of "1600x900"; raises UsageError."""
    match = re.fullmatch(r"(\d{2,5})x(\d{2,5})", text, re.ASCII)
    size = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(_LEAST_PIXELS <= one <= _MOST_PIXELS for one in size):
        raise UsageError(
            f"--size '{for_terminal(text)}': not the size of a picture",
            f"write its pixels, {_LEAST_PIXELS} to {_MOST_PIXELS}, as in --size 1600x900",
        )
    return size


def select(
    columns: list[str],
    connections: tuple[str, ...],
    scales: tuple[str, ...],
    by_parameter: bool,
    zoom: str | None = None,
) -> Selection:
    """Parse the options' texts to a Selection; a column that is chosen twice appears once."""
    factors = dict(parse_scale(text) for text in scales)
    chosen = list(columns)
    if chosen:  # -S chooses its column too
        chosen += [name for name in factors if name not in chosen]
    return Selection(
        columns=tuple(dict.fromkeys(chosen)),
        connections=tuple(dict.fromkeys(parse_connection(text) for text in connections)),
        scales=factors,
        by_parameter=by_parameter,
        zoom=parse_zoom(zoom) if zoom else None,
    )
