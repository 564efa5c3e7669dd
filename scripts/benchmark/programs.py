# SPDX-License-Identifier: Apache-2.0
"""Real programs as work: a server at b, a client at a for each run, each on a CPU of its own."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.experiments import peers
from scripts.experiments.context import cpus
from scripts.experiments.load import BenchError, Done
from scripts.experiments.tools import cpu_seconds
from tcpkmon.collector.lab.lab import Lab

START_S = 10.0
FILE_BYTES = 4096
"""Of the file that nginx serves."""
SETS = 60_000
"""Commands of one run of redis-benchmark, of 64 bytes each."""
IPERF3_BYTES = "512M"
"""Of one run. Its times are whole seconds: too long for a round."""
_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.err;
events {{ worker_connections 512; }}
http {{
    access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000000;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen {address}:{port}; root {folder}; }}
}}
"""


def parse_wrk(text: str) -> tuple[int, float]:
    """Requests and seconds. ValueError where there are none, or some failed."""
    count = re.search(r"^\s*(\d+) requests in ", text, re.MULTILINE)
    rate = re.search(r"^Requests/sec:\s*([\d.]+)$", text, re.MULTILINE)
    if count is None or rate is None or not float(rate[1]):
        raise ValueError("wrk tells no numbers")
    if re.search(r"Socket errors|Non-2xx", text):
        raise ValueError("requests of wrk failed")
    # Its seconds have two digits.
    return int(count[1]), int(count[1]) / float(rate[1])


def parse_redis(text: str) -> tuple[int, float]:
    """Commands and seconds of `redis-benchmark --csv`. ValueError for anything else."""
    rate = re.search(r'^"SET","([\d.]+)"', text, re.MULTILINE)
    if rate is None or not float(rate[1]):
        raise ValueError("redis-benchmark tells no numbers")
    return SETS, SETS / float(rate[1])


def parse_iperf3(text: str) -> tuple[int, float]:
    """Bytes and seconds of `iperf3 --json`. ValueError for anything else."""
    try:
        sent: Any = json.loads(text)["end"]["sum_sent"]
        return int(sent["bytes"]), float(sent["seconds"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"iperf3 tells no numbers: {error}") from None


@dataclass(frozen=True)
class Program:
    """What runs at both ends; {address}, {port} and {folder} are filled in.

    needs: the programs by their names in peers.PACKAGES. parse: of what the client prints, a
    count and its seconds. files: what the server reads, by name.
    """

    needs: Sequence[str]
    port: int
    server: Sequence[str]
    client: Sequence[str]
    parse: Callable[[str], tuple[int, float]]
    files: dict[str, str]


NGINX = Program(
    ("nginx", "wrk"), 8080, ("nginx", "-p", "{folder}", "-c", "{folder}/nginx.conf"),
    ("wrk", "-t", "1", "-c", "32", "-d", "1s", "http://{address}:{port}/file"),
    parse_wrk, {"nginx.conf": _NGINX, "file": "x" * FILE_BYTES},
)  # fmt: skip
REDIS = Program(
    ("redis-server", "redis-benchmark"), 6379,
    ("redis-server", "--bind", "{address}", "--port", "{port}", "--dir", "{folder}", "--save", "",
     "--protected-mode", "no", "--daemonize", "no"),
    ("redis-benchmark", "-h", "{address}", "-p", "{port}", "-t", "set", "-n", str(SETS), "-c", "50",
     "-d", "64", "--csv"),
    parse_redis, {},
)  # fmt: skip
IPERF3 = Program(
    ("iperf3",), 5201, ("iperf3", "--server", "--port", "{port}"),
    ("iperf3", "--client", "{address}", "--port", "{port}", "--json", "--bytes", IPERF3_BYTES),
    parse_iperf3, {},
)  # fmt: skip


class Served:
    """A program's server at b, from when it listens; each run starts a client at a."""

    def __init__(self, lab: Lab, folder: Path, program: Program) -> None:
        self._lab, self._folder, self._program = lab, folder, program
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Served:
        self._folder.mkdir()
        for name, text in self._program.files.items():
            one = self._folder / name
            one.write_text(self._filled(text) if name.endswith(".conf") else text, "utf-8")
        said = self._folder / "said"
        with said.open("wb") as sink:
            self._server = self._lab.b.start(
                self._pinned(cpus()[1], self._program.server), stdout=sink, stderr=sink
            )
        end = time.monotonic() + START_S
        while self._server.poll() is None and time.monotonic() < end:
            if f":{self._program.port} " in self._lab.b.command(["ss", "-Hltn"]):
                return self
            time.sleep(0.02)
        self.__exit__()
        raise BenchError(f"{self._program.needs[0]} does not start: {peers.complaint(said)}")

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def run(self) -> Done:
        """One run of the client; CPU time is that of both programs."""
        assert self._server is not None
        before, used = resource.getrusage(resource.RUSAGE_CHILDREN), cpu_seconds(self._server.pid)
        said = self._lab.a.command(self._pinned(cpus()[0], self._program.client))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        client_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        count, seconds = self._program.parse(said)
        return Done(count, seconds, client_s + cpu_seconds(self._server.pid) - used)

    def _pinned(self, cpu: int, command: Sequence[str]) -> list[str]:
        return ["taskset", "-c", str(cpu), *map(self._filled, command)]

    def _filled(self, text: str) -> str:
        return text.format(
            address=self._lab.b.address4, port=self._program.port, folder=self._folder
        )
