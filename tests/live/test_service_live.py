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
ExecStart=/bin/sh -c 'exec /usr/bin/python3 /{program} >/dev/ttyS1 2>&1'
ExecStopPost=/usr/bin/systemctl poweroff --force
[Install]
WantedBy=graphical.target
"""

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(1800)]


def boot(root: Path, disk: Path) -> str:
    """Boot what is in a folder, from a disk made of it; what the guest's program printed."""
    subprocess.run(["truncate", "-s", str(DISK_BYTES), disk], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-d", root, disk], check=True)
    (kernel,), (initrd,) = root.glob("boot/vmlinuz-*"), root.glob("boot/initrd.img-*")
    said = disk.with_name("said")
    subprocess.run(
        ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "Nehalem", "-smp", "2", "-m", "2G",
         "-kernel", kernel, "-initrd", initrd, "-drive", f"file={disk},format=raw,if=virtio",
         "-append", "root=/dev/vda rw console=ttyS0 mitigations=off nowatchdog audit=0",
         "-display", "none", "-nic", "none", "-no-reboot",
         "-serial", f"file:{disk.with_name('console')}", "-serial", f"file:{said}"],
        check=True, stdin=subprocess.DEVNULL, timeout=BOOT_S,
    )  # fmt: skip
    return said.read_text(errors="replace")


CONTAINERS = ("podman", "crun", "uidmap", "slirp4netns", "dbus-user-session", "libpam-systemd",
              "systemd-container", "busybox-static", "kmod")  # fmt: skip


@pytest.mark.parametrize(("program", "more"), [("service_guest.py", ()),
                                               ("units_guest.py", CONTAINERS)])  # fmt: skip
def test_the_service(
    packages: Path, tmp_path: Path, program: str, more: tuple[str, ...]
) -> None:
    """The service; and whose connections are, of real units and containers."""
    if not shutil.which("qemu-system-x86_64"):
        subprocess.run(["apt-get", "-qq", "-y", "install", "qemu-system-x86"], check=True)
    with make_root(packages, "systemd-sysv", KERNEL, "zstd") as root:
        words = " ".join(("/packages/tcpkmon_*-1_amd64.deb", *more))
        run(root, f"apt-get -qq update && {INSTALL} {words}")
        shutil.copy(Path(__file__).with_name(program), root)
        (root / "etc/systemd/system/check.service").write_text(UNIT.format(program=program))
        run(root, "systemctl set-default graphical.target && systemctl enable check.service")
        shutil.rmtree(root / "packages")
        said = boot(root, tmp_path / "disk")
    print(said)
    assert said.splitlines()[-1:] == ["passed"], said
