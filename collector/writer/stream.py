# SPDX-License-Identifier: Apache-2.0
"""The codecs by which the stream writes the formats of formats/registry.py: a new one has a row.

The command line imports this, so all else is imported only when a stream is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcpkmon.collector.writer.codec import Codec


def _psc() -> Codec:
    from tcpkmon.collector.writer.psc_codec import PscCodec

    return PscCodec()


def _klogger() -> Codec:
    from tcpkmon.collector.writer.klogger_codec import KloggerCodec

    return KloggerCodec()


STREAMS: dict[str, Callable[[], Codec]] = {"psc": _psc, "klogger": _klogger}
"""By the format's name: makes the codec for a stream (base_stream.py) or a recorder."""
