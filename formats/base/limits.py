# SPDX-License-Identifier: Apache-2.0
"""The limits of all readers: a file may hold anything, and costs bounded memory and time.

docs/limits.md has them as a table. Beyond a limit a reader refuses the file with an error, or it
leaves something out and says so. What a format itself limits, by the width of a field, is not here.
"""

from __future__ import annotations

# The schema language.
MOST_SCHEMA_BYTES = 1 << 19
"""Of the text of a schema, in a file or in a header."""
MOST_GROUP_FIELDS = 1 << 16
"""Fields that the events of one text have from groups of fields."""
MOST_SCHEMA_PROBLEMS = 1000
"""Problems of one schema that are reported."""
MOST_SUGGESTIONS = 10
"""Problems of one schema that get a suggestion, "did you mean 'x'?"."""
MOST_CANDIDATES = 500
"""Names among which a suggestion is searched."""
MOST_SIMILAR_CHARACTERS = 40
"""Longer names are not suggested: comparing two names takes the product of their lengths."""

# Files.
MOST_HOLE_BYTES = 1 << 26
"""Of a file: bytes that nobody ever wrote, and that take no room on the disk."""
MOST_UNPACKED_BYTES = 1 << 36
"""Of what is in one."""
FEW_UNPACKED_BYTES = 1 << 26
"""What one may hold whatever it takes itself; more is at most MOST_UNPACKED_TIMES of that."""
MOST_UNPACKED_TIMES = 1000
"""Bytes for each byte of the archive."""

# Headers of files.
MOST_HEADER_BYTES = 16 << 20
"""Of a PSC file."""
MOST_HEADER_RECORDS = 1 << 16
"""Of a PSC file."""
MOST_LOG_HEADER_BYTES = 4 << 20
"""Of a Klogger log: values of JSON take many times their text's memory."""
MOST_SETTINGS_CHARACTERS = 1 << 20
"""Of a PSC file."""
MOST_COLUMNS = 4096
"""Of a PSC file."""
MOST_FIELDS = 4096
"""Of an event of a Klogger log."""
MOST_NAME_CHARACTERS = 256
"""Of the name of an event, a field or a type of a Klogger log."""

MOST_INDEX_BYTES = 64 << 20
"""Of the index of a folder of segments."""
MOST_INDEX_LINE = 1 << 16
"""Bytes of a line of it."""
MOST_INDEX_CAPTURES = 1 << 14
"""Captures that it tells of."""

# Records.
MOST_PAYLOAD_BYTES = 1 << 16
"""Of a record of a Klogger log."""
MOST_CONTROL_BYTES = 4 << 20
"""Of the text of a control entry, or of the header, of a MAGNeT file."""
MOST_DUMP_BYTES = 1 << 30
"""Of a dump of a Klogger log, without its head. The writer begins another dump before."""
MOST_DAMAGE = 20
"""Damaged places of a Klogger log that a reader names."""
MOST_TEXT_BYTES = 32 << 20
"""Texts of values that each thread keeps while it writes text, besides those of one page."""

# tcpkmon verify.
MOST_PROBLEMS = 50
"""Problems of a file that are named; the rest is counted."""
MOST_ENTRIES = 100_000
"""Entries with a problem that repair leaves out."""
MOST_CPUS = 4096
"""CPUs of a PSC file that does not say how many there can be, or of a MAGNeT file."""
MOST_GROUP = 1 << 22
"""Entries of a checkpoint of a PSC file."""
MOST_FAR = 1 << 14
"""Entries far from the clock that are examined."""
MOST_JUMPS = 64
"""Steps of the clock that are examined."""
MOST_INTERVALS = 1 << 16
"""Intervals of serial numbers that are kept for all CPUs."""
MOST_MISSING = 1 << 40
"""Sequence numbers in a gap that repair accepts."""

# pmgraph.
MOST_CONNECTIONS = 1 << 22
"""Connections of a file."""
MOST_DRAWN = 12
"""Connections that are drawn; see MOST_DRAWN_CHOSEN."""
MOST_DRAWN_CHOSEN = 64
"""Connections that are drawn where -p chooses."""
MOST_LISTED = 1000
"""Connections that -d lists, and files that -x writes."""

# formats.analysis.queues.
MOST_QUEUED = 1 << 14
"""Requests that wait for a device at once, in a queue that is rebuilt."""

# tcpkmon latency; MOST_CONNECTIONS too.
MOST_COPIES = 64
"""Records of a layer that cover a byte, on average: more is no traffic."""

# Packet captures, for tcpkmon join.
MOST_BLOCK_BYTES = 1 << 24
"""Of a block of a pcapng file, or a packet of a pcap file."""
MOST_INTERFACES = 1 << 16
"""Of a section of a pcapng file."""
MOST_BESIDE = 1 << 22
"""Records that are kept at once: those of the time of some packets."""

# Triggers of the flight recorder, and assertions.
MOST_TRIGGER_CHARACTERS = 1000
"""Of the text of a trigger."""
MOST_TRIGGER_DEPTH = 40
"""Operators and brackets of a trigger."""

# tcpkmon packetdrill.
MOST_SCRIPT_RECORDS = 1 << 17
"""Records of the connection of which a script is made."""
