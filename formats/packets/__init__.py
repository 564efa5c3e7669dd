# SPDX-License-Identifier: Apache-2.0
"""Packet captures of other programs: pcapng and pcap, their blocks, and the headers of packets."""

__all__ = ["blocks", "headers", "reading"]
