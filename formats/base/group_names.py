# SPDX-License-Identifier: Apache-2.0
"""Whose a control group is by its path: unit, container and pod, as their managers name groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

MOST_GROUPS = 16384
"""That a capture keeps."""

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
_ABOVE = {"docker": "docker", "kubepods": "", "libpod_parent": "", "default": "containerd",
          "k8s.io": "containerd"}  # fmt: skip
"""With the driver cgroupfs, an id is below one of these or a pod; for some the runtime is known.
default and k8s.io are namespaces of containerd."""
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
        if is_unit(part) and (not part.endswith(".slice") or _is_slice(found)):
            found["unit"] = part
        if container := _container(part, above, "pod_uid" in found):
            found |= container
            break  # what is below is the container's own
        above = part
    return Group(path, **{**found, **more})


def is_unit(name: str) -> bool:
    """Whether a group of this name is a unit's."""
    return _UNIT.fullmatch(name) is not None


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
    if (in_pod or above in _ABOVE) and _BARE.fullmatch(part):
        return _by_id(_ABOVE.get(above, ""), part)
    return {}


def _by_id(runtime: str, number: str) -> dict[str, str]:
    return {"runtime": runtime, "container": number[:12], "container_id": number}


def _uuid(text: str) -> str:
    """A slice's name has _ where the uid has -."""
    return text.replace("_", "-")
