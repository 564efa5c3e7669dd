# SPDX-License-Identifier: Apache-2.0
"""Whether the values of a request are what a running capture's filters and limits take."""

from __future__ import annotations

_TEXTS = ("ports", "local_ports", "remote_ports", "syscalls")
_LISTS = ("pairs", "addresses", "namespaces", "cgroups")
_LARGEST_LIMIT = (1 << 32) - 1


def is_filters(value: object) -> bool:
    """Whether it is what collector/plan/filters.py:parse() takes."""
    return isinstance(value, dict) and all(_is_filter(*item) for item in value.items())


def _is_filter(name: object, given: object) -> bool:
    if name in _TEXTS:
        return isinstance(given, str) and "\0" not in given
    if name == "family":
        return type(given) is int and given in {0, 4, 6}
    kind = str if name in _LISTS else int if name == "pids" else None
    return isinstance(given, list) and all(
        type(one) is kind and "\0" not in str(one) for one in given
    )


def is_limits(value: object) -> bool:
    """Whether it has a number of records a second for each name."""
    return isinstance(value, dict) and all(
        type(limit) is int and 0 < limit <= _LARGEST_LIMIT for limit in value.values()
    )
