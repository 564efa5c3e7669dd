# SPDX-License-Identifier: Apache-2.0
"""Run as a program by root in a Debian guest whose process 1 is systemd: whose are 1,000 short
connections of real units, of sockets that are handed over, and of containers of Podman?

    units_guest.py                              the checks; the last line is passed, or failed
    units_guest.py connect PORT COUNT FILE FIRST N      a unit's process: connections from so many
                                                ports, from FIRST + N * COUNT on
    units_guest.py accept PORT                  a unit's process: a server by socket activation

See tests/live/test_service_live.py.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from guest_tools import OUT, PORT, WAIT_S, capturing, play, rows_of, run, say, serving

ACTIVATED = 5997
UNITS, EACH = 50, 20
TRUTH = Path("/run/truth")
SYSTEM = Path("/etc/systemd/system")
UNIT = f"""
[Service]
Type=oneshot
User={{user}}
ExecStart=/usr/bin/python3 {__file__} connect {PORT} {EACH} {TRUTH}/%n {{first}} %i
"""
SOCKET = f"[Socket]\nListenStream=127.0.0.1:{ACTIVATED}\n"
SERVER = f"[Service]\nUser=nobody\nExecStart=/usr/bin/python3 {__file__} accept\n"
NOBODY = 65534


def connect(port: int, count: int, file: str, first: int, number: int) -> None:
    """So many connections, one after the other; then their ports are in the file."""
    ports = range(first + number * count, first + (number + 1) * count)
    for own in ports:
        with socket.create_connection(("127.0.0.1", port), 60, ("127.0.0.1", own)) as client:
            client.sendall(b"x" * 100)
    Path(file).write_text(json.dumps([*ports]))


def accept() -> None:
    """Answer one connection of the listener that systemd made."""
    with socket.socket(fileno=3) as listener, listener.accept()[0] as end:
        end.sendall(end.recv(100))


def test_units() -> None:
    """1,000 connections of 50 units, which end while the capture runs."""
    TRUTH.mkdir(mode=0o777)
    TRUTH.chmod(0o777)
    for kind, user, first in (("web", "root", 10_000), ("job", "nobody", 20_000)):
        (SYSTEM / f"{kind}@.service").write_text(UNIT.format(user=user, first=first))
    run("systemctl", "daemon-reload")
    ports = f"--ports {PORT} --locations STATE_CHANGE,SEGMENT_RECEIVED,DESTROY"
    with serving(PORT), capturing(
        all=ports, unit=f"{ports} --unit web@1*.service", user=f"{ports} --user nobody"
    ):
        units = [f"{kind}@{n}.service" for n in range(UNITS // 2) for kind in ("web", "job")]
        begun_s = time.monotonic()
        run("systemctl", "start", *units)
        say(f"{UNITS} units ran in {time.monotonic() - begun_s:.1f} s")
    truth = {
        port: path.name for path in TRUTH.iterdir() for port in json.loads(path.read_text())
    }
    assert len(truth) == UNITS * EACH, len(truth)
    told = {row["lport"]: row for row in rows_of("all") if row["rport"] == PORT}
    wrong = {port: (unit, told.get(port, {}).get("unit")) for port, unit in truth.items()
             if told.get(port, {}).get("unit") != unit}  # fmt: skip
    assert not wrong, f"{len(wrong)} of {len(truth)}: {list(wrong.items())[:5]}"
    users = {port: row["uid"] for port, row in told.items()}
    assert users == {port: NOBODY * unit.startswith("job") for port, unit in truth.items()}
    chosen = {row["lport"] for row in rows_of("unit") if row["rport"] == PORT}
    wanted = {port for port, unit in truth.items() if unit.startswith("web@1")}
    assert wanted <= chosen, "one of the unit is missing"
    more = {truth[port] for port in chosen - wanted}
    chosen = {row["lport"] for row in rows_of("user") if row["rport"] == PORT}
    assert chosen == {port for port, unit in truth.items() if unit.startswith("job")}
    print(run("tcpkmon", "why", "--by", "unit", "-n", "5", f"{OUT}/all.pm", code=None), flush=True)
    say(f"all {len(truth)} are named; --unit recorded {len(wanted)} and of {len(more)} units more")


def test_activation() -> None:
    """systemd makes the listener, the service accepts: told apart by process and user."""
    (SYSTEM / "echo.socket").write_text(SOCKET)
    (SYSTEM / "echo.service").write_text(SERVER)
    run("systemctl", "daemon-reload")
    with capturing(activated=f"--ports {ACTIVATED}"):
        run("systemctl", "start", "echo.socket")
        with socket.create_connection(("127.0.0.1", ACTIVATED), WAIT_S) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
    (row,) = [one for one in rows_of("activated") if one["role"] == "passive"]
    say(f"activated: unit {row['unit']}, uid {row['uid']}, {row['comm']} {row['pid']}")
    assert row["uid"] == NOBODY and row["comm"] == "python3"
    assert row["unit"] in ("echo.socket", "init.scope"), row["unit"]


def test_ktls() -> None:
    """A socket with kernel TLS is named so."""
    run("modprobe", "tls")
    with (
        socket.create_server(("127.0.0.1", PORT)) as listener, capturing(tls=f"--ports {PORT}"),
        socket.create_connection(("127.0.0.1", PORT)) as client, listener.accept()[0] as end,
    ):  # fmt: skip
        client.setsockopt(socket.IPPROTO_TCP, 31, b"tls")  # TCP_ULP
        client.sendall(b"x")
        assert end.recv(1)
    found = {row["role"]: row["protocols"] for row in rows_of("tls")}
    assert found == {"active": "ktls", "passive": None}, found
    say("kTLS is named")


def _image(folder: Path) -> str:
    """A tar file with busybox."""
    (folder / "bin").mkdir(parents=True)
    run("cp", "/bin/busybox", str(folder / "bin"))
    tar = f"{folder}.tar"
    run("tar", "-C", str(folder), "-cf", tar, ".")
    Path(tar).chmod(0o644)
    return tar


def test_podman() -> None:
    """Containers of Podman, as root and rootless; a machine of systemd-nspawn."""
    tar = _image(Path("/var/tmp/image"))
    run("useradd", "-m", "-u", "1234", "mona")
    run("loginctl", "enable-linger", "mona")
    for _ in range(100):
        if Path("/run/user/1234/bus").exists():
            break
        time.sleep(0.5)
    as_mona = ("runuser", "-u", "mona", "--", "env", "XDG_RUNTIME_DIR=/run/user/1234",
               "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1234/bus",
               "HOME=/home/mona")  # fmt: skip
    box = Path("/var/tmp/box")
    run("cp", "-r", "/var/tmp/image", str(box))
    for name in ("etc", "usr", "dev", "proc", "sys", "run", "tmp"):
        (box / name).mkdir()
    (box / "etc/os-release").write_text("ID=box\n")
    call = ("/bin/busybox", "nc", "127.0.0.1", str(PORT))
    runs = (
        ("podman", "run", "--rm", "--network", "host", "--name", "web", "bb"),
        (*as_mona, "podman", "run", "--rm", "--network", "host", "--name", "app", "bb"),
        ("systemd-nspawn", "-q", "-M", "crate", "-D", str(box), "--as-pid2", "--pipe"),
    )  # fmt: skip
    for prefix in ((), as_mona):
        run(*prefix, "podman", "import", tar, "bb", cwd="/")
    with serving(PORT), capturing(names=f"--ports {PORT}"):
        for words in runs:
            begun_s = time.monotonic()
            run(*words, *call, cwd="/", input="x" * 100)
            say(f"{words[0]}: ran for {time.monotonic() - begun_s:.1f} s")
    found = [(row["unit"], row["container"], row["uid"])
             for row in rows_of("names") if row["rport"] == PORT]  # fmt: skip
    say(f"containers: {found}")
    (root, rootless, machine) = found
    assert root[1:] == ("web", 0) and machine == ("machine-crate.scope", "crate", 0), found
    # Whose files nobody but root may write have names: of the user's container the id is known.
    assert rootless[0] == f"libpod-{rootless[0][7:-6]}.scope" and rootless[2] == 1234, found
    assert rootless[1] == rootless[0][7:19], found


if sys.argv[1:2] == ["connect"]:
    connect(*map(int, sys.argv[2:4]), sys.argv[4], *map(int, sys.argv[5:7]))
elif sys.argv[1:2] == ["accept"]:
    accept()
else:
    play(test_units, test_activation, test_ktls, test_podman)
