# SPDX-License-Identifier: Apache-2.0
"""The metrics of a capture of counted traffic, as a Prometheus of its own scrapes them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.commands import openmetrics
from tcpkmon.collector.control.choosing import choose, named
from tcpkmon.collector.control.client import Client
from tests.live.capturing import ROOT, Running, capturing, wait_until
from tests.live.faults import as_nobody
from tests.live.test_control_live import GROUP, as_user, group_name
from tests.unit.test_metrics import expressions

CONNECTIONS, MESSAGES, BYTES = 30, 20, 1000
LIMIT_S = 40


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        port: int = trial.getsockname()[1]
        return port


def serve(listener: socket.socket) -> None:
    for _ in range(CONNECTIONS):
        with listener.accept()[0] as end:
            while end.recv(1 << 16):
                pass


def transfer(port: int) -> None:
    """Connections with counted bytes, each closed by the client."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        for _ in range(CONNECTIONS):
            with socket.create_connection(("127.0.0.1", port)) as end:
                for _ in range(MESSAGES):
                    end.sendall(bytes(BYTES))
        thread.join()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tcpkmon-test-", dir="/run") as made:
        os.chmod(made, 0o755)
        monkeypatch.setenv("TCPKMON_RUN", f"{made}/run")
        yield Path(made, "run")


@contextmanager
def process(*words: str, stderr: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        words, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=stderr,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def tcpkmon(*words: str) -> list[str]:
    program = "from tcpkmon.collector.commands.tcpkmon import main; main()"
    return [sys.executable, "-c", program, *words]


def fetch(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


class Prometheus:
    """Debian's Prometheus, with a configuration and a database of the test's own."""

    def __init__(self, folder: Path, target: str) -> None:
        self._port = free_port()
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "t", "static_configs": [{"targets": [target]}]}],
        }))  # fmt: skip
        self.words = [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=error",
        ]  # fmt: skip

    def query(self, text: str) -> list[dict[str, Any]] | None:
        """The result, None while it does not answer. AssertionError for a wrong expression."""
        query = urllib.parse.urlencode({"query": text})
        text = fetch(f"http://127.0.0.1:{self._port}/api/v1/query?{query}")
        if text is None:
            return None
        answer = json.loads(text)
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, text: str) -> float | None:
        """The only value of a query."""
        found = self.query(text)
        return float(found[0]["value"][1]) if found and len(found) == 1 else None


def check_counts(prometheus: Prometheus, client: Client) -> None:
    """Prometheus has what the capture and the traffic count."""
    whole = CONNECTIONS * MESSAGES * BYTES
    told = client.status()
    for row in told["events"]:
        where = f'{{location="{row["name"]}"'
        written = prometheus.value(f'tcpkmon_events_total{where},outcome="written"}}')
        assert written == row["written"], row
        # The other events of this machine, which the filter drops, go on: Prometheus's own too.
        every = prometheus.value(f"sum(tcpkmon_events_total{where}}})")
        assert every is not None and row["written"] <= every <= row["attempts"]
    assert prometheus.value("tcpkmon_records_total") == told["records"] > CONNECTIONS * 8
    for cause, count in told["lost"].items():
        label = cause.replace(" ", "_")
        assert prometheus.value(f'tcpkmon_lost_records_total{{cause="{label}"}}') == count
    for role in ("client", "server"):
        mine = f'{{role="{role}"}}'
        assert prometheus.value(f"tcpkmon_tcp_connections_opened_total{mine}") == CONNECTIONS
        assert prometheus.value(f"sum(tcpkmon_tcp_connections_closed_total{mine})") == CONNECTIONS
        count = f"tcpkmon_tcp_connection_duration_seconds_count{mine}"
        assert prometheus.value(count) == CONNECTIONS
    assert prometheus.value("tcpkmon_tcp_handshake_duration_seconds_count") == CONNECTIONS
    for direction in ("sent", "received"):
        count = prometheus.value(f'tcpkmon_tcp_bytes_total{{direction="{direction}"}}')
        assert count is not None and 0 <= count - whole <= 4 * CONNECTIONS, "but SYN and FIN"
    segments = next(row for row in told["events"] if row["name"] == "SEGMENT_RECEIVED")["written"]
    assert prometheus.value("tcpkmon_tcp_rtt_seconds_count") == segments
    assert prometheus.value('tcpkmon_captures{answered="yes"}') == 1
    for side in ("client", "server"):
        count = prometheus.value(f'tcpkmon_request_duration_seconds_count{{side="{side}"}}')
        assert count == 0, "nobody answered"
    for text in expressions():
        assert prometheus.query(text) is not None, text


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")
def test_prometheus_has_what_the_capture_counted(folder: Path, tmp_path: Path) -> None:
    ports = free_port(), free_port()
    group = group_name(GROUP)
    words = ["--ports", str(ports[0]), "--control-group", group, "--metrics", "--requests"]
    with capturing(tmp_path / "run.pm", *words) as running:
        client = Client(choose())
        transfer(ports[0])
        listen = f"127.0.0.1:{ports[1]}"
        serving = tcpkmon("metrics", "--listen", listen, "--group", group)
        prometheus = Prometheus(tmp_path, listen)
        with process(*serving, stderr=subprocess.PIPE) as exporter, process(*prometheus.words):
            text = wait_until(lambda: fetch(f"http://{listen}/metrics"), timeout_s=LIMIT_S)
            assert "tcpkmon_capture_proven" in text
            check_user(exporter.pid)
            name = "tcpkmon_capture_info"
            wait_until(lambda: prometheus.query(name), timeout_s=LIMIT_S)
            wait_until(
                lambda: prometheus.value("tcpkmon_records_total") == client.status()["records"],
                timeout_s=LIMIT_S,
            )
            check_counts(prometheus, client)
            found = prometheus.query(name)
            assert found and found[0]["metric"]["capture"] == "run.pm"
        check_others(running, folder, tmp_path)
        running.interrupt()
        running.stop().check_complete()


def check_user(pid: int) -> None:
    """The exporter that root started is somebody else, in the control group alone."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert "0" not in status["Uid"].split()
    assert status["Groups"].split() == [str(GROUP)]
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["NoNewPrivs"] == "1"


def check_others(running: Running, folder: Path, tmp_path: Path) -> None:
    """A stranger gets the public counts alone; a unix socket and a file have the same metrics."""
    stranger = as_user(folder, (), "metrics", "--once").stdout
    assert "tcpkmon_events_total" in stranger and "tcpkmon_tcp" not in stranger
    assert 'capture="run.pm"' in stranger and str(tmp_path) not in stranger
    assert 'version=""' not in stranger
    path = tmp_path / "m.sock"
    with process(*tcpkmon("metrics", "--listen", f"unix:{path}", "--group", group_name(GROUP))):
        wait_until(path.exists, timeout_s=LIMIT_S)
        words = ["curl", "-s", "--unix-socket", str(path), "http://localhost/metrics"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        assert "tcpkmon_tcp_rtt_seconds_bucket" in done.stdout
        words[-1:] = ["-f", "http://localhost/nope"]
        assert subprocess.run(words, check=False, timeout=LIMIT_S).returncode == 22, "404"
    text = tmp_path / "tcpkmon.prom"
    words = [*tcpkmon("metrics", "--once", "--group", group_name(GROUP), "--textfile"), str(text)]
    subprocess.run(words, cwd=ROOT, check=True)
    assert "tcpkmon_tcp_rtt_seconds_bucket" in text.read_text()
    assert text.stat().st_mode & 0o777 == 0o644
    promtool = subprocess.run(
        ["promtool", "check", "metrics"], input=text.read_text(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert not promtool.stderr, "names and help as Prometheus wants them"


def test_all_users_and_commands_have_the_same_names(folder: Path, tmp_path: Path) -> None:
    """Two captures of one name; the first one to begin has it, whatever its PID."""
    ports = free_port(), free_port()
    outputs = [tmp_path / where / "run.pm" for where in ("one", "two")]
    for output in outputs:
        output.parent.mkdir()
    with (
        capturing(outputs[0], "--ports", str(ports[0])) as first,
        capturing(outputs[1], "--ports", str(ports[1])) as second,
    ):
        wanted = {"run.pm": first.process.pid, "run.pm-2": second.process.pid}
        assert {name: one.pid for name, one in named().items()} == wanted
        assert set(openmetrics.ask_all()[0]) == set(wanted)
        for name, pid in wanted.items():
            asked = ["status", "--json", "--collector", name]
            for user, words in enumerate((tcpkmon(*asked), as_nobody("tcpkmon", *asked))):
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stderr
                told = json.loads(done.stdout)
                assert told["name"] == name
                assert user or told["pid"] == pid
    assert not list(folder.glob("*.name")), "they go with their sockets"
