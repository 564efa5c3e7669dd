# SPDX-License-Identifier: Apache-2.0
"""Where metrics may be sent by OTLP: the check that the command and the configuration share."""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.installing import how_to_install

PACKAGE = "opentelemetry-exporter-otlp-proto-http"


def check_endpoint(text: str) -> str:
    """The URL of an endpoint. UsageError where it is none, or the SDK is not installed."""
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or not text.isprintable() or " " in text:
        raise UsageError(f"{text!r} is no URL", "write http://127.0.0.1:4318/v1/metrics")
    if not _is_installed():
        raise UsageError(f"OTLP needs {PACKAGE}, which is not installed", how_to_install(PACKAGE))
    return text


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
