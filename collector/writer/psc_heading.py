# SPDX-License-Identifier: Apache-2.0
"""The header of a capture's file: this host, its kernel, the schema, and the capture's settings."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from collector.loader.prepare import Prepared, describe_kernel
from collector.plan.columns import SCHEMATA
from collector.sequencer.clock_pairs import ClockPair
from formats.psc import (
    MODS_AUTO,
    MODS_FACK,
    MODS_RENO,
    MODS_SACK,
    encode_header,
    writer_header,
)

SACK = Path("/proc/sys/net/ipv4/tcp_sack")


def features() -> int:
    """psc_mods of the running system: SACK (then Linux keeps the forward-most one too) or Reno.

    Linux tunes send buffers by itself, so AUTO is always set.
    """
    try:
        sack = SACK.read_text().strip() != "0"
    except OSError:
        sack = True
    return (MODS_SACK | MODS_FACK if sack else MODS_RENO) | MODS_AUTO


def package_version() -> str:
    """The version of this package."""
    return version("tcpkmon")


def make_header(prepared: Prepared, clock: ClockPair, settings: Mapping[str, Any]) -> bytes:
    """The bytes of the header, for the columns of this capture."""
    layout = prepared.layout
    assert prepared.tcp is not None
    return encode_header(
        writer_header(
            layout.columns,
            layout.entry_size,
            mods=features(),
            version=f"tk{package_version()}"[:8],
            mclsize=prepared.tcp.facts.page_size,
            host=platform.node(),
            kernel=describe_kernel(),
            clock=(clock.mono_ns, clock.realtime_ns, clock.uncertainty_ns),
            schema=(SCHEMATA / "tcp.conf").read_text(),
            settings=settings,
        )
    )
