# SPDX-License-Identifier: Apache-2.0
"""The Debian packages, in a clean Debian 12: installed, used, upgraded during a capture, purged."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
# Everything mounted is in a mount namespace that ends with the shell.
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs none "$1/run"
exec chroot "$1" /bin/bash -c "$2"
"""
TRAFFIC = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 5999))
def serve():
    connection, _ = listener.accept()
    while connection.recv(65536):
        pass
thread = threading.Thread(target=serve)
thread.start()
with socket.create_connection(("127.0.0.1", 5999)) as client:
    for _ in range(100):
        client.sendall(bytes(1000))
thread.join()
"""
INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends"

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two revisions of both packages, 1 and 2."""
    folder = tmp_path_factory.mktemp("packages")
    for revision in ("1", "2"):
        words = ("scripts/package", "--out", str(folder), "--revision", revision)
        subprocess.run(words, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def debian(packages: Path) -> Iterator[Path]:
    """A minimal Debian 12 with the packages' files in /packages."""
    if not shutil.which("debootstrap"):
        subprocess.run(["apt-get", "-qq", "-y", "install", "debootstrap"], check=True)
    root = Path("/var/tmp/tcpkmon-test-root")
    shutil.rmtree(root, ignore_errors=True)
    words = ("debootstrap", "--variant=minbase", "bookworm", str(root), MIRROR)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(packages, root / "packages")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "traffic.py").write_text(TRAFFIC)
    yield root
    shutil.rmtree(root)


def run(root: Path, command: str) -> str:
    """What a command in the clean root prints."""
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", ENTER, "bash", str(root), command],
        check=False, capture_output=True, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_installed_used_upgraded_and_purged(debian: Path) -> None:
    run(debian, f"apt-get -qq update && {INSTALL} /packages/tcpkmon_*-1_amd64.deb")
    assert run(debian, "getent group tcpkmon").startswith("tcpkmon:")
    assert "can capture here" in run(debian, "tcpkmon doctor")
    run(debian, "collect -q --ports 5999 -o /first.pm -- /usr/bin/python3 /traffic.py")
    assert "nothing lost" in run(debian, "tcpkmon verify /first.pm")
    rows = run(debian, "tcpkmon export --format csv /first.pm").splitlines()
    assert len(rows) > 100
    assert run(debian, "tcpkmon daemon --check").endswith("1 capture: tcp\n")
    assert run(debian, "ls /lib/systemd/system/tcpkmon.service")
    assert "tcpkmon" not in run(debian, "ls /etc/systemd/system/multi-user.target.wants || :")
    for shell, words in {
        "bash": "COMP_WORDS='tcpkmon ver' COMP_CWORD=1",
        "zsh": "COMP_WORDS='tcpkmon ver' COMP_CWORD=1",
        "fish": "COMP_WORDS='tcpkmon ver' COMP_CWORD=ver",
    }.items():
        assert "verify" in run(debian, f"{words} _TCPKMON_COMPLETE={shell}_complete tcpkmon")

    upgrade = f"{INSTALL} /packages/tcpkmon_*-2_amd64.deb"
    traffic = "/usr/bin/python3 /traffic.py"
    run(debian, "collect -q --ports 5999 -o /second.pm -- "
                f"/bin/sh -c '{traffic}; {upgrade}; {traffic}'")  # fmt: skip
    assert "-2" in run(debian, "dpkg-query -W tcpkmon")
    assert "nothing lost" in run(debian, "tcpkmon verify /second.pm")
    closed = run(debian, "tcpkmon export --format csv /second.pm | grep -c CLOSE")
    assert int(closed) >= 4  # both transfers, both ends

    run(debian, f"{INSTALL} /packages/tcpkmon-analysis_*-2_amd64.deb")
    run(debian, "tcpkmon export --format parquet -o /second.parquet /second.pm")
    run(debian, "pmgraph /second.pm -c -o /second.png")

    run(debian, "apt-get -qq -y purge tcpkmon tcpkmon-analysis")
    left = [line for line in run(debian, "find / -xdev -path '*tcpkmon*'").splitlines()
            if not line.startswith(("/packages", "/proc", "/sys"))]  # fmt: skip
    assert left == []
