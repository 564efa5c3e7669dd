# SPDX-License-Identifier: Apache-2.0
"""The filters by unit, container, pod and user: decides on a control group by its names."""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from tcpkmon.collector.plan.options import SEVERAL, option
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.base.group_names import Group, is_unit
from tcpkmon.formats.base.text import suggest

GROUP_MADE = "group_made"
"""The program that tells of new control groups (groups.h)."""
GROUPS_BY_NAME = 0xFFFFFFFF
"""The level of filter_settings with which filter_cgroups has what is known of each group."""
NO_USER = 0xFFFFFFFF
"""No socket's user."""
_MOST_PATTERNS, _MOST_CHARACTERS = 64, 512


def few(name: str, values: Sequence[Any], most: int = _MOST_PATTERNS) -> list[Any]:
    """The different ones; UsageError for more."""
    found = list(dict.fromkeys(values))
    if len(found) > most:
        raise UsageError(f"{name}: {len(found):,} of them", f"at most {most:,} fit")
    return found


def _patterns(name: str, values: Any) -> tuple[str, ...]:
    for text in (chosen := few(name, values)):
        if not text or len(text) > _MOST_CHARACTERS or not text.isprintable():
            raise UsageError(f"{name}: '{text[:80]}' is no name", "as web, or web-*")
    return tuple(chosen)


def _users(name: str, values: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_user(name, text) for text in few(name, values)))


def _user(name: str, text: str) -> int:
    if re.fullmatch(r"[0-9]{1,10}", text):
        if int(text) < NO_USER:
            return int(text)
    elif text.isprintable() and "\0" not in text:
        try:
            return pwd.getpwnam(text).pw_uid
        except (KeyError, UnicodeError):
            pass
    raise UsageError(f"{name}: no user '{text[:80]}'", "a name of /etc/passwd, or a number")


_PATTERNS = replace(SEVERAL, make=_patterns)
_USERS = replace(SEVERAL, make=_users)


@dataclass(frozen=True)
class Named:
    """Those of Filters (filters.py)."""

    # fmt: off
    units: tuple[str, ...] = option(
        "--unit NAME", _PATTERNS, "Sockets of this systemd unit, as nginx.service or "
        "work-*.scope; also a slice.", True)
    containers: tuple[str, ...] = option(
        "--container NAME", _PATTERNS, "Sockets of this container: its name or id.", True)
    pods: tuple[str, ...] = option(
        "--pod NAMESPACE/NAME", _PATTERNS, "Sockets of this pod, as shop/cart-*.", True)
    users: tuple[int, ...] = option(
        "--user NAME", _USERS, "Sockets of this user: a name or a number.", True, live=True)
    """By number."""
    # fmt: on

    @property
    def by_name(self) -> bool:
        """Whether unit, container or pod choose: then groups are decided on as they come, by
        collector/session/whose.py."""
        return bool(self.units or self.containers or self.pods)

    def absent_units(self, paths: Iterable[str]) -> list[str]:
        """What to say of the units that no group of these paths is of."""
        if not self.units:
            return []
        names = {name for path in paths for name in path.split("/")}
        return [
            f"there is no unit {one} now{suggest(one, filter(is_unit, names))}: "
            "its sockets are recorded from when it starts"
            for one in self.units if not _matches([one], [*names])
        ]  # fmt: skip

    def decide(self, group: Group) -> bool:
        """Whether it is one of those named, as far as its names are known."""
        names = (
            (self.units, group.path.split("/")),
            (self.containers, [group.container, group.container_id, group.container_id[:12]]),
            (self.pods, [group.pod, group.pod_uid, group.pod.rpartition("/")[2]]),
        )
        return all(not asked or _matches(asked, known) for asked, known in names)

    def awaits(self, group: Group) -> bool:
        """Whether a name that is not known yet would decide."""
        container, pod = group.unnamed
        return bool((self.containers and container) or (self.pods and pod))


def _matches(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns for name in names if name)
