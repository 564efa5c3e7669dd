# SPDX-License-Identifier: Apache-2.0
"""Command names made to do harm: none reaches a terminal or a picture as it is."""

from __future__ import annotations

import ctypes
import multiprocessing
import socket
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import tcpkmon
from tests.live.faults import GUEST, PMGRAPH, Collector, Space, run, verify

NAMES = (
    b"\x1b[31mred\x1b[0m",
    b"\x1b]0;title\x07",
    b"<b>&\"'</b>",
    b"[bold]rich[/]",
    b"a\nb\rc\td\x08e",
    "\u202egnp.exe".encode(),
    "\u2066isolate".encode(),
    b"\xff\xfe\x80bytes",
    b"\x9b31mC1\x85",
    b"</svg><script>",
)
MARKUP = (b"<b>", b"</svg><", b"<script")
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def talk_as(name: bytes) -> None:
    """One connection, made and used by a process of this name."""
    child = multiprocessing.get_context("fork").Process(target=_talk_as, args=(name,))
    child.start()
    child.join()
    assert child.exitcode == 0


def _talk_as(name: bytes) -> None:
    assert _libc.prctl(_PR_SET_NAME, name, 0, 0, 0) == 0
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        client.sendall(bytes(100_000))
        server.recv(100_000, socket.MSG_WAITALL)


def check_harmless(output: bytes, separators: str = "\n") -> str:
    """It is UTF-8 without a control or bidi character but line ends; returns it."""
    text = output.decode()
    harmful = {
        character
        for character in text
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    }
    assert harmful <= set(separators)
    return text


def test_hostile_command_names(tmp_path: Path) -> None:
    path, printed = tmp_path / "hostile.pm", tmp_path / "printed"
    with Space() as space, printed.open("wb") as stream, Collector(
        "--netns", space.path, "--columns", "full", "--print", "-v", "-o", str(path), stdout=stream
    ).ready() as collector:
        for name in NAMES:
            space.run(lambda name=name: talk_as(name))  # type: ignore[misc]
        done = collector.finish()
    assert done.code == 0, done.stderr
    # The names are in the file, as the kernel gave them.
    with tcpkmon.open(path) as capture:
        records = ~capture.control()
        names = {bytes(name).split(b"\0")[0] for name in capture.column("comm")[records]}
    assert {name[:15] for name in NAMES} <= names
    text = check_harmless(printed.read_bytes())
    assert text.count("\n") == records.sum()
    assert "\\x1b[31mred\\x1b[0m" in text
    assert "\\u202egnp.exe" in text
    check_harmless(done.stderr.encode())
    if GUEST:
        return  # what reads files is the same on every kernel

    picture = tmp_path / "hostile.svg"
    shown = {
        "text": run([PMGRAPH, str(path), "-T", "-d"]),
        "names": run([PMGRAPH, str(path), "-T", "--show", "comm"]),
        "svg": run([PMGRAPH, str(path), "-c", "-o", str(picture)]),
    }
    for kind, one in shown.items():
        assert one.code == 0, (kind, one.stderr)
        check_harmless(one.stdout, "\n\t")
        check_harmless(one.stderr.encode())
        assert not any(mark in one.stdout for mark in MARKUP)
    assert shown["names"].stdout.count(b"\n") == records.sum() + 1
    drawn = picture.read_bytes()
    check_harmless(drawn, "\n\t")
    assert not any(mark in drawn for mark in MARKUP)
    ElementTree.fromstring(drawn)
    check_harmless(str(verify(path, 0)).encode())
