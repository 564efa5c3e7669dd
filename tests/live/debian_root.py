# SPDX-License-Identifier: Apache-2.0
"""A minimal Debian 12 in a folder, for the tests of the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends"
# Everything mounted is in a mount namespace that ends with the shell.
_ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs none "$1/run"
exec chroot "$1" /bin/bash -c "$2"
"""


@contextmanager
def make_root(packages: Path, *include: str) -> Iterator[Path]:
    """A new one, with more of Debian's packages, and with the files of `packages` in /packages."""
    if not shutil.which("debootstrap"):
        subprocess.run(["apt-get", "-qq", "-y", "install", "debootstrap"], check=True)
    root = Path(tempfile.mkdtemp(prefix="tcpkmon-test-root-", dir="/var/tmp"))
    words = ["debootstrap", "--variant=minbase", "bookworm", str(root), MIRROR]
    if include:
        words.insert(1, f"--include={','.join(include)}")
    try:
        root.chmod(0o755)
        # What debootstrap mounts is gone with the namespace, whatever becomes of it.
        subprocess.run(["unshare", "-m", *words], check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(packages, root / "packages")
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        yield root
    finally:
        shutil.rmtree(root)


def run(root: Path, command: str) -> str:
    """What a command in the clean root prints."""
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", _ENTER, "bash", str(root), command],
        check=False, capture_output=True, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout
