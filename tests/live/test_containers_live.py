# SPDX-License-Identifier: Apache-2.0
"""Whose the connections of real containers are: daemons of Docker and containerd run on this
kernel, in namespaces of their own, and end with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.capturing import ROOT
from tests.live.cri_client import UID
from tests.live.grouped_workload import root_of

PACKAGES = ("docker.io", "containerd", "runc", "iptables", "busybox-static", "python3-grpcio")
ROOM = """
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs tmpfs /run
for folder in etc var; do
    mkdir -p /run/over/$folder/upper /run/over/$folder/work
    mount -t overlay -o lowerdir=/$folder,upperdir=/run/over/$folder/upper \
        -o workdir=/run/over/$folder/work overlay /$folder
done
mkdir -p /etc/docker /etc/containerd /var/lib/docker /var/lib/containerd
for folder in docker containerd; do mount -t tmpfs tmpfs /var/lib/$folder; done
ip link set lo up
exec "$@"
"""
"""Everything that the daemons write, but their control groups, is in memory."""


GROUPS = ("docker", "default", f"kubepods/burstable/pod{UID}")
"""That the daemons leave behind."""


@pytest.fixture
def cgroup2() -> Iterator[None]:
    root = root_of(Path("/proc/self/mountinfo").read_text())
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no control group of version 2 can be made here")
    yield
    for group in GROUPS:
        for folder, _, _ in os.walk(root / group, topdown=False):
            with suppress(OSError):  # it is not ours alone
                os.rmdir(folder)
        for above in list((root / group).parents)[: group.count("/")]:
            with suppress(OSError):
                os.rmdir(above)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cgroup2")
def test_docker_and_containerd() -> None:
    """See containers_guest.py."""
    if not all(map(shutil.which, ("dockerd", "ctr", "runc", "iptables", "busybox"))):
        done = subprocess.run(["apt-get", "-qq", "-y", "install", *PACKAGES], check=False)
        if done.returncode:
            pytest.skip(f"cannot install {' '.join(PACKAGES)}")
    program = Path(__file__).with_name("containers_guest.py")
    path = f"{ROOT}/.venv/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
    told = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
         "bash", "-c", ROOM, "bash", "/usr/bin/python3", program],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(told.stdout, told.stderr)
    assert told.stdout.splitlines()[-1:] == ["passed"], told.stderr
