# SPDX-License-Identifier: Apache-2.0
"""Network namespaces have names in a capture's header: of ip netns, or of a process in them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.linux.netns import cookie_of, name_namespaces
from tests.live.capturing import capturing, wait_until, within


def test_names_of_namespaces(lab: Lab) -> None:
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as lonely:
        try:
            own = os.stat("/proc/self/ns/net").st_ino
            place = f"/proc/{lonely.pid}/ns/net"
            wait_until(lambda: os.stat(place).st_ino != own)
            with open(place) as space:
                cookie = cookie_of(space.fileno())
            names = name_namespaces()
        finally:
            lonely.kill()
    assert names[lab.a.namespace.cookie] == lab.a.name
    assert names[cookie].split()[0] == str(lonely.pid)
    with open("/proc/self/ns/net") as space:
        assert names[cookie_of(space.fileno())] == "own"


def test_a_capture_with_the_column_has_them(tmp_path: Path, lab: Lab) -> None:
    with capturing(tmp_path / "a.pm", "--columns", "all", *within(lab)) as run:
        spaces = run.stop().capture.settings["namespaces"]
    assert spaces[str(lab.a.namespace.cookie)] == lab.a.name
