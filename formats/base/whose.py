# SPDX-License-Identifier: Apache-2.0
"""Whose a control group is: its unit, container and pod, by its path and what a file tells.

A capture with the column cgroup has the groups that exist at its start in the settings of each
file's header, and those that come later as control entries. A name of any length takes several:

    id of the group (w0, w1), 32 bytes of text (w2 to w9); callvalue: part * 2^16 + parts

All parts together are a JSON object: `path`, and what only other files tell (`container`, ...).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from tcpkmon.formats.base.control import WORDS_COUNT, Call, Control

SETTING = "groups"
"""In the settings of a header: by id, as text, what is known of a group."""
UNKNOWN = "unknown"
"""In SETTING: how many groups came and went before the collector could read their paths."""
MOST_GROUPS = 16384
MOST_CHARACTERS = 512 << 10
"""Of the groups in a header."""
MOST_TEXT = 4096
_PART_BYTES = 32
_WORDS = struct.Struct(f"<{WORDS_COUNT}I")
_ENTRY = struct.Struct(f"<Q{_PART_BYTES}s")

_ID = r"(?P<id>[0-9a-f]{64})"
_RUNTIMES = (
    ("docker", rf"docker-{_ID}\.scope"),
    ("containerd", rf"(?:.*:)?cri-containerd[-:]{_ID}(?:\.scope)?"),
    ("cri-o", rf"crio-{_ID}(?:\.scope)?"),
    ("podman", rf"libpod-{_ID}(?:\.scope)?"),
    ("containerd", rf"nerdctl-{_ID}\.scope"),
    ("systemd-nspawn", r"systemd-nspawn@(?P<name>.+)\.service"),
    ("machined", r"machine-(?P<name>.+)\.scope"),
    ("lxc", r"lxc\.payload\.(?P<name>.+)"),
)
_CONTAINERS = [(runtime, re.compile(pattern)) for runtime, pattern in _RUNTIMES]
_BARE = re.compile(_ID)
"""With the driver cgroupfs: below /docker or a pod."""
_POD = re.compile(
    r"(?:.*-)?pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?::.*)?"
)
_USER = re.compile(r"user-(\d{1,10})\.slice")
_UNIT = re.compile(r".+\.(?:service|scope|socket|mount|swap|slice)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True)
class Group:
    """A control group. Text is empty where it is none, or nobody knows.

    path: below the root of cgroup2. unit: of systemd, the nearest one, outside of a container.
    container: its name, else the beginning of its id. pod: namespace/name, else its uid.
    """

    path: str
    unit: str = ""
    runtime: str = ""
    container: str = ""
    container_id: str = ""
    image: str = ""
    pod: str = ""
    pod_uid: str = ""
    user: str = ""
    """Number of the user whose session or service manager it is below."""

    @property
    def unnamed(self) -> tuple[bool, bool]:
        """Whether it is of a container, and of a pod, of which the name is not known."""
        container = bool(self.container_id) and self.container == self.container_id[:12]
        return container, bool(self.pod_uid) and self.pod == self.pod_uid

    @property
    def is_named(self) -> bool:
        """Whether the names of its container and pod are known, as far as it has any."""
        return not any(self.unnamed)

    def told(self) -> dict[str, str]:
        """What a file stores: what group_of() cannot find again from the path."""
        plain = asdict(group_of(self.path))
        return {"path": self.path} | {
            name: value for name, value in asdict(self).items() if value != plain[name]
        }


def group_of(path: str, **more: str) -> Group:
    """The group of this path, as systemd, Docker, containerd, CRI-O, Podman, kubelet, LXC and
    machined name theirs. more: fields that are known otherwise."""
    found: dict[str, str] = {}
    above = ""
    for part in path.split("/"):
        if (pod := _POD.fullmatch(part)) is not None:
            found["pod_uid"] = found["pod"] = _uuid(pod["uid"])
        if (user := _USER.fullmatch(part)) is not None:
            found["user"] = user[1]
        if _UNIT.fullmatch(part) and (not part.endswith(".slice") or _is_slice(found)):
            found["unit"] = part
        if container := _container(part, above, "pod_uid" in found):
            found |= container
            break  # what is below is the container's own
        above = part
    return Group(path, **{**found, **more})


def _is_slice(found: Mapping[str, str]) -> bool:
    """Whether the unit so far, if any, is a slice too."""
    return found.get("unit", ".slice").endswith(".slice")


def _container(part: str, above: str, in_pod: bool) -> dict[str, str]:
    for runtime, pattern in _CONTAINERS:
        if (one := pattern.fullmatch(part)) is not None:
            names = one.groupdict()
            if name := names.get("name"):
                name = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), name)
                return {"runtime": runtime, "container": name}
            return _by_id(runtime, names["id"])
    if (in_pod or above in ("docker", "kubepods", "libpod_parent")) and _BARE.fullmatch(part):
        return _by_id("docker" if above == "docker" else "", part)
    return {}


def _by_id(runtime: str, number: str) -> dict[str, str]:
    return {"runtime": runtime, "container": number[:12], "container_id": number}


def _uuid(text: str) -> str:
    """A slice's name has _ where the uid has -."""
    return text.replace("_", "-")


@dataclass(frozen=True)
class Named(Control):
    """A part of what a group is. text: at most 32 bytes, ASCII."""

    location: ClassVar[int] = 239
    event: ClassVar[str] = "CGROUP"
    part: Call
    parts: Call
    id: int
    text: bytes

    def words(self) -> tuple[int, ...]:
        return _WORDS.unpack(_ENTRY.pack(self.id, self.text))

    @classmethod
    def from_words(cls, callvalue: int, words: Sequence[int]) -> Named:
        number, text = _ENTRY.unpack(_WORDS.pack(*words))
        return cls(callvalue >> 16, callvalue & 0xFFFF, number, text.rstrip(b"\0"))


def entries_of(number: int, group: Group) -> Iterator[Named]:
    """The control entries that tell of a group."""
    text = json.dumps(group.told(), separators=(",", ":")).encode()
    if len(text) > MOST_TEXT:
        text = json.dumps({"path": "…/" + group.path[-MOST_TEXT // 12 :]}).encode()
    pieces = [text[at : at + _PART_BYTES] for at in range(0, len(text), _PART_BYTES)]
    for part, piece in enumerate(pieces):
        yield Named(part, len(pieces), number, piece)


def unknown_entry(count: int) -> list[Named]:
    """The control entry that tells how many groups came and went unseen."""
    return [Named(0, 1, 0, b'{"%s":%d}' % (UNKNOWN.encode(), count))]


class Groups:
    """The groups that a capture tells of, by id. settings: of the header, which may hold anything.

    unknown: how many came and went unseen.
    """

    def __init__(self, settings: Any = None) -> None:
        self._found: dict[int, Group] = {}
        self._open: dict[int, list[bytes]] = {}
        self.unknown = 0
        self.add(settings)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, number: int) -> Group | None:
        """The group of this id, if the capture tells of it."""
        return self._found.get(number)

    def items(self) -> ItemsView[int, Group]:
        """All that are known, by id."""
        return self._found.items()

    def add(self, settings: Any) -> None:
        """Take those of a header too."""
        told = settings.get(SETTING) if isinstance(settings, dict) else None
        for key, value in told.items() if isinstance(told, dict) else ():
            if key == UNKNOWN and type(value) is int:
                self.unknown = max(self.unknown, value)
            elif key.isascii() and key.isdigit() and len(key) < 20:
                self._take(int(key), value)

    def feed(self, entry: Control) -> None:
        """The next control entry, of any kind."""
        if not isinstance(entry, Named):
            return
        if not entry.part:
            self._open[entry.id] = []
        pieces = self._open.get(entry.id)
        if pieces is None or len(pieces) != entry.part or entry.part * _PART_BYTES > MOST_TEXT:
            self._open.pop(entry.id, None)
            return
        pieces.append(entry.text)
        if len(pieces) == entry.parts:
            text = b"".join(self._open.pop(entry.id))
            try:
                self._take(entry.id, json.loads(text))
            except (ValueError, RecursionError):
                return  # verify tells of damage
        elif len(self._open) > MOST_GROUPS:
            self._open.clear()

    def _take(self, number: int, told: Any) -> None:
        if not number:
            count = told.get(UNKNOWN) if isinstance(told, dict) else None
            self.unknown = max(self.unknown, count if type(count) is int else 0)
        elif isinstance(told, dict) and isinstance(path := told.get("path"), str):
            known = {one.name for one in fields(Group)} - {"path"}
            more = {n: v for n, v in told.items() if n in known and isinstance(v, str)}
            if number in self._found or len(self._found) < 4 * MOST_GROUPS:
                self._found[number] = group_of(path[:MOST_TEXT], **more)
