# SPDX-License-Identifier: Apache-2.0
"""Trees of tcpkmon to compare: folders, or revisions that are unpacked and set up."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmark.session import ROOT, commit
from tcpkmon.formats.base.errors import TcpkmonError, UsageError

GIT = ("git", "-c", "safe.directory=*", "-C", str(ROOT))


@dataclass(frozen=True)
class Tree:
    """A tree with its environment; `name` is what the user called it."""

    name: str
    commit: str
    root: Path

    @property
    def programs(self) -> Path:
        """The folder with its `collect`."""
        return self.root / ".venv" / "bin"


@contextlib.contextmanager
def tree(name: str, say: Callable[[str], None]) -> Iterator[Tree]:
    """The tree of that name: a folder, else a git revision, which is removed at the end.

    UsageError for neither, TcpkmonError when it cannot be set up.
    """
    folder = Path(name)
    if folder.is_dir():
        root = folder.absolute()
        if not (root / "scripts" / "setup").is_file():
            raise UsageError(f"{name} is no tree of tcpkmon", "it has no scripts/setup")
        _set_up(root, name, say)
        yield Tree(name, commit(root), root)
        return
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode:
        raise UsageError(f"{name} is neither a folder nor a revision", "git log lists revisions")
    with tempfile.TemporaryDirectory(prefix="tcpkmon-tree-", dir="/var/tmp") as place:
        root, packed = Path(place, "tree"), Path(place, "tree.tar")
        root.mkdir()
        archived = _git("archive", "-o", str(packed), found.stdout.strip())
        if archived.returncode:
            raise TcpkmonError(f"{name} cannot be unpacked: {archived.stderr.strip()}")
        subprocess.run(["tar", "-xf", str(packed), "-C", str(root)], check=True)
        _set_up(root, name, say)
        yield Tree(name, found.stdout[:7], root)


def _set_up(root: Path, name: str, say: Callable[[str], None]) -> None:
    say(f"{name}: scripts/setup (a minute when new)")
    done = subprocess.run(
        ["bash", str(root / "scripts" / "setup")],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise TcpkmonError(f"{name} cannot be set up: {said}")


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GIT, *arguments], capture_output=True, text=True, check=False)
