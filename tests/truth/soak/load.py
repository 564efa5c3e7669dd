# SPDX-License-Identifier: Apache-2.0
"""Counted load: floods that run, burst and rest, and connections that come and go."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from tcpkmon.collector.linux.netns import run_inside
from tests.live.faults import Flood, Space
from tests.live.flooding import PERIOD

SAMPLE_S = 0.2
RATES = (500, 2000, 5000)
BURST = 60_000
CHURN_PERIOD = 1000
CHUNK = 256
"""A flood notes how many calls it made after so many."""
I64 = npt.NDArray[np.int64]


class Load:
    """Receive calls, numbered from 0: call k gets k % period + 1 bytes on a connection of `port`.

    samples: (CLOCK_MONOTONIC in ns, calls that were made by then).
    """

    def __init__(self, name: str, port: int, period: int) -> None:
        self.name, self.port, self.period = name, port, period
        self.samples: list[tuple[int, int]] = []

    def made(self) -> int:
        """How many calls, to within the last few hundred."""
        raise NotImplementedError

    def play(self, chance: random.Random, stop: threading.Event, machine: threading.Lock) -> None:
        """Make calls until `stop` is set. machine: held while CPUs must stay as they are."""
        raise NotImplementedError

    def sample(self) -> None:
        """Note how many calls were made by now."""
        self.samples.append((time.monotonic_ns(), self.made()))

    def numbers(self, lengths: I64, mono_ns: I64) -> I64:
        """The calls' numbers, by their lengths and when they were made."""
        near = self.by(mono_ns)
        rest = lengths - 1
        return rest + np.round((near - rest) / self.period).astype(np.int64) * self.period

    def by(self, mono_ns: I64) -> I64:
        """How many calls were made by these times."""
        times, calls = np.array(self.samples).T
        made: I64 = np.interp(mono_ns, times, calls).astype(np.int64)
        return made


class Flooding(Load):
    """A flood that changes its rate by itself."""

    def __init__(self, flood: Flood, cpu: int) -> None:
        super().__init__(f"flood on CPU {cpu}", flood.port, PERIOD)
        self.cpu = cpu
        self.total = 0
        self._flood = flood

    def made(self) -> int:
        return self._flood.calls

    def play(self, chance: random.Random, stop: threading.Event, machine: threading.Lock) -> None:
        while not stop.is_set():
            kind = chance.choice(("steady", "steady", "burst", "idle"))
            if kind != "idle":
                with machine:
                    rate = chance.choice(RATES) if kind == "steady" else 0
                    self._flood.begin(self.cpu, 0 if rate else chance.randrange(BURST), rate)
            if kind != "burst":
                stop.wait(chance.uniform(1, 6))
            if kind == "steady":
                self._flood.halt()
            elif kind == "burst":
                self._flood.end()
        self.total = self._flood.calls


class Churn(Load):
    """Short connections: each makes one call."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._listener = space.run(lambda: socket.create_server(("127.0.0.1", 0)))
        super().__init__("short connections", self._listener.getsockname()[1], CHURN_PERIOD)
        self.total = 0

    def made(self) -> int:
        return self.total

    def play(self, chance: random.Random, stop: threading.Event, machine: threading.Lock) -> None:
        run_inside(self._space.fd, lambda: self._play(chance, stop, machine))

    def _play(
        self, chance: random.Random, stop: threading.Event, machine: threading.Lock
    ) -> None:
        while not stop.wait(chance.uniform(0.5, 3)):
            with machine:
                pass
            for _ in range(chance.randrange(100)):
                length = self.total % self.period + 1
                with socket.create_connection(("127.0.0.1", self.port)) as client:
                    server, _ = self._listener.accept()
                    with server:
                        client.sendall(bytes(length))
                        while len(server.recv(length, socket.MSG_PEEK)) < length:
                            pass
                        self.total += 1
        self._listener.close()


@contextmanager
def playing(space: Space, cpus: list[int], seed: int, machine: threading.Lock) -> Iterator[
    tuple[list[Load], threading.Event]
]:  # fmt: skip
    """The loads, which play in threads until the event is set."""
    stop = threading.Event()
    with ExitStack() as stack:
        loads: list[Load] = [Flooding(stack.enter_context(Flood(space)), cpu) for cpu in cpus]
        loads.append(Churn(space))
        threads = [
            threading.Thread(target=load.play, args=(random.Random(seed + at), stop, machine))
            for at, load in enumerate(loads)
        ]

        def sample() -> None:
            while any(thread.is_alive() for thread in threads):
                for load in loads:
                    load.sample()
                time.sleep(SAMPLE_S)
            for load in loads:
                load.sample()

        sampler = threading.Thread(target=sample)
        for load in loads:
            load.sample()
        for thread in (*threads, sampler):
            thread.start()
        try:
            yield loads, stop
        finally:
            stop.set()
            for thread in (*threads, sampler):
                thread.join()
