# SPDX-License-Identifier: Apache-2.0
"""The lab and its traffic, checked against the kernel: other tests rely on them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.lab import traffic
from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.namespaces import remove_stale
from tcpkmon.collector.lab.traffic import Workload
from tcpkmon.collector.linux import netns
from tcpkmon.formats.base.errors import UsageError
from tests.full import first
from tests.live.faults import listen

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0


def named() -> set[str]:
    return set(os.listdir(netns.NAMED)) if netns.NAMED.exists() else set()


def run(lab: Lab, workload: Workload) -> traffic.Result:
    return traffic.run(workload, lab.a.namespace.fd, lab.b.namespace.fd)


# Namespaces


def test_a_lab_leaves_nothing_behind() -> None:
    with Lab() as lab:
        names = {lab.a.name, lab.b.name}
        assert names <= named()
    assert not names & named()
    lab.close()


def test_a_lab_cleans_up_after_an_error() -> None:
    names: set[str] = set()
    with pytest.raises(ZeroDivisionError), Lab(Bottleneck()) as lab:
        names = {lab.a.name, lab.b.name}
        raise ZeroDivisionError
    assert names
    assert not names & named()


SLEEPER = """
import signal, sys
from tcpkmon.collector.lab.lab import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)
with Lab() as lab:
    print(lab.a.name, lab.b.name, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    "number", first(2, [signal.SIGKILL, signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
)
def test_a_lab_does_not_outlive_its_process(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=listen,  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        names = set(process.stdout.readline().split())
        assert len(names) == 2
        assert names <= named()
        process.send_signal(number)
        try:
            process.wait(WAIT_S)
        finally:
            process.kill()
    if number == signal.SIGKILL:
        assert names <= named()
        remove_stale()
    assert not names & named()


def test_namespaces_are_found_by_name_pid_and_path(lab: Lab) -> None:
    with netns.resolve(str(netns.NAMED / lab.a.name)) as by_path:
        assert by_path.inode == lab.a.namespace.inode
        assert by_path.cookie == lab.a.namespace.cookie
    with lab.a.start(["sleep", "600"]) as process:
        try:
            with netns.resolve(str(process.pid)) as by_pid:
                assert by_pid.cookie == lab.a.namespace.cookie
        finally:
            process.kill()
    with netns.resolve(str(os.getpid())) as mine:
        cookies = {mine.cookie, lab.a.namespace.cookie, lab.b.namespace.cookie}
        assert len(cookies) == 3


NOWHERE = ["", "no-such-namespace", "999999999", "/nowhere", "/etc/passwd", "a\0b"]


@pytest.mark.parametrize("text", NOWHERE, ids=repr)
def test_unknown_namespaces_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        netns.resolve(text)
    assert caught.value.hint


# The bottleneck


@pytest.mark.parametrize("server", first(1, ["10.77.0.2", "fd77::2"]))
def test_a_full_queue_loses_packets_unknown_to_the_sender(server: str) -> None:
    with Lab(Bottleneck(rate_mbit=20, queue_bytes=20_000)) as lab:
        result = run(lab, Workload(server, count=100, size=30_000, congestion="reno"))
        assert result.server.bytes_received == 3_000_000
        assert lab.router is not None
        queue = lab.router.command(["tc", "-s", "qdisc", "show"])
        lost = max(int(count) for count in re.findall(r"dropped (\d+)", queue))
        assert lost > 0
        counters = lab.a.command(["cat", "/proc/thread-self/net/snmp"])
        rows = [line.split() for line in counters.splitlines() if line.startswith("Tcp:")]
        assert int(dict(zip(*rows, strict=True))["RetransSegs"]) >= lost


# Traffic


@pytest.mark.parametrize(
    ("server", "listen", "seen"),
    [
        ("10.77.0.2", "", "10.77.0.1"),
        ("fd77::2", "", "fd77::1"),
        ("::ffff:10.77.0.2", "", "::ffff:10.77.0.1"),
        ("10.77.0.2", "::", "::ffff:10.77.0.1"),
    ],
)
def test_sends_are_counted(lab: Lab, server: str, listen: str, seen: str) -> None:
    result = run(lab, Workload(server, listen=listen, count=101, size=77, reply=5))
    assert result.client.sends == result.server.sends == 101
    assert result.server.bytes_received == 101 * 77
    assert result.client.bytes_received == 101 * 5
    (client,), (end,) = result.client.connections, result.server.connections
    assert (end.remote, end.remote_port) == (seen, client.local_port)
    assert client.remote_port == end.local_port == result.port
