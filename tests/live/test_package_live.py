# SPDX-License-Identifier: Apache-2.0
"""The Debian packages, in a clean Debian 12: installed, used, upgraded during a capture, purged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.debian_root import INSTALL, make_root, run

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(1200)]

TRAFFIC = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 5999))
def serve():
    connection, _ = listener.accept()
    while connection.recv(65536):
        pass
thread = threading.Thread(target=serve)
thread.start()
with socket.create_connection(("127.0.0.1", 5999)) as client:
    for _ in range(100):
        client.sendall(bytes(1000))
thread.join()
"""


@pytest.fixture
def debian(packages: Path) -> Iterator[Path]:
    with make_root(packages) as root:
        (root / "traffic.py").write_text(TRAFFIC)
        yield root


def test_installed_used_upgraded_and_purged(debian: Path) -> None:
    run(debian, f"apt-get -qq update && {INSTALL} /packages/tcpkmon_*-1_amd64.deb")
    assert run(debian, "getent group tcpkmon").startswith("tcpkmon:")
    assert ".tcpkmon-image" in run(debian, "ls /var/cache/tcpkmon")
    assert "can capture here" in run(debian, "tcpkmon doctor")
    run(debian, "collect -q --ports 5999 --locations default,SEND_CALL -o /first.pm "
                "-- /usr/bin/python3 /traffic.py")  # fmt: skip
    assert "nothing lost" in run(debian, "tcpkmon verify /first.pm")
    rows = run(debian, "tcpkmon export --format csv /first.pm").splitlines()
    assert sum(",SEND_CALL," in row for row in rows) == 100
    assert len(run(debian, "ls /usr/share/man/man1/tcpkmon.1* /usr/share/man/man1/collect.1* "
                           "/usr/share/man/man1/pmgraph.1*").splitlines()) == 3  # fmt: skip
    assert run(debian, "tcpkmon daemon --check").endswith("1 capture: tcp\n")
    assert run(debian, "ls /lib/systemd/system/tcpkmon.service")
    assert run(debian, "ls /usr/share/doc/tcpkmon/why.md /usr/share/tcpkmon/alerts.yml")
    hint = run(debian, "pmgraph /first.pm -c -o /first.png 2>&1 || :")
    assert "sudo apt install tcpkmon-analysis" in hint
    assert "tcpkmon" not in run(debian, "ls /etc/systemd/system/multi-user.target.wants || :")
    for shell, words in {
        "bash": "COMP_WORDS='tcpkmon ver' COMP_CWORD=1",
        "zsh": "COMP_WORDS='tcpkmon ver' COMP_CWORD=1",
        "fish": "COMP_WORDS='tcpkmon ver' COMP_CWORD=ver",
    }.items():
        assert "verify" in run(debian, f"{words} _TCPKMON_COMPLETE={shell}_complete tcpkmon")

    upgrade = f"{INSTALL} /packages/tcpkmon_*-2_amd64.deb"
    traffic = "/usr/bin/python3 /traffic.py"
    run(debian, "collect -q --ports 5999 -o /second.pm -- "
                f"/bin/sh -c '{traffic}; {upgrade}; {traffic}'")  # fmt: skip
    assert "-2" in run(debian, "dpkg-query -W tcpkmon")
    assert "nothing lost" in run(debian, "tcpkmon verify /second.pm")
    closed = run(debian, "tcpkmon export --format csv /second.pm | grep -c CLOSE")
    assert int(closed) >= 4  # both transfers, both ends

    run(debian, f"{INSTALL} /packages/tcpkmon-analysis_*-2_amd64.deb")
    run(debian, "tcpkmon export --format parquet -o /second.parquet /second.pm")
    run(debian, "pmgraph /second.pm -c -o /second.png")

    run(debian, "apt-get -qq -y purge tcpkmon tcpkmon-analysis")
    left = [line for line in run(debian, "find / -xdev -path '*tcpkmon*'").splitlines()
            if not line.startswith(("/packages", "/proc", "/sys"))]  # fmt: skip
    assert left == []
