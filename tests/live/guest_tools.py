# SPDX-License-Identifier: Apache-2.0
"""What the programs share that try tcpkmon in a Debian guest: commands, traffic, captures.

They are copied into the guest's root beside this file; see tests/live/test_service_live.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PORT, CALLS = 5998, 1000
FOLDER = Path("/var/lib/tcpkmon/tcp")
"""Of the service's capture."""
WAIT_S = 600.0
READ = """
import json, sys
from pathlib import Path
import tcpkmon
syns, calls = [], 0
for path in Path(sys.argv[1]).glob("*.pm*"):
    with tcpkmon.open(path) as capture:
        names = ("location", "callvalue", "rport", "time_ns")
        for location, value, port, at in zip(*(capture.column(name).tolist() for name in names)):
            calls += location == 9  # SEND_CALL
            if (location, value) == (4, 2):  # STATE_CHANGE, to SYN_SENT
                syns.append((at, port))
print(json.dumps([sorted(syns), calls]))
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


def recorded() -> tuple[list[tuple[int, int]], int]:
    """The SYNs in the files of FOLDER, the hidden one's too, as (CLOCK_MONOTONIC ns, remote port;
    the local one is not chosen yet), and the send calls."""
    syns, calls = json.loads(run("/usr/lib/tcpkmon/bin/python3", "-c", READ, str(FOLDER)))
    return syns, calls


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
