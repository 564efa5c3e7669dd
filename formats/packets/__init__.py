# SPDX-License-Identifier: Apache-2.0
"""Packet captures of other programs: pcapng and pcap, their blocks, and the headers of packets."""

from tcpkmon.formats.packets.blocks import (
    CUSTOM,
    IN,
    OUT,
    RAW_IP,
    Interface,
    block,
    enhanced,
    interface,
    option,
    section,
    text_option,
)
from tcpkmon.formats.packets.headers import Segments, parse
from tcpkmon.formats.packets.reading import Batch, Block, PacketFile, with_comment

__all__ = [
    "CUSTOM",
    "IN",
    "OUT",
    "RAW_IP",
    "Batch",
    "Block",
    "Interface",
    "PacketFile",
    "Segments",
    "block",
    "enhanced",
    "interface",
    "option",
    "parse",
    "section",
    "text_option",
    "with_comment",
]
