# SPDX-License-Identifier: Apache-2.0
"""Run as a program by root in a Debian guest whose process 1 is systemd: tries the service tcpkmon.

See tests/live/test_service_live.py.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
PORT, CALLS = 5998, 1000
FOLDER = Path("/var/lib/tcpkmon/tcp")
"""Of the service's capture."""
WAIT_S = 600.0
READ = """
import sys
from pathlib import Path
import tcpkmon
calls = 0
for path in Path(sys.argv[1]).glob("*.pm*"):
    with tcpkmon.open(path) as capture:
        calls += int((capture.column("location") == 9).sum())  # SEND_CALL
print(calls)
"""


def say(text: str) -> None:
    print(f"{time.monotonic():6.1f}  {text}", flush=True)


def run(*words: str, code: int | None = 0, **more: Any) -> str:
    """What a command prints; AssertionError where it ends with another exit code."""
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=WAIT_S, **more
    )
    assert code is None or done.returncode == code, (words, done)
    return done.stdout + done.stderr


def show(unit: str, name: str) -> str:
    """A property of a unit."""
    return run("systemctl", "show", "--value", "-p", name, unit).strip()


def wait_until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.5)


def wait_for_restart(unit: str, before: str) -> None:
    """Another process than this one is the unit's, and it is ready."""
    wait_until(lambda: show(unit, "MainPID") not in {"0", before}
               and show(unit, "ActiveState") == "active", "restart")  # fmt: skip


def send() -> None:
    """CALLS send calls of one byte, on one connection."""
    with socket.create_server(("127.0.0.1", PORT)) as listener:

        def drain() -> None:
            with listener.accept()[0] as end:
                while end.recv(1 << 16):
                    pass

        thread = threading.Thread(target=drain)
        thread.start()
        with socket.create_connection(("127.0.0.1", PORT)) as client:
            for _ in range(CALLS):
                client.send(b"x")
        thread.join()


def recorded() -> int:
    """The send calls in the files of FOLDER."""
    return int(run("/usr/lib/tcpkmon/bin/python3", "-c", READ, str(FOLDER)))


def verify_folder() -> None:
    """All files of FOLDER are sealed, and proven."""
    names = sorted(os.listdir(FOLDER))
    say(f"files: {names}")
    assert not [name for name in names if name.startswith(".")]
    text = run("tcpkmon", "verify", str(FOLDER), code=None)
    print(text, flush=True)
    assert "does not add up" not in text and "adds up" in text


def play(*tests: Callable[[], None], journal: Sequence[str] = ()) -> None:
    """Run them all; the last line that is printed is passed, or failed. With units whose journal
    says more, the first failure ends it."""
    failed = []
    for test in tests:
        say(test.__name__)
        try:
            test()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            failed.append(test.__name__)
            if journal:
                units = [f"--unit={name}" for name in journal]
                print(run("journalctl", "-b", "--no-pager", *units, code=None), flush=True)
                break
    print(f"failed: {', '.join(failed)}" if failed else "passed", flush=True)


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
    wait_until(lambda: recorded() == CALLS, "all calls are in the file")
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
    wait_until(lambda: recorded() == 2 * CALLS, "calls after the reload")
    say("reloaded")


def test_restart() -> None:
    before = show("tcpkmon", "MainPID")
    os.kill(int(before), 9)
    begun_s = time.monotonic()
    wait_for_restart("tcpkmon", before)
    say(f"goes on {time.monotonic() - begun_s:.1f} s after SIGKILL")
    assert show("tcpkmon", "NRestarts") == "1"
    send()
    wait_until(lambda: recorded() == 3 * CALLS, "calls after the restart")


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
