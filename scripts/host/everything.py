# SPDX-License-Identifier: Apache-2.0
"""H10: all schemata at once while the session goes on: nothing in dmesg, all losses proven."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scripts.experiments.context import BIN, Context
from scripts.experiments.figure import Figure
from scripts.experiments.report import Table
from scripts.experiments.results import Results
from scripts.experiments.stats import number
from scripts.host.monitor import look
from tcpkmon.collector import capturing

NAME = "H10"
TITLE = "H10: everything on"
SCHEMATA = (
    "tcp", "network", "locking", "sched", "disk", "paging", "sampler", "tty", "syscall", "user",
)  # fmt: skip
"""All but magnet, whose TCP_SEND has the name of an event of network; it has its own page."""
LIMIT = 2000
LIMITED = ("SYSCALL_START", "SYSCALL_EXIT", "PAGEIN_START", "PAGEIN_END")
"""At most so many a second and CPU, or the log would fill the disk; the ledger counts the rest."""
BUFFER_MB = 64
RECORDS, LOST, WARNINGS, PROVEN = "records", "lost", "warnings in dmesg", "verify's exit code"
SECONDS = "seconds"
WARNING = 4
"""Of the kernel's log levels."""


@contextmanager
def on(context: Context) -> Iterator[None]:
    """Records everything while the body runs, with TCP traffic; adds to the results of H10."""
    results, log = context.results, context.folder / "everything"
    limits = [word for name in LIMITED for word in ("--limit", f"{name}={LIMIT}")]
    messages = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(messages, 0, os.SEEK_END)
        with capturing.start(
            SCHEMATA, log, buffer_mb=BUFFER_MB, force=True, options=["--quiet", *limits]
        ) as capture, traffic():
            begun = time.monotonic()
            yield
            results.add(NAME, SECONDS, "all", time.monotonic() - begun)
            told = look(capture)
        for name, count in told.records.items():
            if count:
                results.add(NAME, RECORDS, name, count)
        context.say(f"{NAME}: verify")
        done = subprocess.run(
            [str(BIN / "tcpkmon"), "verify", str(log)], capture_output=True, text=True, check=False
        )
        results.add(NAME, PROVEN, "all", done.returncode)
        results.add(NAME, LOST, "all", told.lost)
        if done.returncode not in (0, 3):
            lines = [one for one in done.stdout.splitlines() if one.startswith("offset")]
            results.note(NAME, f"verify: {'; '.join(lines[:3])}")
        warnings = read_warnings(messages)
        results.add(NAME, WARNINGS, "all", len(warnings))
        for text in warnings[:5]:
            results.note(NAME, f"dmesg: {text}")
    finally:
        os.close(messages)
        shutil.rmtree(log, ignore_errors=True)


def read_warnings(messages: int) -> list[str]:
    """What the kernel has logged since, from warnings on."""
    found = []
    with suppress(BlockingIOError):
        while record := os.read(messages, 8192):
            head, _, text = record.decode(errors="replace").partition(";")
            if int(head.split(",")[0]) & 7 <= WARNING:
                found.append(text.splitlines()[0])
    return found


@contextmanager
def traffic() -> Iterator[None]:
    """A loopback connection: 100 answered requests a second, 100 KB each."""
    ended = threading.Event()

    def answer(one: socket.socket) -> None:
        with one:
            while one.recv(1 << 17):
                one.sendall(b"x" * 100_000)

    def ask(one: socket.socket) -> None:
        with one:
            while not ended.wait(0.01):
                one.sendall(b"?")
                left = 100_000
                while left > 0:
                    left -= len(one.recv(left))

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    threads = [threading.Thread(target=answer, args=(other,), daemon=True),
               threading.Thread(target=ask, args=(client,), daemon=True)]  # fmt: skip
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(5)


def measure(context: Context) -> None:
    """It is measured while U2's session goes on."""
    from scripts.host import session

    session.measure(context)


def figures(results: Results) -> list[Figure]:
    code = results.median(NAME, PROVEN, "all")
    if code is None:
        return []
    seconds, warnings, lost = (
        results.median(NAME, one, "all") or 0 for one in (SECONDS, WARNINGS, LOST)
    )
    records = sum(values[0] for values in results.values[NAME].get(RECORDS, {}).values())
    return [
        Figure(
            f"{NAME}: warnings in dmesg after {number(seconds, 0)} s of everything", "-",
            number(warnings, 0), "none", warnings == 0,
        ),
        Figure(
            f"{NAME}: its {number(records, 0)} records and {number(lost, 0)} lost ones, by verify",
            "-", "proven" if code in (0, 3) else f"exit code {code:.0f}", "proven", code in (0, 3),
        ),
    ]  # fmt: skip


def tables(results: Results) -> list[Table]:
    seconds = max(1.0, results.median(NAME, SECONDS, "all") or 1.0)
    counts = results.values.get(NAME, {}).get(RECORDS, {})
    most = sorted(counts.items(), key=lambda one: -one[1][0])[:12]
    return [
        Table(
            "The most frequent events", ("", "records", "a second"),
            [[name, number(n[0], 0), number(n[0] / seconds, 0)] for name, n in most],
            f"Schemata {', '.join(SCHEMATA)}, beside the monitor of U2, in the same minutes. "
            f"{', '.join(LIMITED)}: at most {LIMIT} a second and CPU (--limit).",
        )
    ]
