# SPDX-License-Identifier: Apache-2.0
"""Cases with PostgreSQL, which logs how long each statement took, in microseconds."""

from __future__ import annotations

import os
import pwd
import random
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.requests_truth.clients import by_connection, clock
from scripts.requests_truth.stage import Stage
from scripts.requests_truth.truth import Exchange, chain
from tcpkmon.formats.base.errors import TcpkmonError

PORT = 5433
_LINE = re.compile(r"TRUTH \S+\((\d+)\) .*?duration: ([\d.]+) ms(?:  (\w+))?")
_OPENED = re.compile(r"TRUTH \S+\((\d+)\) .*connection authorized")
_BESIDE_NS = 5_000_000
"""What a busy server may take beside the statement, where no client tells."""
_CLIENT = re.compile(r"latency_of_client\((\d+)\)")
Found = list[Exchange]


def programs() -> Path:
    """The folder of initdb and postgres."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parts[-2]))
    if not folders:
        raise TcpkmonError("postgresql is missing; try: apt-get install postgresql")
    return folders[-1]


@contextmanager
def server(stage: Stage) -> Iterator[Path]:
    """A server with a database of its own; its log."""
    owner = pwd.getpwnam("postgres")
    home = stage.folder / "postgres"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    os.chown(home, owner.pw_uid, owner.pw_gid)
    stage.folder.chmod(0o755)
    as_owner = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]
    subprocess.run([*as_owner, str(programs() / "initdb"), "-D", str(home / "data"), "-A", "trust",
                    "-N"], check=True, capture_output=True, cwd="/")  # fmt: skip
    options = {
        "listen_addresses": stage.address, "port": PORT, "unix_socket_directories": str(home),
        "log_min_duration_statement": 0, "log_line_prefix": "TRUTH %r ", "log_connections": "on",
        "log_destination": "stderr", "logging_collector": "off", "max_connections": 60,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
    with stage.serving([*as_owner, str(programs() / "postgres"), "-D", str(home / "data"), *words],
                       PORT):  # fmt: skip
        ready = [str(programs() / "pg_isready"), "-q", "-h", str(home), "-p", str(PORT)]
        until = time.monotonic() + 30
        while subprocess.run(ready, check=False).returncode and time.monotonic() < until:
            time.sleep(0.05)
        yield stage.folder / "server.err"


class Session:
    """A connection whose statements are noted; `found` begins with the start-up."""

    def __init__(self, stage: Stage) -> None:
        import psycopg

        where = f"host={stage.address} port={PORT} user=postgres dbname=postgres"
        self._link = psycopg.connect(f"{where} sslmode=disable gssencmode=disable", autocommit=True)
        self._link.prepare_threshold = None
        with socket.socket(fileno=os.dup(self._link.fileno())) as end:
            self.ports = (end.getsockname()[1], PORT)
        self.found = [Exchange(*self.ports)]

    def ask(self, statement: str, values: tuple[Any, ...] | None = None) -> None:
        """values: by the extended protocol; None: by the simple one."""
        one = Exchange(*self.ports, send=clock())
        if values is None:
            result = self._link.pgconn.exec_(statement.encode())
            if result.status not in (1, 2):  # PGRES_COMMAND_OK, PGRES_TUPLES_OK
                raise TcpkmonError(result.error_message.decode())
        else:
            self._link.execute(statement, values)
        one.last = one.first = clock()
        one.sent = one.final = one.send  # the call is libpq's: nobody knows when it had sent
        self.found.append(one)
        chain(self.found[-2:])

    def close(self) -> Found:
        self._link.close()
        return self.found


def read_log(log: Path) -> dict[int, list[tuple[int, str]]]:
    """Of each client's port, what each statement took [ns], and its text."""
    took: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        if found := _LINE.search(line):
            port, ms, step = found.groups()
            took[int(port)].append((round(float(ms) * 1e6), step or "", line))
        elif found := _OPENED.search(line):
            took[int(found[1])] = []
    return {port: list(_together(steps)) for port, steps in took.items()}


def _together(steps: list[tuple[int, str, str]]) -> Iterator[tuple[int, str]]:
    """parse, bind and execute of the extended protocol are one request."""
    total = 0
    for ns, step, line in steps:
        total += ns
        if step not in ("parse", "bind"):
            yield total, line
            total = 0


def with_log(found: Found, log: Path) -> Found:
    took = read_log(log)
    for (client, _), each in by_connection(found).items():
        for one, (ns, _) in zip(each[1:], took[client], strict=True):
            one.think = ns
    return found


def _captured(stage: Stage, play: Callable[[], Found], *statements: str) -> Found:
    """What is played against a server under a capture, after these statements, with its log."""
    with server(stage) as log:
        home = str(stage.folder / "postgres")
        for one in statements:
            stage.run(["psql", "-h", home, "-p", str(PORT), "-U", "postgres", "-c", one])
        with stage.capturing():
            found = stage.client(play)
        return with_log(found, log)


def sleeps(stage: Stage, extended: bool) -> Found:
    """pg_sleep of 2 to 80 ms, by one of the protocols."""
    chance = random.Random("sleep")

    def play() -> Found:
        session = Session(stage)
        for _ in range(50):
            time.sleep(chance.uniform(0, 0.02))
            seconds = round(chance.uniform(0.002, 0.08), 4)
            if extended:
                session.ask("select pg_sleep(%s)", (seconds,))
            else:
                session.ask(f"select pg_sleep({seconds})")
        return session.close()

    return _captured(stage, play)


def large(stage: Stage) -> Found:
    """Answers of 4 MB, whose begin is sent before the statement has ended."""

    def play() -> Found:
        session = Session(stage)
        for _ in range(15):
            session.ask("select repeat('x', 4000) from generate_series(1, 1000)")
        return session.close()

    found = _captured(stage, play)
    for one in found:
        one.serving, one.think = (one.think, one.last - one.send) if one.last else None, 0
    return found


def lock(stage: Stage) -> Found:
    """An update waits for a row that another session has."""
    chance = random.Random("lock")

    def play() -> Found:
        holder, waiter = Session(stage), Session(stage)
        for _ in range(25):
            holder.ask("begin")
            holder.ask("update things set number = number + 1")
            thread = threading.Thread(target=waiter.ask,
                                      args=("update things set number = number + 2",))  # fmt: skip
            thread.start()
            time.sleep(chance.uniform(0.01, 0.06))
            holder.ask("commit")
            thread.join()
        return holder.close() + waiter.close()

    return _captured(stage, play, "create table things as select 1 as number")


def _pgbench(stage: Stage, *options: str) -> Path:
    """Captures pgbench with these options; the server's log."""
    home = stage.folder / "postgres"
    with server(stage) as log:
        common = ["-p", str(PORT), "-U", "postgres", "postgres"]
        stage.run(["pgbench", "-h", str(home), "-i", "-q", *common])
        plain = {**os.environ, "PGSSLMODE": "disable", "PGGSSENCMODE": "disable"}
        with stage.capturing():
            stage.run(["pgbench", "-h", stage.address, "-n", *options, *common], env=plain)
        return log


def pgbench(stage: Stage, count: int = 100_000) -> Found:
    """pgbench: one SELECT a transaction, 16 connections, 100,000 transactions.

    Each statement names its client, so that pgbench's own log gives the most it can have taken.
    """
    script, prefix = stage.folder / "script.sql", stage.folder / "latency"
    script.write_text("\\set aid random(1, 100000)\nSELECT abalance FROM pgbench_accounts "
                      "WHERE aid = :aid /* latency_of_client(:client_id) */;\n")  # fmt: skip
    log = _pgbench(stage, "-c", "16", "-j", "2", "-t", str(count // 16), "-M", "simple", "-f",
                   str(script), "-l", "--log-prefix", str(prefix))  # fmt: skip
    most = defaultdict(list)
    for path in stage.folder.glob("latency.*"):
        for line in path.read_text().splitlines():
            number, _, us, *_ = map(int, line.split())
            most[number].append(1000 * us)
    found: Found = []
    for port, took in read_log(log).items():
        found.append(Exchange(port, PORT))
        client = _CLIENT.search(took[-1][1]) if took else None
        latencies = most[int(client[1])] if client else [ns + _BESIDE_NS for ns, _ in took]
        found += [Exchange(port, PORT, think=ns, think_most=latency)
                  for (ns, _), latency in zip(took, latencies, strict=True)]  # fmt: skip
    return found


def _by_the_server(log: Path) -> Found:
    """The server's log alone tells the times."""
    found: Found = []
    for port, took in read_log(log).items():
        found.append(Exchange(port, PORT))
        found += [Exchange(port, PORT, think=ns, think_most=ns + _BESIDE_NS) for ns, _ in took]
    return found


def pgbench_writes(stage: Stage) -> Found:
    """pgbench's TPC-B: sessions wait for each other's rows, and for the log's disk."""
    return _by_the_server(_pgbench(stage, "-c", "8", "-t", "60"))


def pgbench_extended(stage: Stage) -> Found:
    """One SELECT a transaction by the extended protocol."""
    return _by_the_server(_pgbench(stage, "-S", "-M", "extended", "-c", "2", "-t", "2000"))
