# SPDX-License-Identifier: Apache-2.0
"""What the programs share that ask in a Debian guest whose connections are: captures, and a server.

They are copied into the guest's root beside this file; see tests/live/test_service_live.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PORT = 5998
OUT = Path("/run/captures")
WAIT_S = 240.0
COLUMNS = "default,cgroup,uid,pid,comm,protocols,mptcp_token"


def say(text: str) -> None:
    print(f"{time.monotonic():6.1f}  {text}", flush=True)


def run(*words: str, code: int | None = 0, **more: Any) -> str:
    """What a command prints; AssertionError where it ends with another exit code."""
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=WAIT_S, **more
    )
    assert code is None or done.returncode == code, (words, done)
    return done.stdout + done.stderr


@contextmanager
def serving(port: int) -> Iterator[None]:
    """Accepts and closes what comes."""
    listener = socket.create_server(("0.0.0.0", port), backlog=512)

    def serve() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end:
                end.recv(100)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextmanager
def capturing(**options: str) -> Iterator[None]:
    """Captures of these names, with these options each."""
    OUT.mkdir(exist_ok=True)
    running = []
    for name, more in options.items():
        ready, told = os.pipe()
        words = ["collect", "-o", f"{OUT}/{name}.pm", "--force", "--columns", COLUMNS,
                 "--ready-fd", str(told), *more.split()]  # fmt: skip
        running.append(subprocess.Popen(words, pass_fds=(told,)))
        os.close(told)
        assert os.read(ready, 1), f"collect did not start: {words}"
        os.close(ready)
    try:
        yield
    finally:
        for one in running:
            one.send_signal(signal.SIGINT)
        assert all(one.wait(WAIT_S) == 0 for one in running)


def rows_of(name: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["tcpkmon", "connections", "--format", "json", "--columns", "all", f"{OUT}/{name}.pm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 3), done  # on an emulated CPU a program may miss an event
    return list(json.loads(done.stdout)["connections"])


def play(*tests: Callable[[], None]) -> None:
    """Run them all; the last line that is printed is passed, or failed."""
    failed = []
    for test in tests:
        say(test.__name__)
        try:
            test()
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            failed.append(test.__name__)
    print(f"failed: {', '.join(failed)}" if failed else "passed", flush=True)
