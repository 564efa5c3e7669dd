# SPDX-License-Identifier: Apache-2.0
"""tcpkmon diff on real transfers: settings, a real difference, and no false alarm."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.pair import join, listening

SERVER = "10.77.0.2"
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
PROGRAMS = Path(sys.executable).parent
CLIENT = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.create_connection(("10.77.0.2", int(sys.argv[1]))) as end:
        end.sendall(bytes(300_000))
        end.shutdown(socket.SHUT_WR)
        end.recv(1)
"""


def drain(end: socket.socket) -> None:
    with suppress(OSError), end:
        while end.recv(1 << 20):
            pass


def transfer(lab: Lab, listener: socket.socket, size: int, algorithm: str = "cubic") -> None:
    """One connection: so many bytes from a to b."""
    option = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
    pair = join(lab.a, listener, SERVER, [option])
    reader = threading.Thread(target=drain, args=(pair.server,))
    reader.start()
    pair.client.sendall(bytes(size))
    pair.client.close()
    reader.join()


def diff(*words: object) -> tuple[int, dict[str, Any]]:
    done = subprocess.run([PROGRAMS / "tcpkmon", "diff", *map(str, words), "--json"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def results(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["metric"]: one for one in told["metrics"]}


def record(
    lab: Lab, paths: Sequence[Path], transfers: int, size: int, algorithms: Sequence[str]
) -> None:
    """A capture for each path, at the same time, of transfers in turn to a port of its own."""
    # Else a connection begins with what the one before learned.
    lab.a.run(partial(Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text, "1"))
    with ExitStack() as stack:
        listeners = [stack.enter_context(listening(lab.b, SERVER)) for _ in paths]
        for path, listener in zip(paths, listeners, strict=True):
            options = ["--format", "psc", "--netns", lab.a.name, "--quiet", "--columns",
                       "default,ca_name", "--ports", str(listener.getsockname()[1])]  # fmt: skip
            stack.enter_context(start("tcp", path, force=True, options=options))
        for _ in range(transfers):
            for listener, algorithm in zip(listeners, algorithms, strict=True):
                transfer(lab, listener, size, algorithm)


@pytest.mark.full
def test_the_setting_comes_first(tmp_path: Path) -> None:
    """The same transfers with another default congestion control: told before all metrics."""
    with Lab() as lab:
        default = lab.a.run(CONTROL.read_text).strip()
    if default == "reno":
        pytest.skip("reno is this machine's default")
    for algorithm in (default, "reno"):
        with Lab() as lab, listening(lab.b, SERVER) as listener:
            lab.a.run(partial(CONTROL.write_text, algorithm))
            port = str(listener.getsockname()[1])
            words = [PROGRAMS / "collect", "--format", "psc", "-q", "-o", tmp_path / algorithm,
                     "--columns", "default,ca_name", "--netns", lab.a.name, "--ports", port, "--",
                     sys.executable, "-c", CLIENT, port, "8"]  # fmt: skip
            process = lab.a.start([str(word) for word in words])
            for _ in range(8):
                drain(listener.accept()[0])
            assert process.wait(60) == 0
    command = [PROGRAMS / "tcpkmon", "diff", tmp_path / default, tmp_path / "reno"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in out.splitlines()]
    settings = {line[0]: line[1:] for line in lines if line}
    assert settings["net.ipv4.tcp_congestion_control"] == [default, "reno"]
    assert settings["congestion"] == ["control", default, "reno"]
    first = next(n for n, line in enumerate(lines) if "control" in line)
    assert first < next(n for n, line in enumerate(lines) if line[:1] == ["goodput_mean"])
    _, told = diff(tmp_path / default, tmp_path / "reno")
    assert {row["a"]["n"] for row in told["metrics"]} == {8}


def equal_pair(folder: Path, in_turn: bool) -> dict[str, Any]:
    """Two captures of equal transfers, in turn or one after the other: in what they differ."""
    paths = [folder / "a.pm", folder / "b.pm"]
    with Lab(Bottleneck(rate_mbit=100, queue_bytes=200_000)) as lab:
        for some in [paths] if in_turn else [[path] for path in paths]:
            record(lab, some, 12, 300_000, ["cubic"] * len(some))
    _, told = diff(*paths, "--unproven-ok")
    return {name: (one["change"], one["p"]) for name, one in results(told).items()
            if one["result"] == "differs"}  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("in_turn", [True, False], ids=["in_turn", "afterwards"])
def test_equal_captures_give_at_most_one_false_alarm_in_20(tmp_path: Path, in_turn: bool) -> None:
    alarms = [found for _ in range(20) if (found := equal_pair(tmp_path, in_turn))]
    print(f"{len(alarms)} of 20: {alarms}")
    assert len(alarms) <= 1
