# SPDX-License-Identifier: Apache-2.0
"""In a guest of arm64: unpacks the Debian package beside the results, and captures with it.

tests/live/test_package_arm64_live.py runs it. The userland there is itself only unpacked, so the
scripts of the package do not run. The programs are compiled in the guest: no file of the repository
is used.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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


def run(*command: str) -> str:
    """What a command of the package says, far from the repository."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd="/run", timeout=900,
        env={"PATH": os.environ["PATH"], "HOME": "/root", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}", flush=True)
    assert done.returncode == 0
    return done.stdout


def main() -> None:
    (package,) = Path(os.environ["TCPKMON_RESULTS"]).glob("tcpkmon_*_arm64.deb")
    Path("/var/lib/dpkg/status").touch()
    run("dpkg", "--force-depends", "--unpack", str(package))
    assert "0." in run("tcpkmon", "--version")
    assert "can capture here" in run("tcpkmon", "doctor")
    Path("/run/traffic.py").write_text(TRAFFIC)
    run("collect", "-q", "--ports", "5999", "--locations", "default,SEND_CALL", "-o", "/run/a.pm",
        "--", "/usr/bin/python3", "/run/traffic.py")  # fmt: skip
    assert "nothing lost" in run("tcpkmon", "verify", "/run/a.pm")
    rows = run("tcpkmon", "export", "--format", "csv", "/run/a.pm").splitlines()
    assert sum(",SEND_CALL," in row for row in rows) == 100


if __name__ == "__main__":
    main()
