# SPDX-License-Identifier: Apache-2.0
"""The service of the Debian package under systemd: Debian 12, with its cloud kernel, emulated."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.live.debian_root import INSTALL, make_root, run

KERNEL = "linux-image-cloud-amd64"
DISK_BYTES = 3 << 30
BOOT_S = 1200
UNIT = """
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'exec /usr/bin/python3 /service_guest.py >/dev/ttyS1 2>&1'
ExecStopPost=/usr/bin/systemctl poweroff --no-block
[Install]
WantedBy=graphical.target
"""

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(3600)]


def make_disk(root: Path, disk: Path) -> None:
    """A disk made of what is in a folder."""
    subprocess.run(["truncate", "-s", str(DISK_BYTES), disk], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-d", root, disk], check=True)
    for name in ("vmlinuz", "initrd.img"):
        (found,) = root.glob(f"boot/{name}-*")
        shutil.copy(found, disk.with_name(name))


def boot(disk: Path) -> str:
    """Boot a disk; what the guest's program printed."""
    said = disk.with_name("said")
    subprocess.run(
        ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "Nehalem", "-smp", "2", "-m", "2G",
         "-kernel", disk.with_name("vmlinuz"), "-initrd", disk.with_name("initrd.img"),
         "-drive", f"file={disk},format=raw,if=virtio",
         "-append", "root=/dev/vda rw console=ttyS0 mitigations=off nowatchdog audit=0 "
         "no_timer_check panic=-1",
         "-nic", "user,model=virtio-net-pci,restrict=on",
         "-display", "none", "-no-reboot",
         "-serial", f"file:{disk.with_name('console')}", "-serial", f"file:{said}"],
        check=True, stdin=subprocess.DEVNULL, timeout=BOOT_S,
    )  # fmt: skip
    return said.read_text(errors="replace")


def test_the_service(packages: Path, tmp_path: Path) -> None:
    if not shutil.which("qemu-system-x86_64"):
        subprocess.run(["apt-get", "-qq", "-y", "install", "qemu-system-x86"], check=True)
    disk = tmp_path / "disk"
    with make_root(packages, "systemd-sysv", KERNEL, "zstd") as root:
        run(root, f"apt-get -qq update && {INSTALL} /packages/tcpkmon_*-1_amd64.deb")
        shutil.copy(Path(__file__).with_name("service_guest.py"), root)
        (root / "etc/systemd/system/check.service").write_text(UNIT)
        run(root, "systemctl set-default graphical.target && systemctl enable check.service")
        shutil.rmtree(root / "packages")
        make_disk(root, disk)
    said = boot(disk)
    assert said.splitlines()[-1:] == ["passed"], said
