# SPDX-License-Identifier: Apache-2.0
"""Whether the values of a request are what a running capture's filters and limits take."""

from __future__ import annotations

from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.options import options_of
from tcpkmon.formats.base.errors import UsageError

_LARGEST_LIMIT = (1 << 32) - 1
_FILTERS = options_of(Filters)


def is_filters(value: object) -> bool:
    """Whether it is what collector/plan/filters.py:parse() takes, as JSON has it."""
    return isinstance(value, dict) and all(_is_filter(*item) for item in value.items())


def _is_filter(name: str, given: object) -> bool:
    if name not in _FILTERS or not _FILTERS[name].key:
        return False
    try:
        made = _FILTERS[name].kind.toml(given)
    except UsageError:
        return False
    made = list(made) if isinstance(made, tuple) else made
    texts = map(str, made if isinstance(made, list) else [made])
    return bool(made == given) and "\0" not in "".join(texts)


def is_limits(value: object) -> bool:
    """Whether it has a number of records a second for each name."""
    return isinstance(value, dict) and all(
        type(limit) is int and 0 < limit <= _LARGEST_LIMIT for limit in value.values()
    )
