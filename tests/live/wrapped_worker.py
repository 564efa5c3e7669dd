# SPDX-License-Identifier: Apache-2.0
"""Speaks on behalf of a capture's process: what both ends say passes through here, and is changed.

    python wrapped_worker.py daemon ...   tcpkmon daemon, whose captures are started as follows
    python wrapped_worker.py NAME FD      in place of tcpkmon.collector.daemon.worker

Only a capture named "bad" is spoken for, and only while a file of that name is beside the daemon's
sockets: its text is the seed. All others run as they are.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests/

from tcpkmon.collector.linux import isolated

MOST_FDS = 253
WORKER = "tcpkmon.collector.daemon.worker"
KINDS = (
    {"what": "ready"}, {"what": "drained", "records": 1, "lost": 0}, {"more": True},
    {"what": "went on", "killed": 1}, {"what": "anew", "why": "x"},
    {"what": "park", "state": {}, "names": []},
    {"what": "park", "state": {"path": "/etc/passwd"}, "names": ["more/f/0", "journal"]},
)  # fmt: skip


def daemon() -> None:
    """The daemon as it is, but for how its captures start, and that none waits to start again."""
    from tcpkmon.collector.commands.tcpkmon import main as tcpkmon
    from tcpkmon.collector.daemon import child

    plain = isolated.command

    def command(module: str, *words: str) -> list[str]:
        return [sys.executable, __file__, *words] if module == WORKER else plain(module, *words)

    isolated.command = command
    child.BACK_OFF_S = (0.0,)
    tcpkmon()


def main() -> None:
    if sys.argv[1] == "daemon":
        return daemon()
    name, fd = sys.argv[1], int(sys.argv[2])
    words = isolated.command(WORKER, name)
    seed = Path(os.environ["TCPKMON_RUN"], "bad")
    if name != "bad" or not seed.exists():
        os.set_inheritable(fd, True)
        os.execv(words[0], [*words, str(fd)])
    speak(socket.socket(fileno=fd), words, random.Random(f"{seed.read_text()}-{os.getpid()}"))


def speak(outer: socket.socket, words: list[str], chance: random.Random) -> None:
    """Between the supervisor and a worker, until one of them ends."""
    inner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (outer, inner):
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, 32, 1 << 22)  # SO_SNDBUFFORCE
    worker = subprocess.Popen([*words, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    late: list[tuple[bytes, list[int]]] = []
    """What is sent later than it was said."""
    with suppress(BrokenPipeError, ConnectionResetError):
        while worker.poll() is None:
            ready, _, _ = select.select([outer, inner], [], [], 0.2)
            for end in ready:
                line, fds, _, _ = socket.recv_fds(end, 1 << 22, MOST_FDS)
                if not line:
                    worker.kill()
                    break
                if end is outer:  # the supervisor's word
                    send(inner, line, fds)
                else:
                    change(outer, line, fds, late, chance)
            if not ready and chance.random() < 0.3:
                forge(outer, late, chance)
    worker.kill()
    sys.exit(worker.wait() and 1)


def send(end: socket.socket, line: bytes, fds: list[int]) -> None:
    with suppress(OSError if len(line) > 200_000 else BlockingIOError):
        socket.send_fds(end, [line], fds) if fds else end.send(line)


def change(
    end: socket.socket, line: bytes, fds: list[int], late: list[tuple[bytes, list[int]]],
    chance: random.Random,
) -> None:
    """A message as it is, or another, or none, or twice, or later."""
    what = chance.randrange(12)
    if what == 0:
        late.append((line, fds))
        return
    if what == 1:
        line = mutated(line, chance)
    elif what == 2:
        fds = chance.sample(fds, chance.randrange(len(fds) + 1))
    elif what == 3:
        fds = (fds + others(chance))[:MOST_FDS]
    elif what == 4:
        chance.shuffle(fds)
    elif what == 5:
        send(end, line, fds)
    send(end, line, fds)


def mutated(line: bytes, chance: random.Random) -> bytes:
    from tests.fuzz.mutate import change_json, mutate

    if chance.random() < 0.3:
        return mutate(line, (), chance, 1 << 18)
    told = json.loads(line)
    for _ in range(chance.choice((1, 1, 3))):
        change_json(told, chance)
    return json.dumps(told).encode()


def others(chance: random.Random) -> list[int]:
    """Descriptors of kinds that no capture has."""
    makers = (
        lambda: os.open("/dev/null", os.O_RDONLY), lambda: os.open("/", os.O_RDONLY),
        lambda: os.pipe()[0], lambda: os.memfd_create("x"), lambda: os.pidfd_open(os.getpid()),
        lambda: socket.socket().detach(), lambda: os.eventfd(0),
    )  # fmt: skip
    return [chance.choice(makers)()] * chance.choice((1, 1, 5, 250))


def forge(end: socket.socket, late: list[tuple[bytes, list[int]]], chance: random.Random) -> None:
    """A message that nobody said, or one of before; or its process is killed."""
    what = chance.random()
    if late and what < 0.5:
        send(end, *late.pop(chance.randrange(len(late))))
    elif what < 0.95:
        line = json.dumps(chance.choice(KINDS)).encode()
        line = mutated(line, chance) if chance.random() < 0.5 else line
        send(end, line, others(chance) if chance.random() < 0.5 else [])
    else:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
