# SPDX-License-Identifier: Apache-2.0
"""A run of `tcpkmon bisect`: the command in fresh namespaces of its own, under a capture."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from tcpkmon.collector.capturing import launch
from tcpkmon.collector.lab.endpoint import congestion_controls
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.namespaces import Side, sysctl_path
from tcpkmon.collector.linux.netns import enter
from tcpkmon.collector.session.command import Identity
from tcpkmon.formats.base.errors import KernelError, TcpkmonError, UsageError
from tcpkmon.formats.base.files import create_file
from tcpkmon.formats.schema import suggest

COLUMNS = "default,ca_name,bytes_sent,bytes_retrans"
_LISTEN, _OVER = 10, (6, 7, 10)  # TIME_WAIT, CLOSE, LISTEN
_LISTEN_S, _SETTLE_S, _STEP_S = 10.0, 1.0, 0.02
_LAST_CHARACTERS = 300


@dataclass(frozen=True)
class Scenario:
    """command: its words. peer: a shell command that serves in the other namespace, empty for none.
    path: what the path between them does, as fields of Way. folder: in which both run. timeout_s:
    of a run. It is made of what JSON has: guests get it so."""

    command: tuple[str, ...]
    peer: str = ""
    path: Mapping[str, float] = field(default_factory=dict)
    folder: str = "/"
    timeout_s: float = 60.0

    @property
    def link(self) -> Link | None:
        """There all of it, back the delay alone; None: a plain veth pair."""
        if not self.path:
            return None
        integers = {one.name for one in fields(Way) if one.type == "int"}
        values: dict[str, Any] = {name: int(value) if name in integers else value
                                  for name, value in self.path.items()}  # fmt: skip
        return Link(Way(**values), Way(delay_ms=self.path.get("delay_ms", 0.0)))


def parse_path(text: str | None) -> dict[str, float]:
    """What `delay_ms=10,rate_mbit=20` says. UsageError."""
    known = [one.name for one in fields(Way) if one.type in ("float", "int")]
    found = {}
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if not name:
            continue
        if name not in known:
            raise UsageError(f"the path has no {name}{suggest(name, known)}",
                             f"it has {', '.join(known)}")  # fmt: skip
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{name}={value} is no number", "as in delay_ms=10") from None
        if not 0 <= found[name] < 1e9:
            raise UsageError(f"{name}={value} is no size of a path", "from 0 to 1e9")
    return found


def play(
    scenario: Scenario, settings: Mapping[str, str], output: Path, identity: Identity | None = None
) -> None:
    """Run the command once, and capture its connections into `output`.

    settings: sysctls of both namespaces. identity: who runs the command, None for this user. The
    command's output is in the file beside `output` that ends in .log. TcpkmonError where it fails.
    """
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(link=scenario.link))
        for side in (lab.a, lab.b):
            side.set_sysctls(settings)
        log = stack.enter_context(_logged(output.with_suffix(".log")))
        environment = _environment(lab, identity)
        if scenario.peer:
            server = stack.enter_context(
                _started(lab.b, ("sh", "-c", scenario.peer), scenario, log, environment, identity)
            )
            _await_listening(lab.b, server, log)
        options = ["--force", "--quiet", "--format", "psc", "-o", str(output), "--columns",
                   COLUMNS, "--netns", lab.a.name, "--netns", lab.b.name]  # fmt: skip
        with enter(lab.a.namespace.fd):  # the file's header has its sysctls
            capture = launch(options, output)
        with capture, ExitStack() as inside:
            command = inside.enter_context(
                _started(lab.a, scenario.command, scenario, log, environment, identity)
            )
            try:
                code = command.wait(scenario.timeout_s)
            except subprocess.TimeoutExpired:
                raise TcpkmonError(f"the command still ran after {scenario.timeout_s:g} s",
                                   "--timeout gives it longer") from None  # fmt: skip
            if code:
                raise TcpkmonError(f"the command ended with {code}{_last_line(log)}")
            _settle(lab)


@contextmanager
def _logged(path: Path) -> Iterator[IO[str]]:
    """What programs print, in a file at the end: root follows no link of another user there."""
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as log:
        try:
            yield log
        finally:
            log.seek(0)
            with create_file(path, force=True) as out:
                out.write(log.read().encode())


def _environment(lab: Lab, identity: Identity | None) -> dict[str, str]:
    own = {"TCPKMON_PEER": lab.b.address4, "TCPKMON_PEER6": lab.b.address6,
           "TCPKMON_PEER_NETNS": lab.b.name}  # fmt: skip
    path = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"
    found = {**os.environ, **own, "PATH": path}
    return identity.environment(found) if identity is not None else found


@contextmanager
def _started(
    side: Side, command: Sequence[str], scenario: Scenario, log: IO[str],
    environment: dict[str, str], identity: Identity | None,
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A process inside a namespace; what is left of its group is killed at the end."""
    who = {} if identity is None else {
        "user": identity.uid, "group": identity.gid, "extra_groups": identity.groups
    }  # fmt: skip
    try:
        process = side.start(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=scenario.folder, env=environment,
            start_new_session=True, **who,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be run: {error.strerror}",
                         "the command comes after --") from None  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await_listening(side: Side, server: subprocess.Popen[str], log: IO[str]) -> None:
    deadline = time.monotonic() + _LISTEN_S
    while _LISTEN not in side.run(_states):
        if server.poll() is not None:
            raise TcpkmonError(f"the peer ended with {server.returncode}{_last_line(log)}")
        if time.monotonic() > deadline:
            raise TcpkmonError(f"the peer does not listen after {_LISTEN_S:g} s",
                               "--peer is the command of a server")  # fmt: skip
        time.sleep(_STEP_S)


def _settle(lab: Lab) -> None:
    """Wait until the connections are closed, for a while: their last records belong to the run."""
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline and any(
        state not in _OVER for side in (lab.a, lab.b) for state in side.run(_states)
    ):
        time.sleep(_STEP_S)


def _states() -> set[int]:
    """The states of all TCP sockets of the calling thread's namespace."""
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = Path("/proc/thread-self/net", name).read_text().splitlines()[1:]
            found |= {int(row.split()[3], 16) for row in rows}
    return found


def _last_line(log: IO[str]) -> str:
    """What a program said last, to be told after how it ended."""
    log.seek(0)
    lines = log.read().strip().splitlines()
    return f": {lines[-1][:_LAST_CHARACTERS]}" if lines else " and said nothing"


# Sysctls of a namespace


def check_settings(name: str, values: Sequence[str]) -> list[str]:
    """What the kernel makes of each value of a sysctl, tried in a namespace that goes at once.

    UsageError where no run could tell the values apart: it is no sysctl, not one of a namespace,
    the kernel refuses a value, or makes the same of two neighbours.
    """
    if not re.fullmatch(r"net(\.[A-Za-z0-9_-]+)+", name):
        raise UsageError(f"{name} is no sysctl of a network namespace",
                         "those begin with net, as in net.ipv4.tcp_sack=0,1")  # fmt: skip
    if len(values) < 2:
        raise UsageError(f"{name} has one value: there is nothing to compare", f"{name}=a,b")
    _refuse_modules(name, values)
    made = []
    with Lab() as lab:
        if not lab.a.run(sysctl_path(name).is_file):
            if sysctl_path(name).is_file():
                raise UsageError(f"{name} is the whole machine's: no namespace has its own",
                                 "bisect changes nothing outside its namespaces")  # fmt: skip
            raise UsageError(f"this kernel has no sysctl {name}", "sysctl -a lists them")
        for value in values:
            lab.a.set_sysctls({name: value})
            made.append(" ".join(str(lab.a.run(sysctl_path(name).read_text)).split()))
    same = [n for n in range(1, len(made)) if made[n] == made[n - 1]]
    if same or made[0] == made[-1]:
        at = same[0] if same else -1
        raise UsageError(
            f"{name} is {made[at]} on both sides ({values[at - 1 if same else 0]}, {values[at]}): "
            "no run can tell them apart"
        )
    return made


def _refuse_modules(name: str, values: Sequence[str]) -> None:
    """The kernel would load a module, for the whole machine, for a value that it lacks."""
    if name == "net.ipv4.tcp_congestion_control":
        known = congestion_controls()
        if absent := [value for value in values if value not in known]:
            raise KernelError(f"this kernel has no {', '.join(absent)}: it has {', '.join(known)}",
                              f"modprobe tcp_{absent[0]}, if it is a module")  # fmt: skip
