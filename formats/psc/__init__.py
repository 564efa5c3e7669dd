# SPDX-License-Identifier: Apache-2.0
"""PSC files: the self-describing format of the TCP kernel monitor, written by the collector."""

from __future__ import annotations

from formats.base.byteorder import Endian
from formats.psc.columns import (
    CLASSIC,
    CLASSIC_BYTES,
    MODS_AUTO,
    MODS_FACK,
    MODS_RENO,
    MODS_SACK,
    Column,
    columns_of,
    entry_dtype,
)
from formats.psc.header import (
    HEADER_BYTES_MAX,
    KIND_SCHEMA,
    KIND_SETTINGS,
    Header,
    decode_header,
    encode_header,
    writer_header,
)
from formats.psc.lines import number_cell, write_entries
from formats.psc.reader import Capture, open_capture
from formats.psc.sequence import Gap
from formats.psc.values import decode, words

__all__ = [
    "CLASSIC",
    "CLASSIC_BYTES",
    "HEADER_BYTES_MAX",
    "KIND_SCHEMA",
    "KIND_SETTINGS",
    "MODS_AUTO",
    "MODS_FACK",
    "MODS_RENO",
    "MODS_SACK",
    "Capture",
    "Column",
    "Endian",
    "Gap",
    "Header",
    "columns_of",
    "decode",
    "decode_header",
    "encode_header",
    "entry_dtype",
    "number_cell",
    "open_capture",
    "words",
    "write_entries",
    "writer_header",
]
