# SPDX-License-Identifier: Apache-2.0
"""What the settings in a file's header say: they may hold anything."""

from __future__ import annotations

from typing import Any


def setting(settings: object, *names: str) -> Any:
    """The value behind these names, one in the other; None where there is none."""
    for name in names:
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings
