# SPDX-License-Identifier: Apache-2.0
"""Writes records for other programs: as Parquet, Arrow, CSV, JSON lines, Perl hashes, pcapng,
MAGNeT files, and as scripts of packetdrill."""

__all__ = ["bblog", "forms", "magnet", "packetdrill"]
