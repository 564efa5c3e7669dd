# SPDX-License-Identifier: Apache-2.0
"""Counted TCP traffic: starts both ends and returns the counts of each.

A Workload describes the traffic. An Exchange starts both ends, each in a process of its own and,
if wanted, in a network namespace. Its finish() returns the counts of each end. They count each
system call, so that a test can compare a capture with them.
"""

from __future__ import annotations

import json
import select
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from tcpkmon.collector.linux import isolated
from tcpkmon.formats.base.errors import TcpkmonError

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Workload:
    """The traffic between a client and a server.

    The client opens `connections`, `parallel` at a time. On each one it sends `count` messages of
    `size` bytes, one send() each. If `duration_s` is not 0, it sends blocks for that time instead.
    After each message it reads `reply` bytes. Then it closes; with `reset`, by an RST.
    """

    server: str
    """Where the client connects: an IPv4 or IPv6 address, or an IPv4-mapped one (::ffff:...)."""
    port: int = 0
    """0: any free port."""
    listen: str = ""
    """Where the server listens; `server` if empty ("::" is for both families)."""
    client: str = ""
    """The client's own address; any if empty."""
    client_port: int = 0
    """The client's own port, the same for every connection (plus n for worker n); 0: any."""
    connections: int = 1
    parallel: int = 1
    count: int = 1
    size: int = 1000
    reply: int = 0
    duration_s: float = 0.0
    reset: bool = False
    """Needs reply, or size 0: else the reset could discard data."""
    server_closes: bool = False
    """The server closes first, when it has all `count` messages."""
    congestion: str = ""
    """Congestion control of both ends; if empty, the namespace's default."""

    def __post_init__(self) -> None:
        if self.reset and self.size and self.count and not self.reply:
            raise ValueError("a reset connection needs replies, or its data might be lost")
        if self.server_closes and (self.duration_s or self.reset):
            raise ValueError("the server can close first only what is counted and not reset")


@dataclass
class Connection:
    """What one end counted of one connection."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    sends: int = 0
    """send() calls that sent something."""
    receives: int = 0
    """recv() calls, including the one that returned the end of the stream."""
    bytes_sent: int = 0
    bytes_received: int = 0
    was_reset: bool = False


@dataclass
class Tally:
    """The counts of one end; the connections in the order in which they began."""

    pid: int = 0
    connections: list[Connection] = field(default_factory=list)

    @property
    def sends(self) -> int:
        return sum(one.sends for one in self.connections)

    @property
    def receives(self) -> int:
        return sum(one.receives for one in self.connections)

    @property
    def bytes_sent(self) -> int:
        return sum(one.bytes_sent for one in self.connections)

    @property
    def bytes_received(self) -> int:
        return sum(one.bytes_received for one in self.connections)


@dataclass(frozen=True)
class Result:
    """What both ends of an exchange counted."""

    client: Tally
    server: Tally
    port: int


class Exchange:
    """A workload whose server listens, and whose client waits for go().

    client_netns, server_netns: descriptors of namespaces; None for the caller's.
    """

    def __init__(
        self, workload: Workload, client_netns: int | None = None, server_netns: int | None = None
    ) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        try:
            self.server = self._spawn("server", workload, server_netns)
            self.port = int(_line(self.server))
            known = replace(workload, port=self.port)
            self.client = self._spawn("client", known, client_netns)
            _line(self.client)
        except BaseException:
            self.stop()
            raise

    def go(self) -> None:
        """Let the client connect."""
        assert self.client.stdin is not None
        self.client.stdin.write("go\n")
        self.client.stdin.flush()

    @property
    def is_running(self) -> bool:
        """Whether the client has not ended yet."""
        return self.client.poll() is None

    def finish(self, timeout_s: float = TIMEOUT_S) -> Result:
        """Wait for both ends. TcpkmonError with the message of an end that failed."""
        try:
            client = _collect(self.client, "client", timeout_s)
            server = _collect(self.server, "server", timeout_s)
        finally:
            self.stop()
        return Result(client, server, self.port)

    def stop(self) -> None:
        """Kill both processes if they still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
        self._processes.clear()

    def _spawn(self, role: str, workload: Workload, netns: int | None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            isolated.command(
                "tcpkmon.collector.lab.endpoint",
                role,
                "-" if netns is None else str(netns),
                json.dumps(asdict(workload)),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=() if netns is None else (netns,),
            text=True,
        )
        self._processes.append(process)
        return process


def run(
    workload: Workload,
    client_netns: int | None = None,
    server_netns: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Result:
    """Start an Exchange, and return its result."""
    exchange = Exchange(workload, client_netns, server_netns)
    exchange.go()
    return exchange.finish(timeout_s)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
    text = process.stdout.readline() if ready else ""
    if not text:
        process.kill()
        raise TcpkmonError(f"traffic did not start: {process.communicate()[1].strip()}")
    return text


def _collect(process: subprocess.Popen[str], role: str, timeout_s: float) -> Tally:
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise TcpkmonError(f"the {role} of the traffic took over {timeout_s:.0f} s") from None
    if process.returncode:
        raise TcpkmonError(f"the {role} of the traffic failed: {err.strip()}")
    raw = json.loads(out)
    return Tally(raw["pid"], [Connection(**one) for one in raw["connections"]])
