# SPDX-License-Identifier: Apache-2.0
"""The time from the command to its first record, and the memory of a capture."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import tcpkmon
from scripts.experiments import tools
from scripts.experiments.context import Context
from scripts.experiments.load import BenchError
from scripts.experiments.machine import memory_mib
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.formats.base.control import EXISTING

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
    """Captures steady traffic, with a filled cache and with an empty one."""
    cache = context.folder / "cache"
    with Lab() as lab, trickle(lab):
        _start(context, cache)
        for _ in context.each_round(NAME):
            cached = _start(context, cache)
            shutil.rmtree(cache)
            fresh = _start(context, cache)
            fresh[COMPILE] = fresh[READY] - cached[READY]
            for case, found in ((CACHED, cached), (FRESH, fresh)):
                for subject, value in found.items():
                    context.results.add(NAME, subject, case, value)


def _start(context: Context, cache: Path) -> dict[str, float]:
    """One capture with default rings, stopped a moment after it is ready."""
    tool = replace(tools.collect("collect"), environment={"TCPKMON_CACHE": str(cache)})
    begun_ns = time.monotonic_ns()
    with tool.running(context.folder) as it:
        ready_s = (time.monotonic_ns() - begun_ns) / 1e9
        # Long enough for the rings to be read and written out some times.
        time.sleep(context.pick(0.5, 0.3))
        peak = memory_mib(it.process.pid)
        it.end()
        first_s = (_first_record_ns(it.file) - begun_ns) / 1e9
    return {FIRST: first_s, READY: ready_s, MEMORY: peak}


def _first_record_ns(file: Path) -> int:
    """CLOCK_MONOTONIC of the first event that was recorded as it happened."""
    with tcpkmon.open(file) as capture:
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
