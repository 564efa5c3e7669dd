# SPDX-License-Identifier: Apache-2.0
"""Run as a program by root in a Debian guest whose process 1 is systemd: tries the service tcpkmon.

See tests/live/test_service_live.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from guest_tools import (
    CALLS,
    FOLDER,
    PORT,
    WAIT_S,
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

CONFIG = Path("/etc/tcpkmon/tcpkmon.toml")
CAPTURE = """
[capture.tcp]
locations = ["SEND_CALL", "STATE_CHANGE"]
ports = [{ports}]
[capture.tcp.rotation]
every = "10s"
[control]
group = "tcpkmon"
"""


def configure(*ports: int) -> None:
    CONFIG.write_text(CAPTURE.format(ports=", ".join(map(str, ports))))


def test_unit() -> None:
    assert "tcpkmon" not in run("systemd-analyze", "verify", "--man=no", "tcpkmon.service")
    text = run("systemd-analyze", "security", "--no-pager", "tcpkmon")
    print(text, flush=True)
    level = re.findall(r"exposure level for tcpkmon.service: ([\d.]+)", text)
    assert float(level[0]) < 5.5, level


def test_start() -> None:
    configure(PORT)
    begun_s = time.monotonic()
    run("systemctl", "start", "tcpkmon")
    say(f"started in {time.monotonic() - begun_s:.1f} s")
    send()
    wait_until(lambda: recorded()[1] == CALLS, "all calls are in the file")
    wait_until(lambda: show("tcpkmon", "StatusText").endswith(" records/s, 0 lost"), "the status")
    print(run("systemctl", "status", "--no-pager", "--lines=0", "tcpkmon"), flush=True)


def test_sandbox() -> None:
    pid = show("tcpkmon", "MainPID")
    status = Path(f"/proc/{pid}/status").read_text()
    assert re.search(r"^NoNewPrivs:\s1$", status, re.M), status
    inside = ("nsenter", "--mount", f"--target={pid}")
    for path in ("/usr/new", "/etc/tcpkmon/new"):
        assert "Read-only file system" in run(*inside, "touch", path, code=1)
    assert run(*inside, "ls", "/root") == ""
    run(*inside, "touch", str(FOLDER.parent / "new"))
    (FOLDER.parent / "new").unlink()
    bounding = int(re.findall(r"^CapBnd:\s(\w+)$", status, re.M)[0], 16)
    assert not bounding & 1 << 16, "CAP_SYS_MODULE"
    say("confined")


def test_reload() -> None:
    configure(PORT, PORT + 1)
    before = show("tcpkmon", "MainPID")
    run("systemctl", "reload", "tcpkmon")
    wait_until(lambda: "changed while it goes on" in run("journalctl", "-u", "tcpkmon"), "reload")
    assert (show("tcpkmon", "MainPID"), show("tcpkmon", "ActiveState")) == (before, "active")
    send()
    wait_until(lambda: recorded()[1] == 2 * CALLS, "calls after the reload")
    say("reloaded")


def test_restart() -> None:
    before = show("tcpkmon", "MainPID")
    os.kill(int(before), 9)
    begun_s = time.monotonic()
    wait_for_restart("tcpkmon", before)
    say(f"goes on {time.monotonic() - begun_s:.1f} s after SIGKILL")
    assert show("tcpkmon", "NRestarts") == "1"
    send()
    wait_until(lambda: recorded()[1] == 3 * CALLS, "calls after the restart")


def test_stop() -> None:
    """A capture that somebody began by hand can still be asked."""
    ready, told = os.pipe()
    own = subprocess.Popen(
        ["collect", "-o", "/root/own.pm", "--locations", "SEND_CALL,STATE_CHANGE",
         "--ready-fd", str(told)], pass_fds=(told,),
    )  # fmt: skip
    os.close(told)
    assert os.read(ready, 1)
    run("systemctl", "stop", "tcpkmon")
    assert str(own.pid) in run("tcpkmon", "status")
    own.send_signal(signal.SIGINT)
    assert own.wait(WAIT_S) == 0
    assert (show("tcpkmon", "ActiveState"), show("tcpkmon", "Result")) == ("inactive", "success")
    say("stopped")
    verify_folder()


play(test_unit, test_start, test_sandbox, test_reload, test_restart, test_stop, journal=["tcpkmon"])
