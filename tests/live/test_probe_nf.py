# SPDX-License-Identifier: Apache-2.0
"""Probes of kind nf: each packet counts once at each netfilter hook that it passes."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab import namespaces
from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.nf_hooks import HOOKS
from tcpkmon.collector.linux.privileges import mask_of
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.session.rights import ENTERING
from tcpkmon.formats.registry import format_of
from tests.full import first
from tests.live.capturing import ROOT, wait_until
from tests.live.schema_logs import Log, logging, make_schema

TIMES = 40
MARK = 0x6B6C
ECHO, ECHO6 = 8, 128
CONF = "event PACKET { uint hook; uint netns; uint version; uint identifier; uint kind }\n"
TEXT = """
#include "klogger.h"

struct sk_buff;
struct nf_hook_state;
struct net;
struct ns_common;

/* What an ICMP echo and its answer have: type at 20 or 40, identifier 4 bytes after it. */
static __always_inline void log_packet(void *ctx, struct klogger_cpu *cpu, const int kind) {
    struct nf_hook_state *state = (struct nf_hook_state *)ARG(0);
    struct sk_buff *skb = (struct sk_buff *)ARG(1);
    u8 *at = READ(DIRECT, skb, head) + READ(DIRECT, skb, network_header);
    struct net *net = READ(DIRECT, state, net);
    u8 raw[48] = {};
    u32 version, start;

    bpf_probe_read_kernel(raw, 28, at);
    version = raw[0] >> 4;
    if (version == 6)
        bpf_probe_read_kernel(raw, 48, at);
    start = version == 6 ? 40 : 20;
    if (raw[version == 6 ? 6 : 9] != (version == 6 ? 58 : 1))
        return;
    klogger(PACKET, READ(DIRECT, state, hook), READ(DIRECT, net, ns.inum), version,
            start == 40 ? raw[44] << 8 | raw[45] : raw[24] << 8 | raw[25],
            start == 40 ? raw[40] : raw[20]);
}
"""
PROBE = 'PROBE(at_{0}, "PACKET", "nf:{0}") {{ log_packet(ctx, cpu, kind); }}\n'


@pytest.fixture(scope="module", autouse=True)
def _has_nf() -> None:
    if why := Probing(Btf.from_kernel()).why_not("nf", "LOCAL_OUT"):
        pytest.skip(why)


@pytest.fixture(scope="module")
def packets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema that logs each ICMP packet at each hook. At one place: it is compiled once."""
    text = TEXT + "".join(map(PROBE.format, HOOKS))
    return make_schema(tmp_path_factory.mktemp("schema") / "packets", CONF, text)


def ping(side: Side, address: str) -> None:
    """TIMES echo requests from `side`, each answered before the next is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    protocol, kind = (58, ECHO6) if family == socket.AF_INET6 else (1, ECHO)
    with side.run(lambda: socket.socket(family, socket.SOCK_RAW, protocol)) as raw:
        raw.settimeout(10)
        for number in range(TIMES):
            head = struct.pack("!BBHHH", kind, 0, 0, MARK, number)
            if kind == ECHO:  # the kernel fills in that of IPv6
                words = sum(struct.unpack("!4H", head))
                head = struct.pack("!BBHHH", kind, 0, -words % 0xFFFF, MARK, number)
            raw.sendto(head, (address, 0))
            while True:
                answer = raw.recv(2048)
                body = answer if family == socket.AF_INET6 else answer[20:]
                if body[0] != kind and body[4:8] == head[4:8]:
                    break


def counts(log: Log, version: int) -> Counter[tuple[int, str]]:
    """By namespace and hook, the packets of ping()."""
    names = {number: name for name, number in HOOKS.items()}
    found = log.of("PACKET", version=version, identifier=MARK)
    return Counter((one["netns"], names[one["hook"]]) for one in found)


def ends(*spaces: int) -> Counter[tuple[int, str]]:
    """What namespaces see that send a packet and receive one, each time."""
    hooks = HOOKS.keys() - {"FORWARD"}
    return Counter({(space, hook): TIMES for space in spaces for hook in hooks})


def test_each_hook_counts_each_packet(tmp_path: Path, packets: Path) -> None:
    with Lab(Bottleneck(rate_mbit=100)) as lab, logging(tmp_path / "log", str(packets)) as running:
        ping(lab.a, lab.b.address4)
        ping(lab.a, lab.b.address6)
        log = running.finish()
        assert lab.router is not None
        a, b, r = (side.namespace.inode for side in (lab.a, lab.b, lab.router))
    hooks = ("PRE_ROUTING", "FORWARD", "POST_ROUTING")
    seen = ends(a, b) + Counter({(r, hook): 2 * TIMES for hook in hooks})
    assert counts(log, 4) == counts(log, 6) == seen
    assert log.ways["PACKET"] == " ".join(f"nf:{hook}" for hook in HOOKS)
    book = log.ledger["PACKET"]
    assert book["attempts"] == book["written"] == len(log.of("PACKET"))


def test_two_captures_at_once(packets: Path, tmp_path: Path) -> None:
    """netfilter takes no two programs of one priority: the second capture finds another."""
    with (
        Lab() as lab,
        logging(tmp_path / "one", str(packets)) as one,
        logging(tmp_path / "two", str(packets)) as two,
    ):
        ping(lab.a, lab.b.address4)
        expected = ends(lab.a.namespace.inode, lab.b.namespace.inode)
        assert counts(one.finish(), 4) == counts(two.finish(), 4) == expected


@pytest.mark.parametrize("named", first(1, [False, True]))
def test_a_namespace_that_appears_later(packets: Path, tmp_path: Path, named: bool) -> None:
    """It gets the programs within two seconds, and is free when it has neither process nor name."""
    with Lab() as lab, logging(tmp_path / "log", str(packets)) as running:
        later = [sys.executable, "-c", LATER]
        if named:
            space = namespaces.make(f"tcpkmon-{os.getpid()}-probe")
            process = Side(space, "", "").start(later, stdin=PIPE, stdout=PIPE)
        else:
            later = ["unshare", "--net", *later]
            process = Popen(later, stdin=PIPE, stdout=PIPE, text=True)
        assert process.stdin and process.stdout
        inode = int(process.stdout.readline())
        # A device's peer is gone when its namespace is.
        peer = ["peer", "name", "far", "netns", str(process.pid)]
        lab.a.command(["ip", "link", "add", "near", "type", "veth", *peer])
        threading.Event().wait(2.5)
        process.stdin.close()
        assert process.wait(60) == 0
        if named:
            namespaces.remove(space.name)
            space.close()
        wait_until(lambda: not has_device(lab.a, "near"), timeout_s=10)
        log = running.finish()
    names = {number: name for name, number in HOOKS.items()}
    found = Counter(names[one["hook"]] for one in log.of("PACKET", netns=inode, identifier=MARK))
    assert found == Counter({hook: 2 * TIMES for hook in HOOKS.keys() - {"FORWARD"}})


# In a namespace of its own, with lo up: sends TIMES datagrams at once. Then it waits.
AT_ONCE = f"""
import fcntl, os, socket, struct, sys
from tcpkmon.collector.linux.netns import CLONE_NEWNET
from tcpkmon.collector.linux.syscalls import call_libc
print("ready", flush=True)
sys.stdin.readline()
call_libc("unshare", CLONE_NEWNET)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    fcntl.ioctl(sender, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    for _ in range({TIMES}):
        sender.sendto(b"early", ("127.0.0.1", 9))
    print("sent", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def early_packets() -> Iterator[None]:
    """Around a capture's end: datagrams of a namespace that is new in it."""
    process = Popen([sys.executable, "-c", AT_ONCE], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT)
    assert process.stdin and process.stdout
    assert process.stdout.readline() == "ready\n"
    try:
        threading.Event().wait(0.5)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "sent\n"
        threading.Event().wait(2.5)
        yield
    finally:
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.alone  # others on this machine make namespaces too
def test_what_passed_before_a_namespace_was_found_is_missed(packets: Path, tmp_path: Path) -> None:
    """The capture is not proven: the namespace tells how many packets passed without programs."""
    with logging(tmp_path / "log", str(packets)) as running, early_packets():
        running.finish()
    report = format_of(tmp_path / "log").verify(tmp_path / "log")[-1]
    assert report.exit_code == 3
    # At each hook but FORWARD; the kernel's messages that nobody listens are of ICMP, and left out.
    counts = [one.kprobe for one in report.missed]
    assert len(counts) >= 4 and min(sorted(counts)[-4:]) == TIMES


def test_what_passed_where_nothing_is_recorded_is_not_missed(tmp_path: Path) -> None:
    """A namespace that --netns leaves out."""
    path = tmp_path / "a.magnet"
    options = ("--netns", "/proc/self/ns/net", "--format", "magnet")
    with start("magnet", path, options=options) as capture, early_packets():
        capture.stop()
    assert sum(one.kprobe for one in format_of(path).verify(path)[-1].missed) == 0


# Brings lo up, and echoes TIMES requests there when its input ends: the kernel's answer makes two.
LATER = f"""
import os, socket, struct, sys
from pyroute2 import IPRoute
with IPRoute() as routes:
    routes.link("set", index=1, state="up")
print(os.stat("/proc/self/ns/net").st_ino, flush=True)
sys.stdin.read()
with socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) as raw:
    for number in range({TIMES}):
        words = -({ECHO << 8} + {MARK} + number) % 0xFFFF
        raw.sendto(struct.pack("!BBHHH", {ECHO}, 0, words, {MARK}, number), ("127.0.0.1", 0))
        while raw.recv(2048)[20] == {ECHO}:
            pass
"""


def test_the_deputy_has_no_more_than_it_needs(packets: Path, tmp_path: Path) -> None:
    """Another user, two capabilities, a filter of system calls."""
    with logging(tmp_path / "log", str(packets)) as running:
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children")
        found = [Path(f"/proc/{pid}/status").read_text() for pid in children.read_text().split()]
        rows = [dict(line.split(":\t", 1) for line in text.splitlines()) for text in found]
        able = mask_of(ENTERING)
        (deputy,) = [row for row in rows if int(row["CapEff"], 16) == able]
        running.finish()
    assert int(deputy["CapPrm"], 16) == able
    assert deputy["NoNewPrivs"] == "1"
    assert deputy["Seccomp"] == "2"
    assert "0" not in deputy["Uid"].split()


def has_device(side: Side, name: str) -> bool:
    with side.routes() as routes:
        return bool(routes.link_lookup(ifname=name))
