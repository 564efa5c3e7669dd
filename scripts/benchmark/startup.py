# SPDX-License-Identifier: Apache-2.0
"""Section 4: from the command to its first record, and the memory that a capture takes."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import formats
from collector.lab.lab import Lab
from formats.base.control import EXISTING
from scripts.benchmark.context import BenchError, Context
from scripts.benchmark.tools import COLLECT, WAIT_S

NAME = "start-up"
TITLE = "Start-up and memory"
CACHED = "program in the cache"
FRESH = "program compiled anew"
FIRST = "first record, seconds"
READY = "ready, seconds"
COMPILE = "compiling, seconds"
MEMORY = "memory (peak RSS), MiB"
PAUSE_S = 0.002


def measure(context: Context) -> None:
    """Captures traffic that runs all the time, from a filled cache and from an empty one."""
    cache = context.folder / "cache"
    with Lab() as lab, trickle(lab):
        _start(context, cache)
        for number in range(context.rounds):
            context.say(f"{NAME}: round {number + 1} of {context.rounds}")
            cached = _start(context, cache)
            shutil.rmtree(cache)
            fresh = _start(context, cache)
            fresh[COMPILE] = fresh[READY] - cached[READY]
            for case, found in ((CACHED, cached), (FRESH, fresh)):
                for subject, value in found.items():
                    context.results.add(NAME, subject, case, value)


def _start(context: Context, cache: Path) -> dict[str, float]:
    """One capture with default rings, stopped once it is ready."""
    file = context.folder / "start.pm"
    ready, answer = os.pipe()
    begun_ns = time.monotonic_ns()
    command = [str(COLLECT), "-q", "--force", "-o", str(file), "--ready-fd", str(answer)]
    with subprocess.Popen(
        command,
        pass_fds=(answer,),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TCPKMON_CACHE": str(cache)},
    ) as process:
        os.close(answer)
        try:
            if not select.select([ready], [], [], WAIT_S)[0] or not os.read(ready, 1):
                process.kill()
                raise BenchError(f"collect does not start: {process.communicate()[1]!r}")
            ready_s = (time.monotonic_ns() - begun_ns) / 1e9
            # Long enough for the rings to be read and written out some times.
            time.sleep(context.pick(0.5, 0.3))
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            process.send_signal(signal.SIGINT)
            process.wait(WAIT_S)
        finally:
            os.close(ready)
            process.kill()
    peak = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    assert peak is not None
    first_s = (_first_record_ns(file) - begun_ns) / 1e9
    return {FIRST: first_s, READY: ready_s, MEMORY: int(peak[1]) / 1024}


def _first_record_ns(file: Path) -> int:
    """CLOCK_MONOTONIC of the first event that was recorded as it happened."""
    with formats.open(file) as capture:
        mono_ns = capture.mono_ns()
        live = ~capture.control() & (capture.column("location") != EXISTING)
    at = np.flatnonzero(live)
    if mono_ns is None or not len(at):
        raise BenchError("collect recorded nothing of the traffic")
    return int(mono_ns[at].min())


@contextlib.contextmanager
def trickle(lab: Lab) -> Iterator[None]:
    """A segment every two milliseconds within one end of the lab."""

    def connect() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            return client, listener.accept()[0]

    client, server = lab.a.run(connect)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.wait(PAUSE_S):
            server.sendall(b"x")
            client.recv(1)

    thread = threading.Thread(target=exchange, daemon=True)
    with client, server:
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
