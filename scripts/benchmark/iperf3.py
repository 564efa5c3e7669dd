# SPDX-License-Identifier: Apache-2.0
"""iperf3 between the two ends of a lab."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from scripts.experiments import peers
from scripts.experiments.context import cpus
from scripts.experiments.load import BenchError, Done
from tcpkmon.collector.lab.lab import Lab

BYTES = "512M"
"""Of one run. Its times are whole seconds: too long for a round."""
PORT = "5201"
START_S = 10.0


class Iperf3:
    """A server at b; each run starts a client at a. A context manager."""

    def __init__(self, lab: Lab, said: Path) -> None:
        """said: the file into which the server prints."""
        self._lab = lab
        self._said = said
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Iperf3:
        with self._said.open("wb") as sink:
            self._server = self._lab.b.start(
                ["iperf3", "--server", "--port", PORT, "--forceflush"], stdout=sink, stderr=sink
            )
        end = time.monotonic() + START_S
        while self._server.poll() is None and time.monotonic() < end:
            if "listening" in self._said.read_text(encoding="utf-8"):
                return self
            time.sleep(0.01)
        self.__exit__()
        raise BenchError(f"the server of iperf3 does not start: {peers.complaint(self._said)}")

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def run(self) -> Done:
        """One transfer of BYTES; the count is of bytes."""
        first, last = cpus()
        said = self._lab.a.command([
            "iperf3", "--client", self._lab.b.address4, "--port", PORT, "--json",
            "--bytes", BYTES, "--affinity", f"{first},{last}",
        ])  # fmt: skip
        return parse(said)


def parse(text: str) -> Done:
    """What `iperf3 --json` says of its transfer. Raises ValueError for anything else."""
    try:
        end: Any = json.loads(text)["end"]
        sent, cpu = end["sum_sent"], end["cpu_utilization_percent"]
        percent = cpu["host_total"] + cpu["remote_total"]
        return Done(sent["bytes"], sent["seconds"], percent / 100 * sent["seconds"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"iperf3 tells no numbers: {error}") from None
