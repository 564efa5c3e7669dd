# SPDX-License-Identifier: Apache-2.0
"""Run as a program by root in a Debian guest whose process 1 is systemd: captures from boot on.

    early_guest.py prepare      in the root, before it boots
    early_guest.py first        a unit's process: connects as soon as the network is there
    early_guest.py              the checks

The captures' folder is on a disk of its own, which is mounted when the first connection is over.
The guest boots twice; what a boot recorded must be whole in the next one. See
tests/live/test_service_live.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from guest_tools import (
    CALLS,
    FOLDER,
    play,
    recorded,
    run,
    say,
    send,
    show,
    verify_folder,
    wait_for_restart,
    wait_until,
)

ECHO = ("10.0.2.100", 7)  # qemu's, behind the network card
MEMORY = Path("/run/tcpkmon-early/tcp")
FIRST, PAST = Path("/run/first.json"), Path("/root/past.json")
FILES = {
    "tcpkmon/tcpkmon.toml": """
[capture.tcp]
locations = ["SEND_CALL", "STATE_CHANGE"]
[capture.tcp.rotation]
every = "1h"
""",
    "systemd/network/wire.network": """
[Match]
Type=ether
[Network]
Address=10.0.2.15/24
""",
    "systemd/system/first.service": f"""
[Unit]
DefaultDependencies=no
After=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 {__file__} first
[Install]
WantedBy=sysinit.target
""",
    # The first boot compiles, on an emulated CPU.
    "systemd/system/tcpkmon-early.service.d/slow.conf": "[Service]\nTimeoutStartSec=15min\n",
    "fstab": """
/dev/vda / ext4 defaults 0 0
/dev/vdb /var/lib/tcpkmon ext4 x-systemd.after=first.service 0 0
""",
}


def entered_s(unit: str) -> float:
    """When a unit became active (CLOCK_MONOTONIC)."""
    return int(show(unit, "ActiveEnterTimestampMonotonic")) / 1e6


def prepare() -> None:
    for name, text in FILES.items():
        path = Path("/etc", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    # Where both are enabled, the one from boot on runs.
    run("systemctl", "enable", "tcpkmon-early", "tcpkmon", "systemd-networkd", "first")


def first() -> None:
    """Connect when there is a way to the other end: before, no SYN is sent."""
    while True:
        try:
            with socket.create_connection(ECHO, 60) as client:
                at_s = time.monotonic()
                for _ in range(CALLS):
                    client.send(b"x")
                received = 0
                while received < CALLS:
                    received += len(client.recv(CALLS))
            break
        except OSError:
            time.sleep(0.02)
    FIRST.write_text(json.dumps(at_s))


def active_opens() -> int:
    """Connections that the kernel began since boot."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )  # fmt: skip
    return int(values[names.index("ActiveOpens")])


class Boot:
    """One boot. past: the SYNs that earlier ones left in the folder; calls: what it must have."""

    def __init__(self) -> None:
        known = json.loads(PAST.read_text()) if PAST.exists() else (1, [], 0)
        self.number, self.past, self.calls = known

    def test_units(self) -> None:
        units = ("tcpkmon-early.service", "tcpkmon-early-disk.service")
        assert "tcpkmon" not in run("systemd-analyze", "verify", "--man=no", *units)
        wait_until(lambda: all(show(each, "ActiveState") == "active" for each in units), str(units))
        for each in (*units, "network-pre.target", "first.service", "var-lib-tcpkmon.mount"):
            say(f"active at {entered_s(each):6.2f} s: {each}")
        attached = entered_s("tcpkmon-early")
        began = int(show("tcpkmon-early", "ExecMainStartTimestampMonotonic")) / 1e6
        say(f"boot {self.number}: attached {attached - began:.1f} s after its start")
        assert attached <= entered_s("network-pre.target")
        assert show("tcpkmon", "ActiveState") == "inactive"

    def test_moved(self) -> None:
        wait_until(lambda: not MEMORY.exists(), "nothing stays in memory")
        assert os.stat(FOLDER).st_dev == os.stat("/dev/vdb").st_rdev
        told = run("journalctl", "-b", "-u", "tcpkmon-early")
        assert "files of the time before the disks are in" in told, told

    def test_first_syn(self) -> None:
        """The kernel counts as many SYNs as the file has; the first is that of the unit."""
        at_s = json.loads(FIRST.read_text())
        count = active_opens()
        found, calls = recorded()
        syns = [one for one in found if one not in self.past]
        assert len(syns) == count, (syns, count)
        self.calls += CALLS
        assert calls == self.calls, (calls, self.calls)
        at_ns, port = syns[0]
        assert port == ECHO[1], syns
        syn_s, mounted_s = at_ns / 1e9, entered_s("var-lib-tcpkmon.mount")
        assert entered_s("tcpkmon-early") <= syn_s <= at_s < mounted_s
        say(f"the first SYN of {count} is in the file, at {syn_s:.2f} s")

    def send(self, why: str) -> None:
        send()
        self.calls += CALLS
        wait_until(lambda: recorded()[1] == self.calls, f"{CALLS} calls {why}")
        say(f"recorded: {CALLS} calls {why}")

    def test_goes_on(self) -> None:
        self.send("on the disk")

    def test_killed(self) -> None:
        before = show("tcpkmon-early", "MainPID")
        os.kill(int(before), 9)
        wait_for_restart("tcpkmon-early", before)
        assert not MEMORY.exists()
        self.send("after SIGKILL and restart")

    def test_relieved(self) -> None:
        """The service takes its place, in the same folder, and it that of the service."""
        if self.number == 1:
            return
        for one, other in (("tcpkmon", "tcpkmon-early"), ("tcpkmon-early", "tcpkmon")):
            run("systemctl", "start", one)
            state = (show(other, "ActiveState"), show(other, "Result"))
            assert state == ("inactive", "success"), state
            assert show(one, "NRestarts") == "0"
            self.send(f"of {one}, which took the place of {other}")
        run("systemctl", "stop", "tcpkmon-early")

    def test_files(self) -> None:
        """What earlier boots wrote is sealed, and proven; all of it at the end."""
        syns, _ = recorded()
        PAST.write_text(json.dumps([self.number + 1, syns, self.calls]))
        if self.number == 1:
            return
        verify_folder()


def main() -> None:
    boot = Boot()
    play(
        boot.test_units, boot.test_moved, boot.test_first_syn, boot.test_goes_on,
        boot.test_killed, boot.test_relieved, boot.test_files,
        journal=["tcpkmon*", "first", "var-lib-tcpkmon.mount"],
    )  # fmt: skip


{"prepare": prepare, "first": first}.get("".join(sys.argv[1:2]), main)()
