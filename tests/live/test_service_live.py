# SPDX-License-Identifier: Apache-2.0
"""The service of the Debian package under systemd: Debian 12, with its cloud kernel, emulated."""

from __future__ import annotations

import shutil
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from tests.live.debian_root import INSTALL, make_root, run

KERNEL = "linux-image-cloud-amd64"
DISK_BYTES = 3 << 30
CAPTURES_BYTES = 64 << 20
BOOT_S = 1200
UNIT = """
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'exec /usr/bin/python3 /{program} >/dev/ttyS1 2>&1'
ExecStopPost=/usr/bin/systemctl poweroff --no-block
[Install]
WantedBy=graphical.target
"""

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(3600)]


def make_disk(root: Path, disk: Path) -> None:
    """A disk made of what is in a folder, and an empty one for captures."""
    for path, size, more in ((disk, DISK_BYTES, ("-d", root)), (second(disk), CAPTURES_BYTES, ())):
        subprocess.run(["truncate", "-s", str(size), path], check=True)
        subprocess.run(["mkfs.ext4", "-q", *more, path], check=True)
    for name in ("vmlinuz", "initrd.img"):
        (found,) = root.glob(f"boot/{name}-*")
        shutil.copy(found, disk.with_name(name))


def second(disk: Path) -> Path:
    """The captures' disk."""
    return disk.with_name("captures")


def boot(disk: Path) -> str:
    """Boot a disk, which has another machine behind its network card: it echoes what comes to
    10.0.2.100:7, and that is all of the network. Returns what the guest's program printed."""
    said = disk.with_name("said")
    drives = [("-drive", f"file={path},format=raw,if=virtio") for path in (disk, second(disk))]
    subprocess.run(
        ["qemu-system-x86_64", "-accel", "tcg", "-cpu", "Nehalem", "-smp", "2", "-m", "2G",
         "-kernel", disk.with_name("vmlinuz"), "-initrd", disk.with_name("initrd.img"),
         *chain.from_iterable(drives),
         "-append", "root=/dev/vda rw console=ttyS0 mitigations=off nowatchdog audit=0 "
         "no_timer_check panic=-1",
         "-nic", "user,model=virtio-net-pci,restrict=on,guestfwd=tcp:10.0.2.100:7-cmd:cat",
         "-display", "none", "-no-reboot",
         "-serial", f"file:{disk.with_name('console')}", "-serial", f"file:{said}"],
        check=True, stdin=subprocess.DEVNULL, timeout=BOOT_S,
    )  # fmt: skip
    return said.read_text(errors="replace")


@pytest.mark.parametrize(("program", "boots"), [("service_guest.py", 1), ("early_guest.py", 2)])
def test_the_service(packages: Path, tmp_path: Path, program: str, boots: int) -> None:
    """The service; and from boot on."""
    if not shutil.which("qemu-system-x86_64"):
        subprocess.run(["apt-get", "-qq", "-y", "install", "qemu-system-x86"], check=True)
    disk = tmp_path / "disk"
    with make_root(packages, "systemd-sysv", KERNEL, "zstd") as root:
        run(root, f"apt-get -qq update && {INSTALL} /packages/tcpkmon_*-1_amd64.deb")
        for name in (program, "guest_tools.py"):
            shutil.copy(Path(__file__).with_name(name), root)
        (root / "etc/systemd/system/check.service").write_text(UNIT.format(program=program))
        run(root, "systemctl set-default graphical.target && systemctl enable check.service")
        if boots > 1:
            run(root, f"python3 /{program} prepare")
        shutil.rmtree(root / "packages")
        make_disk(root, disk)
    for _ in range(boots):
        said = boot(disk)
        print(said)
        assert said.splitlines()[-1:] == ["passed"], said
