# SPDX-License-Identifier: Apache-2.0
"""Each connection of short-lived processes in short-lived control groups is named as it was."""

from __future__ import annotations

import array
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from grouped_workload import POD, root_of

import tcpkmon
from tcpkmon.collector.control.choosing import choose
from tcpkmon.collector.control.client import Client
from tcpkmon.collector.metrics.connections import RATE_S
from tcpkmon.collector.session.container_names import CONTAINERD
from tcpkmon.formats.analysis import why
from tcpkmon.formats.base.group_names import group_of
from tcpkmon.formats.registry import open_files
from tests.live.capturing import ROOT, capturing, capturing_each
from tests.live.faults import COLLECT, run
from tests.live.test_metrics_live import folder  # noqa: F401  (a fixture)

PORT = 27_000 + os.getpid() % 500  # tests run in several processes at once
GROUPS, PROCESSES, CONNECTIONS = 20, 5, 10


@pytest.fixture(autouse=True)
def cgroup2() -> None:
    root = root_of(Path("/proc/self/mountinfo").read_text())
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no control group of version 2 can be made here")


def test_a_unit_where_groups_are_not_seen_is_refused(tmp_path: Path) -> None:
    """`ip netns exec` hides cgroup2: without it, each socket would pass."""
    hidden = "umount -l \"$0\" && exec \"$@\""
    root = root_of(Path("/proc/self/mountinfo").read_text())
    command = [COLLECT, "--unit", "nginx.service", "-o", str(tmp_path / "x.pm"), "--", "true"]
    done = run(["unshare", "-m", "sh", "-c", hidden, str(root), *command])
    assert done.code == 4 and "no cgroup2 is mounted here" in done.stderr
    assert "--netns" in done.stderr and not [*tmp_path.iterdir()]


def test_a_thousand_connections(tmp_path: Path) -> None:
    few = ("--ports", str(PORT), "--locations", "STATE_CHANGE,DESTROY")
    options = {
        "all": (*few, "--columns", "default,cgroup"),
        "unit": (*few, "--unit", "nginx1*.service"),
        "pod": (*few, "--pod", POD),
    }
    script = Path(__file__).with_name("grouped_workload.py")
    command = [sys.executable, str(script), *map(str, (PORT, GROUPS, PROCESSES, CONNECTIONS))]
    with capturing_each(tmp_path, options) as captures:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = {name: one.stop() for name, one in captures.items()}
    truth = {int(port): path for port, path in json.loads(done.stdout).items()}
    assert len(truth) == GROUPS * PROCESSES * CONNECTIONS
    for outcome in found.values():
        outcome.check_complete()
    owners = ("unit", "container", "pod", "path")
    table = tcpkmon.open(tmp_path / "all.pm").table("connections").to_pylist()
    told = {row["lport"]: tuple(row["cgroup_path" if name == "path" else name] for name in owners)
            for row in table if row["rport"] == PORT}  # fmt: skip
    expected = {}
    for port, path in truth.items():
        group = group_of(path)
        expected[port] = tuple(getattr(group, name) or None for name in owners)
    assert told == expected
    assert {one[0] for one in told.values()} >= {"nginx0.service", "session-1.scope"}
    notes = subprocess.run(
        [ROOT / ".venv/bin/tcpkmon", "verify", str(tmp_path / "all.pm")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert notes.stdout
    assert "without a name" not in notes.stdout + notes.stderr
    for name, chosen in (
        ("unit", {p for p, path in truth.items() if "/nginx1" in path}),
        ("pod", {p for p, path in truth.items() if "pod0f3c5bd2" in path}),
    ):
        records = found[name].records
        ports = set(records["lport"][records["rport"] == PORT].tolist())
        assert chosen and chosen <= ports, name  # too new a group is recorded, too
        assert len(ports) < len(truth), name


def test_containers_that_are_gone_in_a_moment_have_names(tmp_path: Path) -> None:
    """With the files that tell them. Where names are looked for once a second, 4 of 10 would."""
    root = root_of(Path("/proc/self/mountinfo").read_text())
    assert root is not None
    names = {f"{number:064x}": f"web{number}" for number in range(10)}
    with capturing(tmp_path / "a.pm", "--ports", str(PORT), "--columns", "default,cgroup") as run:
        for number, name in names.items():
            bundle, group = CONTAINERD / "default" / number, root / "default" / number
            bundle.mkdir(parents=True)
            told = {"annotations": {"nerdctl/name": name}}
            (bundle / "config.json").write_text(json.dumps(told))
            group.mkdir(parents=True)
            time.sleep(0.4)
            group.rmdir()
            shutil.rmtree(bundle)
        run.stop().check_complete()
    for place in (group.parent, bundle.parent, CONTAINERD, CONTAINERD.parent):
        with suppress(OSError):  # it is not ours alone
            place.rmdir()
    with open_files(str(tmp_path / "a.pm")) as reader, why.Source(reader) as source:
        list(source.read())
        found = {group.container for _, group in source.groups.items()}
    assert len(found & set(names.values())) >= 8, found


def test_top_and_the_metrics_have_them(tmp_path: Path, folder: Path) -> None:  # noqa: F811
    groups, processes, connections = 5, 2, 5
    script = Path(__file__).with_name("grouped_workload.py")
    numbers = map(str, (PORT, groups, processes, connections))
    few = ("--ports", str(PORT), "--columns", "default,cgroup,bytes_acked")
    with capturing(tmp_path / "t.pm", *few) as run:
        client = Client(choose("t.pm"))
        client.metrics()
        command = [sys.executable, str(script), *numbers]
        client.top("rate", 100)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        truth = Counter(map(group_of, json.loads(done.stdout).values()))
        time.sleep(RATE_S)  # what has ended is shown once more: in the same answers, here
        told = client.top("rate", 100, "container")
        chosen = client.top("rate", 100, wanted="nginx0.serv")
        owners = client.metrics()["tcp"]["owners"]
        assert {"unit", "container", "pod"} <= set(told["groups"])
        assert {one.container for one in truth if one.container} <= set(told["rows"]["group"])
        assert set(chosen["rows"]["unit"]) == {"nginx0.service"}
        run.stop().check_complete()
    sent = {(unit, pod): acked for unit, pod, _, acked, _, _ in owners}
    for group, count in truth.items():
        # The kernel counts SYN and FIN among the bytes that were acknowledged.
        assert 100 * count <= sent[group.unit, group.pod] <= 102 * count, group


NOBODY = 65534


def as_nobody(work: Callable[[], None]) -> None:
    """Do it in a child of this user, to its end."""
    if not (pid := os.fork()):
        code = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_users_of_sockets_that_are_inherited_handed_over_and_shared(tmp_path: Path) -> None:
    """A socket's user is who made it; of a connection that was accepted, who did that."""
    port = PORT + 500

    def listening() -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(("127.0.0.1", port))
        made.listen()
        return made

    truth: dict[str, tuple[int, int]] = {}

    def call(name: str, listener: socket.socket, work: Callable[[], None]) -> None:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"x")
            truth[name] = client.getsockname()[1], 0
            work()

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as end:
            end.recv(1)

    options = ("--ports", str(port), "--columns", "default,uid")
    each = {"all": options, "nobody": (*options, "--user", "nobody", "--no-existing")}
    with capturing_each(tmp_path, each) as captures:
        with listening() as listener:
            call("inherited", listener, lambda: as_nobody(lambda: answer(listener)))
            near, far = socket.socketpair()

            def take() -> None:
                rights = far.recvmsg(1, 100)[1][0][2]
                with socket.socket(fileno=array.array("i", rights)[0]) as end:
                    end.recv(1)

            def hand_over() -> None:
                with listener.accept()[0] as end:
                    socket.send_fds(near, [b"x"], [end.fileno()])
                as_nobody(take)

            call("handed over", listener, hand_over)
        as_nobody(lambda: call("theirs", (own := listening()), lambda: answer(own)))
        found = {name: one.stop() for name, one in captures.items()}
    rows = tcpkmon.open(tmp_path / "all.pm").table("connections").to_pylist()
    passive = [row["uid"] for row in rows if row["role"] == "passive"]
    active = [row["uid"] for row in rows if row["role"] == "active"]
    assert passive == [NOBODY, 0, NOBODY] and active == [0, 0, NOBODY]
    before = found["all"].records.at("STATE_CHANGE").where(state=3)  # from SYN_RECV
    assert before["uid"].tolist() == [0, 0, NOBODY], "until it is accepted, the listener's"
    chosen = found["nobody"].records
    assert set(chosen["uid"].tolist()) == {NOBODY}
    ports = {truth[name][0] for name in ("inherited",)}
    assert ports <= set(chosen["rport"].tolist()), "accepted by nobody"
    assert truth["handed over"][0] not in set(chosen["rport"].tolist())
