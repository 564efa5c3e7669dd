# SPDX-License-Identifier: Apache-2.0
"""`tcpkmon metrics` as root: hostile clients, and the file in a folder that is another user's."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tcpkmon.collector.commands.metrics_server import CLIENT_S
from tests.full import first
from tests.live.capturing import wait_until
from tests.live.faults import TCPKMON, environment
from tests.live.test_metrics_live import fetch, free_port, process

NOBODY = 65534


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may reach."""
    with tempfile.TemporaryDirectory(prefix="tcpkmon-test-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def test_a_request_has_one_deadline() -> None:
    """A client that sends a byte now and then is not heard for longer than others."""
    port = free_port()
    with process(TCPKMON, "metrics", "--listen", f"127.0.0.1:{port}"):
        wait_until(lambda: fetch(f"http://127.0.0.1:{port}/metrics"), timeout_s=40)
        with socket.create_connection(("127.0.0.1", port), timeout=3 * CLIENT_S) as client:
            began_s = time.monotonic()
            ended = threading.Event()

            def drip() -> None:
                try:
                    while not ended.wait(0.5):
                        client.sendall(b"G")
                except OSError:
                    pass

            dripping = threading.Thread(target=drip)
            dripping.start()
            try:
                assert client.recv(1) == b""
            except ConnectionError:
                pass
            except TimeoutError:
                pytest.fail("it waits for this client on and on")
            finally:
                ended.set()
                dripping.join()
            assert CLIENT_S - 1 < time.monotonic() - began_s < CLIENT_S + 5


@pytest.mark.parametrize("owner", first(1, [NOBODY, 0]))
def test_the_file_in_the_folder_of_node_exporter(shared: Path, owner: int) -> None:
    """It belongs to whom the folder belongs, is written again, and follows no link."""
    folder = shared / "node-exporter"
    folder.mkdir(mode=0o755)
    os.chown(folder, owner, owner)
    victim = shared / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    path = folder / "tcpkmon.prom"
    path.symlink_to(victim)
    words = [TCPKMON, "metrics", "--textfile", str(path)]
    done = subprocess.run([*words, "--once"], env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o644
    assert (found.st_uid, found.st_gid) == (owner, owner)
    assert "tcpkmon_captures" in path.read_text()
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o600)
    path.unlink()
    with process(*words, "--interval", "1") as writer:
        wait_until(path.exists, timeout_s=40)
        status = Path("/proc", str(writer.pid), "status").read_text().splitlines()
        who = next(line.split()[1:] for line in status if line.startswith("Uid:"))
        assert not {"0", str(owner)} & {*who}
        children = Path("/proc", str(writer.pid), "task", str(writer.pid), "children")
        (deputy,) = children.read_text().split()
        lines = Path("/proc", deputy, "status").read_text().splitlines()
        rows = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert {*rows["Uid"].split()} == {str(owner)}
        assert int(rows["CapEff"], 16) == int(rows["CapPrm"], 16) == 0
        path.unlink()
        wait_until(path.exists, timeout_s=10)
    assert [one.name for one in folder.iterdir()] == ["tcpkmon.prom"]
    wait_until(lambda: not Path("/proc", deputy).exists(), timeout_s=10)


def test_no_link_leads_to_the_file(shared: Path) -> None:
    """Who may write in a folder above could lead root elsewhere."""
    (shared / "real").mkdir()
    (shared / "link").symlink_to(shared / "real")
    shared.chmod(0o777)
    words = [TCPKMON, "metrics", "--once", "--textfile", str(shared / "link" / "out.prom")]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is a symbolic link in a folder that others may write; " in done.stderr
    assert f"name the folder itself: {shared / 'real'}" in done.stderr
    assert not [*(shared / "real").iterdir()]
