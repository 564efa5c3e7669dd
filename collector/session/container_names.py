# SPDX-License-Identifier: Apache-2.0
"""Finds the names of containers and pods in what their managers keep in files: no daemon is asked.

The files of Docker, Podman and containerd are root's. A process with the right to read them, and
none else, opens them and reads nothing; who reads them has given up all rights of root. Of the
folders of kubelet and machined the names of files tell enough.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tcpkmon.collector.linux.trusted_files import open_trusted
from tcpkmon.formats.base.errors import TcpkmonError
from tcpkmon.formats.base.group_names import Group

DOCKER = Path("/var/lib/docker/containers")
PODMAN = Path("/var/lib/containers/storage/overlay-containers/containers.json")
CONTAINERD = Path("/run/containerd/io.containerd.runtime.v2.task")
"""A folder for each of its namespaces, in it one for each container, with its OCI bundle."""
_SPACES = ("k8s.io", "default")
MACHINES = Path("/run/systemd/machines")
POD_LOGS = Path("/var/log/pods")
CONTAINER_LOGS = Path("/var/log/containers")
OF_DOCKER, OF_PODMAN, OF_CONTAINERD = 0, 1, 2
Opener = Callable[[int, bytes], int]
_MOST_BYTES = 4 << 20
_MOST_FILES = 16384
_MOST_NAME = 253
_ID = re.compile(r"[0-9a-f]{64}")
_LOG = re.compile(r"(?P<pod>[^_]+)_(?P<space>[^_]+)_(?P<name>.+)-(?P<id>[0-9a-f]{64})\.log")
"""kubelet's link to the log of a container."""


def open_for_names(which: int, data: bytes) -> int:
    """A descriptor of Docker's or containerd's file of a container (data: its id), or of Podman's
    of all. The file and the folders above are root's and no links: TcpkmonError."""
    path = PODMAN
    if which != OF_PODMAN:
        number = data.decode("ascii", "replace")
        if not _ID.fullmatch(number):
            raise ValueError("no container has such an id")
        path = DOCKER / number / "config.v2.json"
    if which == OF_CONTAINERD:
        paths = [CONTAINERD / space / number / "config.json" for space in _SPACES]
        path = next((one for one in paths if one.is_file()), paths[0])
    return open_trusted(path, "it names containers", "only root may write it")


def has_managers() -> bool:
    """Whether Docker, Podman or containerd keeps containers here."""
    return DOCKER.is_dir() or PODMAN.parent.is_dir() or CONTAINERD.is_dir()


class Names:
    """opener: open_for_names(), in another process where this one may not read them."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def of(self, group: Group) -> Group:
        """The group with what is known of its container and its pod now."""
        found: dict[str, str] = {}
        if group.container_id:
            if group.runtime == "docker":
                found = self._read(OF_DOCKER, group.container_id, read_docker)
            elif group.runtime == "podman":
                found = self._read(OF_PODMAN, group.container_id, read_podman)
            elif group.runtime != "cri-o":
                found = self._read(OF_CONTAINERD, group.container_id, read_containerd)
            found = found or from_container_logs(group.container_id)
        if group.pod_uid and "pod" not in found:
            found |= from_pod_logs(group.pod_uid)
        if not group.container:
            found |= from_machines(group.unit, MACHINES)
        return replace(group, **found)

    def _read(
        self, which: int, number: str, parse: Callable[[Any, str], dict[str, str]]
    ) -> dict[str, str]:
        with suppress(TcpkmonError, OSError, *_NOT_AS_EXPECTED):
            with open(self._open(which, number.encode()), "rb") as file:
                data = file.read(_MOST_BYTES + 1)
            if len(data) <= _MOST_BYTES:
                return parse(json.loads(data), number)
        return {}


_NOT_AS_EXPECTED = (ValueError, RecursionError, AttributeError, TypeError, LookupError)
"""What a file raises that is no JSON, or has other types than its program writes."""


def read_docker(told: Any, number: str) -> dict[str, str]:
    """Of config.v2.json: {"ID": ..., "Name": "/web", "Config": {"Image": "nginx:1"}}."""
    if told.get("ID", number) != number:
        return {}
    name, config = told.get("Name"), told.get("Config") or {}
    container = name.lstrip("/") if isinstance(name, str) else None
    return _names(container=container, image=config.get("Image"))


def read_podman(told: Any, number: str) -> dict[str, str]:
    """Of containers.json: [{"id": ..., "names": ["web"], "metadata": JSON with image-name}]."""
    for one in told:
        if one.get("id") == number:
            names = one.get("names") or [""]
            metadata = json.loads(one.get("metadata") or "{}")
            return _names(container=names[0], image=metadata.get("image-name"))
    return {}


def read_containerd(told: Any, number: str) -> dict[str, str]:
    """Of an OCI bundle's config.json: the annotations of containerd's CRI, or of nerdctl."""
    notes = told.get("annotations") or {}
    cri = {name: notes.get(f"io.kubernetes.cri.{name}") for name in (
        "container-name", "sandbox-name", "sandbox-namespace", "image-name")}  # fmt: skip
    space, pod = cri["sandbox-namespace"], cri["sandbox-name"]
    found = _names(
        container=cri["container-name"] or notes.get("nerdctl/name"), image=cri["image-name"],
        pod=f"{space}/{pod}" if isinstance(space, str) and isinstance(pod, str) else None,
    )  # fmt: skip
    # With the driver cgroupfs, the path of a pod's container does not tell who runs it.
    return found and {**found, "runtime": "containerd"}


def from_machines(unit: str, folder: Path = MACHINES) -> dict[str, str]:
    """Of /run/systemd/machines/unit:UNIT, machined's link to the machine that runs in a unit."""
    with suppress(OSError, ValueError):
        if unit.endswith((".service", ".scope")):
            return _names(container=os.readlink(folder / f"unit:{unit}"), runtime="machined")
    return {}


def from_pod_logs(uid: str, folder: Path = POD_LOGS) -> dict[str, str]:
    """Of /var/log/pods/NAMESPACE_POD_UID."""
    for name in _listed(folder):
        parts = name.split("_")
        if len(parts) == 3 and parts[2] == uid:
            return _names(pod=f"{parts[0]}/{parts[1]}")
    return {}


def from_container_logs(number: str, folder: Path = CONTAINER_LOGS) -> dict[str, str]:
    """Of /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log."""
    for name in _listed(folder):
        if (found := _LOG.fullmatch(name)) is not None and found["id"] == number:
            return _names(container=found["name"], pod=f"{found['space']}/{found['pod']}")
    return {}


def _listed(folder: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST_FILES), entries, strict=False):
            yield entry.name


def _names(**found: Any) -> dict[str, str]:
    """Those that are text, at most as long as names are."""
    return {key: one[:_MOST_NAME] for key, one in found.items() if isinstance(one, str) and one}
