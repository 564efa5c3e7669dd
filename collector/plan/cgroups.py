# SPDX-License-Identifier: Apache-2.0
"""Finds cgroups of version 2: one by name, for the filters, or all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tcpkmon.formats.base.errors import KernelError, PrivilegeError, UsageError

MOST_PATH = 4095


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of version 2."""

    path: str
    id: int
    """The inode of its directory."""
    level: int
    """Its depth; the root has 0."""


def find_cgroup(text: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> Cgroup:
    """The cgroup of this name: a directory, or a path below the root of cgroup2."""
    if not text or "\0" in text or len(text) > MOST_PATH:
        raise UsageError("--cgroup: this name is no cgroup", "give a directory of cgroup2")
    mounts = _mounts_of("--cgroup", mountinfo)
    candidates = [Path(text), *(Path(point) / text.lstrip("/") for point, _ in mounts)]
    for candidate in candidates:
        path = Path(os.path.realpath(candidate))
        try:
            if not path.is_dir():
                continue
            for point, root in sorted(mounts, key=lambda mount: -len(mount[0])):
                if path.is_relative_to(point) and path.stat().st_dev == os.stat(point).st_dev:
                    level = len(Path(root).parts[1:]) + len(path.relative_to(point).parts)
                    return Cgroup(str(path), path.stat().st_ino, level)
        except PermissionError:
            raise PrivilegeError(f"--cgroup: {path} may not be read", "run it as root") from None
        except OSError:  # a name that is too long, or it is gone
            continue
    raise UsageError(
        f"--cgroup: '{text}' is no directory of cgroup2", f"they are below {mounts[0][0]}"
    )


def check_mounted(option: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """KernelError, which names the option, where no cgroup2 is mounted."""
    _mounts_of(option, mountinfo)


def _mounts_of(option: str, mountinfo: Path) -> list[tuple[str, str]]:
    if mounts := list(_cgroup2_mounts(mountinfo.read_text(errors="surrogateescape"))):
        return mounts
    raise KernelError(
        f"{option}: no cgroup2 is mounted here",
        "`ip netns exec` hides it: run collect outside, with --netns NAME. "
        "Or mount -t cgroup2 none FOLDER",
    )


def _cgroup2_mounts(mountinfo: str) -> Iterable[tuple[str, str]]:
    """Mount point and root of each cgroup2 mount in a text of /proc/PID/mountinfo."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] == "cgroup2":
            root, point = before.split(" ")[3:5]
            yield re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), point), root


def walk_cgroups(
    most: int, mountinfo: Path = Path("/proc/self/mountinfo")
) -> Iterator[tuple[int, str]]:
    """Id and path below the root of cgroup2 of all that exist, parents first, at most so many.

    Nothing where no cgroup2 is mounted. Those that go meanwhile may be left out.
    """
    mounts = _cgroup2_mounts(mountinfo.read_text(errors="surrogateescape"))
    for mount, root in sorted(mounts, key=lambda one: len(one[1]))[:1]:
        waiting = [(mount, root.rstrip("/"))]
        with suppress(OSError):
            yield os.stat(mount).st_ino, root
            most -= 1
        while waiting and most > 0:
            folder, path = waiting.pop()
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False) and most > 0:
                        most -= 1
                        below = f"{path}/{entry.name}"
                        yield entry.inode(), below
                        waiting.append((entry.path, below))
