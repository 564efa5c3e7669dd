# SPDX-License-Identifier: Apache-2.0
"""tcpkmon in a folder that nobody but its owner may enter, as a home is.

What has given up its rights there cannot read its own code. So whole sessions of each kind run, and
each import, and each opened file of the code, that comes too late is a failure, even where it is
caught: an audit hook sees it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.control import server
from tcpkmon.collector.control.client import Client, find_collectors
from tcpkmon.collector.metrics.words import GROUPS
from tcpkmon.formats.base.errors import LossError, TcpkmonError
from tcpkmon.formats.registry import format_of
from tests.live.daemons import Daemon
from tests.live.faults import (
    FULL,
    GUEST,
    WAIT_S,
    Collector,
    Done,
    Space,
    at,
    environment,
    let_others_in,
    run,
    small_disk,
    wait_until,
)
from tests.live.test_top_live import Terminal

pytestmark = pytest.mark.skipif(GUEST, reason="the guest's folder is another machine's")
NOBODY = 65534
HOST_EVENTS = ("sched", "locking", "syscall", "disk", "paging", "tty", "sampler", "user",
               "preempt", "stopwatch", "network")  # fmt: skip

# It begins a module's main(), and each process of this Python that is started there, with a hook.
TRACED = """
import importlib, os, sys, threading

sys.path.insert(0, ROOT)
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in repr(one)]
places = ROOT + "/", sys.prefix + "/"
own = threading.local()

def hear(event, arguments):
    if not getattr(own, "settled", False):
        return
    what = arguments[0] if arguments else None
    if event == "import" or (
        event in ("open", "ctypes.dlopen", "os.listdir", "os.scandir")
        and isinstance(what, str) and os.path.abspath(what).startswith(places)
    ):
        own.settled = False
        where = threading.current_thread().name
        os.write(2, f"LATE {event} {what}, process {os.getpid()}, {where}\\n".encode())
        own.settled = True

from tcpkmon.collector.linux import isolated, privileges

drop = privileges.drop_capabilities

def dropped(keep=privileges.KEPT, user=None):
    drop(keep, user)
    own.settled = not {"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"} & set(keep)

def become(uid, setuid=os.setuid):
    setuid(uid)
    own.settled = uid != 0

privileges.drop_capabilities = dropped
os.setuid = become
whole = f"PROGRAM = {PROGRAM!r}; exec(PROGRAM)"
isolated.command = lambda module, *words: [*isolated.PYTHON, "-c", whole, module, *words]
if "selftest" in sys.argv:  # its captures' standard error is in files
    from tcpkmon.collector import capturing
    from tcpkmon.collector.commands import selftest_captures

    every = selftest_captures._captures
    if not FULL:  # a file and logs, of its sixteen
        selftest_captures._captures = lambda *how: {
            name: one for name, one in every(*how).items() if name in ("all", "klogger")}

    ended = capturing.Capture._wait

    def end(self):
        os.write(2, (how := ended(self)).messages.encode())
        return how

    capturing.Capture._wait = end
sys.addaudithook(hear)
module = sys.argv.pop(1)
sys.argv[0] = module.rpartition(".")[2]
importlib.import_module(module).main()
"""


class Home:
    """A folder of somebody else's that has this tree, for those who may enter."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tcpkmon"
        self.tree.mkdir()
        os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o700)
        text = f"ROOT, FULL = {str(self.tree)!r}, {FULL}{TRACED}"
        self._program = f"PROGRAM = {text!r}; exec(PROGRAM)"

    def words(self, module: str, *arguments: str) -> list[str]:
        """The words of a command that calls main() of a module there."""
        python = [str(self.tree / ".venv/bin/python"), "-I", "-c", f"exec({self._program!r})"]
        return at(self.tree, *python, f"tcpkmon.{module}", *arguments)

    def collect(self, *arguments: str, **options: Any) -> Collector:
        words = self.words("collector.commands.collect")
        return Collector(*arguments, program=words, **options)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


def check(done: Done, code: int = 0) -> None:
    """Nothing came too late, and nothing was refused."""
    late = re.findall("LATE .*", done.stderr)
    assert not late, "\n".join(late)
    for word in ("Traceback", "ModuleNotFound", "PackageNotFound", "ermission denied", "refused"):
        assert word not in done.stderr
    assert done.code == code, done.stderr


def talk(port: int = 0) -> None:
    """Some connections, one that is refused, one that is reset."""
    with socket.create_server(("127.0.0.1", port)) as server:
        for _ in range(3):
            with socket.create_connection(server.getsockname()) as client:
                there, _ = server.accept()
                with there:
                    client.sendall(b"x" * 20_000)
                    there.recv(20_000, socket.MSG_WAITALL)
                    there.sendall(b"y" * 100)


TALK = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"x" * 100_000)
"""


def requests_of(event: str, period_ns: int | None) -> Iterator[dict[str, object]]:
    """All that a collector can be asked; some is refused where the capture has not got it."""
    yield {"op": "metrics"}
    for by in (None, *GROUPS):
        yield {"op": "top", "sort": "rate", "most": 10, "by": by, "wanted": "127"}
    yield {"op": "mark", "number": 5}
    yield {"op": "dump"}
    yield {"op": "set-limits", "limits": {event: 1_000_000}}
    yield {"op": "set-filters", "filters": {"ports": "443,5000-5200", "family": 4}}
    yield {"op": "set-filters", "filters": {"addresses": ["127.0.0.0/8"]}}
    yield {"op": "set-filters", "filters": {}}
    yield {"op": "sampler-period", "ns": period_ns or 1_000_000}
    yield {"op": "disable"}
    yield {"op": "buffer-size", "bytes": 1 << 20}
    yield {"op": "lowwater", "percent": 50}
    yield {"op": "enable"}
    yield {"op": "disable", "events": [event]}
    yield {"op": "enable", "events": [event]}
    yield {"op": "metrics"}
    yield {"op": "top", "sort": "rate", "most": 10, "by": None, "wanted": None}
    yield {"op": "status"}


def ask_all(pid: int) -> dict[object, str]:
    """Each request that a collector takes, between connections, here and in a new namespace; those
    that were refused."""
    (found,) = [one for one in find_collectors() if one.pid == pid]
    client = Client(found)
    talk()
    status = client.status()
    assert status["pid"] == pid
    requests = [*requests_of(status["events"][0]["name"], status["sampler_period_ns"])]
    assert {one["op"] for one in requests} == {*server._REQUESTS}
    refused = {}
    for request in requests:
        try:
            client.ask(request)
        except TcpkmonError as error:
            refused[request["op"]] = str(error)
        if request["op"] not in {"metrics", "top", "status"}:
            talk()
    with Space() as new:
        new.run(talk)
        assert client.metrics()  # a second later: it looks for namespaces
        wait_until(lambda: client.status()["records"], "records")
        new.run(talk)
    return refused


KINDS = {
    "psc": ["-v", "--requests", "--metrics", "--reconcile", "--max-cpu", "90%", "--print",
            "--columns", "default,cgroup,pid,comm"],
    "perf rings, too slow": ["--rings", "perf", "--columns", "all", "--locations", "all",
                             "--max-cpu", "1%", "--control-group", "daemon"],
    "log": ["--format", "klogger", "--schema", "tcp",
            *(word for name in HOST_EVENTS for word in ("--schema", name))],
    "magnet": ["--schema", "magnet", "--data", "--format", "magnet"],
    "recorder": ["--record-last", "30s", "--after", "100ms", "--on", "rto",
                 "--when-changed", "snd_cwnd"],
    "recorder of logs": ["--record-last", "30s", "--format", "klogger", "--after", "100ms"],
}  # fmt: skip
"""Several options each: every session imports what each of them needs."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_capture_and_all_that_it_can_be_asked(home: Home, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    with home.collect("-o", str(out), *KINDS[kind]) as running:
        running.ready()
        refused = ask_all(running.pid)
        running.send(signal.SIGUSR1)
        if "--record-last" in KINDS[kind]:
            running.send(signal.SIGUSR2)
            wait_until(lambda: [*out.iterdir()], "a dump")
        done = running.finish()
    check(done)
    assert kind != "psc" or refused.keys() == {"dump", "sampler-period"}, refused
    assert {report.exit_code for report in format_of(out).verify(out)} <= {0, 3}


@pytest.mark.parametrize("options", [["--top"], []], ids=["screen", "status line"])
def test_in_a_terminal(home: Home, tmp_path: Path, options: list[str]) -> None:
    """What has no rights any more draws there."""
    out = tmp_path / "run.pm"
    columns = ("--columns", "default,comm,pid,cgroup")
    words = home.words("collector.commands.collect", "-o", str(out), *columns, *options)
    terminal = Terminal(*words)
    shown = "OWNER" if options else " records"
    terminal.until(lambda lines: any(shown in line for line in lines))
    talk()
    for keys in ("<>", "g", "g", "g", "ggg", "/127.0.0.1\x7f\r", " ", " ") if options else ():
        terminal.press(keys)
        terminal.until(lambda lines: any("tcpkmon top" in line for line in lines))
        talk()
    terminal.press("q" if options else "\x03")
    check(Done(terminal.end(), b"", terminal.written.decode()))
    assert format_of(out).verify(out)[-1].exit_code == 0


@pytest.mark.parametrize("caller", [False, True], ids=["root", "sudo"])
def test_segments_and_what_is_done_with_them(home: Home, tmp_path: Path, caller: bool) -> None:
    let_others_in(tmp_path)
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    os.chown(dataset, NOBODY, NOBODY)
    out = tmp_path / "out"
    more = ["--rotate-every", "1s", "--archive", "zst", "--dataset", str(dataset)]
    who = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)} if caller else {}
    words = ["-o", str(out), "--on-rotate", "true", *more]
    with home.collect(*words, env=environment(**who)) as running:
        running.ready()
        for count in (1, 2, 3):
            talk()
            wait_until(lambda count=count: len([*out.glob("*.zst")]) >= count, "it is archived")
        done = running.finish()
    check(done)
    assert [*dataset.iterdir()]


def test_a_disk_that_fills(home: Home, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        with home.collect("-o", str(disk / "run.pm")) as running:
            running.ready()
            over_s = time.monotonic() + WAIT_S
            while "No space left" not in running.stderr and time.monotonic() < over_s:
                talk()
            done = running.finish()
        check(done, LossError.exit_code)
        assert "No space left" in done.stderr


@pytest.mark.parametrize("more", [["--why"], ["--follow", "--format", "klogger"]])
def test_a_command(home: Home, tmp_path: Path, more: list[str]) -> None:
    words = ["-o", str(tmp_path / "out"), *more, "--", "/usr/bin/python3", "-c", TALK]
    who = environment(SUDO_UID=str(NOBODY), SUDO_GID=str(NOBODY))
    done = run(home.words("collector.commands.collect", *words), env=who)
    check(done)
    assert ("127.0.0.1" in done.stdout.decode()) is ("--why" in more)


def test_selftest(home: Home) -> None:
    done = run(home.words("collector.commands.tcpkmon", "selftest", "--json"))
    check(done)
    found = Counter(one["result"] for one in json.loads(done.stdout)["findings"])
    assert found["ok"] > 20 and not found["WRONG"]


def test_the_daemon_and_its_children(home: Home, tmp_path: Path) -> None:
    let_others_in(tmp_path)
    with Daemon(tmp_path) as daemon:
        daemon.program = home.words("collector.commands.tcpkmon")
        text = """
[control]
group = "root"
[metrics]
listen = "unix:@/metrics.sock"
textfile = "@/tcpkmon.prom"
[capture.psc]
output = "@/psc"
[capture.psc.rotation]
every = "1s"
keep_files = 3
[capture.log]
output = "@/log"
format = "klogger"
schemata = ["sched", "tcp"]
[capture.recorder]
output = "@/recorder"
[capture.recorder.recorder]
last = "30s"
"""
        daemon.configure(text)
        daemon.start(is_ready=False)
        wait_until(lambda: any("READY=1" in lines for _, lines in daemon.told), "it is ready")
        talk()
        os.kill(daemon.status()["psc"]["pid"], signal.SIGKILL)
        daemon.says("goes on where its process was killed")
        daemon.configure(text.replace("keep_files = 3", "keep_files = 2"))
        assert daemon.command("reload").code == 0
        prom = tmp_path / "tcpkmon.prom"
        wait_until(lambda: prom.exists() and "tcpkmon_captures" in prom.read_text(), "metrics")
        for _ in range(2):  # the second has what the first one's question began to count
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(str(tmp_path / "metrics.sock"))
                client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                answer = client.makefile("rb").read()
            talk()
        daemon.kill()
        for fd in daemon.stored.values():  # as at a power cut: nothing goes on
            os.close(fd)
        daemon.stored.clear()
        daemon.start()
        daemon.says("of a capture that was killed")
        done = daemon.finish()
    check(done)
    assert b'capture="psc"' in answer
