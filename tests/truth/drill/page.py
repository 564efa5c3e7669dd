# SPDX-License-Identifier: Apache-2.0
"""Whether scripts of recorded transfers pass on this kernel, and fail where it behaves otherwise:
the examples and the table of docs/packetdrill.md."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from scripts.experiments.machine import here
from scripts.experiments.report import rows_of, write_part
from scripts.markdown_table import table
from scripts.vm.kernels import version_key
from scripts.vm.tools import cache
from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.link import Link, Way
from tcpkmon.collector.lab.pair import Pair, drain, join, listening
from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.export.packetdrill import Options, make_script, read_connection
from tests.truth.conform.plays import capturing
from tests.truth.drill.language import ScriptError
from tests.truth.drill.player import play

PAGE = Path(__file__).resolve().parents[3] / "docs" / "packetdrill.md"
SERVER = "10.77.0.2"
_BACK = Way(delay_ms=20)
_WAY = Way(rate_mbit=50, delay_ms=20)
_ROOM = 2_000_000
Act = Callable[[Pair], None]


def bulk(pair: Pair) -> None:
    """One call."""
    pair.client.sendall(bytes(200_000))
    time.sleep(0.5)


def pause(pair: Pair) -> None:
    """Two calls with a pause of many timeouts between them."""
    for _ in range(2):
        pair.client.sendall(bytes(100_000))
        time.sleep(1.0)


def requests(pair: Pair) -> None:
    """Requests and answers in turn."""
    for _ in range(3):
        pair.exchange(3000)
    time.sleep(0.3)


def message(pair: Pair) -> None:
    """A short one, in one direction."""
    pair.client.sendall(bytes(3000))
    time.sleep(0.5)


SYNS = "lost SYNs"
CASES: dict[str, tuple[Way, Act, str]] = {
    "loss": (replace(_WAY, lose=(30_000, 31_000)), bulk, "cubic"),
    "tail": (replace(_WAY, lose=(190_000, 200_000)), bulk, "cubic"),
    "random loss": (replace(_WAY, loss_percent=2), bulk, "cubic"),
    "reordering": (replace(_WAY, reorder_percent=3, reorder_ms=5), bulk, "cubic"),
    "pause": (_WAY, pause, "cubic"),
    "requests": (_WAY, requests, "cubic"),
    "reno": (replace(_WAY, lose=(30_000, 31_000)), bulk, "reno"),
    SYNS: (replace(_WAY, syn_loss=3), message, "cubic"),
}
CHANGES = {
    "no loss probe": ("tail", {"net.ipv4.tcp_early_retrans": "0"}),
    "no slow start after idle": ("pause", {"net.ipv4.tcp_slow_start_after_idle": "0"}),
    "SYNs back off at once": (SYNS, {"net.ipv4.tcp_syn_linear_timeouts": "0"}),
}  # fmt: skip


def record(path: Path, name: str, server: bool = False) -> str:
    """Capture one transfer of this name into a file, at the client or the server; returns the
    connection, as -p takes it."""
    way, act, algorithm = CASES[name]
    with Lab(link=Link(way, _BACK)) as lab:
        side = lab.b if server else lab.a
        with capturing(side, path):
            with listening(lab.b, SERVER) as listener:
                chosen = (socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
                room = (socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
                pair = join(lab.a, listener, SERVER, [room, chosen])
            reading = drain(pair.server) if act is not requests else None
            time.sleep(0.1)
            act(pair)
            both = (pair.client_port, pair.server_port)
            ports = "{}.{}".format(*(both[::-1] if server else both))
            pair.close()
            if reading is not None:
                reading.join(5)
    return ports


def script_of(path: Path, connection: str, options: Options | None = None) -> str:
    """The script of a connection of a capture."""
    with Source(path) as source:
        return make_script(read_connection(source, connection), options)[0]


def try_play(text: str, settings: dict[str, str], times: int) -> tuple[int, str]:
    """How many of so many plays pass, and why the last one that failed did."""
    passed, why = 0, ""
    for _ in range(times):
        try:
            play(text, settings)
            passed += 1
        except ScriptError as error:
            why = str(error)
    return passed, why


def play_real(text: str, program: str) -> str:
    """Under packetdrill itself; returns what it says, "" if it passes."""
    with tempfile.NamedTemporaryFile("w", suffix=".pkt") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(["unshare", "-n", program, file.name], capture_output=True,
                              text=True, check=False)  # fmt: skip
    return done.stderr.strip() or str(done.returncode) if done.returncode else ""


def kernels_part() -> str:
    """What tests/vm/test_vm_drill.py found in guests: a row for each kernel that played, a column
    for each that was captured; and the begin of one of the scripts."""
    read = [json.loads(path.read_text()) for path in (cache() / "drill").glob("*.json")]
    if not read:
        raise UsageError("no guest has played",
                         "scripts/vmtest 6.1 6.12 newest -- tests/vm/test_vm_drill.py")  # fmt: skip
    read.sort(key=lambda one: version_key(one["kernel"]))
    names = sorted({name for one in read for name in one["plays"]}, key=version_key)
    rows = []
    for one in read:
        said = [one["plays"].get(name) for name in names]
        cells = ["-" if text is None else f"fails: {text}" if text else "passes" for text in said]
        rows.append([one["kernel"], *cells])
    plays = rows_of(["played on", *(f"script of {name}" for name in names)], rows)
    shown = [f"Of the script of {one['kernel']}:\n\n```\n{_syns(one['script'])}\n```"
             for one in (read[0], read[-1])]  # fmt: skip
    return "\n\n".join(("\n".join(plays), *shown))


def _syns(text: str) -> str:
    """The lines of the handshake."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if " connect(" in line)
    end = next(at for at, line in enumerate(lines) if " < S. " in line)
    return "\n".join(lines[begin : end + 2])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--docs", is_flag=True, help="Write the tables into docs/packetdrill.md.")
@click.option("--guests", is_flag=True,
              help="Play nothing: only the table of what tests/vm/test_vm_drill.py found.")
@click.option("--times", default=5, show_default=True, help="How often each script is played.")
@click.option("--program", default=shutil.which("packetdrill") or "", metavar="PACKETDRILL",
              help="packetdrill itself, which plays them too.")
def command(docs: bool, guests: bool, times: int, program: str) -> int:
    """Capture transfers, make scripts of them, play each several times."""
    if guests:
        click.echo(found := kernels_part())
        if docs:
            write_part(PAGE, "test --truth packetdrill: kernels", found)
        return 0
    plays, changed = [], []
    with tempfile.TemporaryDirectory() as folder:
        texts = {}
        for name in CASES:
            path = Path(folder, f"{name.replace(' ', '-')}.pm")
            texts[name] = script_of(path, record(path, name)).replace(folder + "/", "")
            passed, why = try_play(texts[name], {}, times)
            real = "-"
            if program:
                said = [play_real(texts[name], program) for _ in range(times)]
                real = f"{said.count('')} of {times}"
                why = why or max(said)
            plays.append([name, f"{passed} of {times}", real])
            click.echo(f"{' '.join(plays[-1])} {why}")
        for what, (name, settings) in CHANGES.items():
            passed, why = try_play(texts[name], settings, times)
            changed.append([what, name, f"{passed} of {times}", why])
            click.echo(" ".join(changed[-1]))
    if docs:
        machine = "Kernel {kernel}, {cpu}".format(**here())
        write_part(PAGE, "test --truth packetdrill: plays", f"{machine}; plays that pass:\n\n"
                   + "\n".join(rows_of(("transfer", "player", "packetdrill"), plays)))  # fmt: skip
        heads = ("changed", "transfer", "passes:", "fails with")
        write_part(PAGE, "test --truth packetdrill: changes", "\n".join(table(heads, changed)))
        write_part(PAGE, "test --truth packetdrill: example", _example(texts["loss"]))
    return 0


def _example(text: str) -> str:
    """The begin of a script, and what is around its first retransmission."""
    lines = text.splitlines()
    opening = next(at for at, line in enumerate(lines) if " socket(" in line)
    again = next(at for at, line in enumerate(lines) if line == "// sent again")
    head = [line for line in lines[:6] if line]
    parts = [*head, "...", *lines[opening : opening + 12], "...", *lines[again - 12 : again + 8]]
    return "\n".join(["```", *parts, "```"])
