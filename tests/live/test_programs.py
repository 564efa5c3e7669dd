# SPDX-License-Identifier: Apache-2.0
"""Text to counts: compiled, loaded in two copies, attached each way this kernel offers."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tcpkmon.collector.linux import bpf, kprobe_events
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.kprobe_events import Tracefs
from tcpkmon.collector.linux.syscalls import bpf as call_bpf
from tcpkmon.collector.linux.syscalls import wait_for_running
from tcpkmon.collector.loader import program, programs
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.collector.loader.compiler import Image, compile_text
from tcpkmon.collector.loader.programs import Loaded, ProgramSpec
from tcpkmon.formats.base.errors import KernelError

FIRST, AGAIN, NUMBER, FIRST_AT, AGAIN_AT, PLAIN, ITEMS = range(7)

# Counts what this process does, and notes which copy ran in what order.
TEXT = """
#line 1 "/x/test_program.bpf.c"
#define INLINED static inline __attribute__((always_inline))
BPF_ARRAY(seen, u64, 8);
BPF_PERCPU_ARRAY(scratch, u64, 1);
BPF_HASH(table, u32, u64, 1000);
BPF_PERF_OUTPUT(events);
struct prefix { u32 length; u32 address; };
BPF_LPM_TRIE(prefixes, struct prefix, u32, 16);

INLINED u64 add(u32 which, u64 by)
{
    u64 *counter = seen.lookup(&which);
    return counter ? __sync_fetch_and_add(counter, by) : 0;
}

INLINED void put(u32 which, u64 value)
{
    seen.update(&which, &value);
}

#define MINE (bpf_get_current_pid_tgid() >> 32 == MY_PID)

int twice(void *ctx)
{
    u64 first;

    asm volatile("%0 = 0x6b6c6f6767657231 ll" : "=r"(first));
    if (!MINE)
        return 0;
    add(first ? 0 : 1, 1);
    put(first ? 3 : 4, add(2, 1) + 1);
    return 0;
}

int once(void *ctx)
{
    if (MINE)
        add(5, 1);
    return 0;
}

int prints(void *ctx)
{
    if (MINE)
        bpf_trace_printk("outer");
    return 0;
}

/* At the tracepoint of bpf_trace_printk(), which it calls: so each event interrupts its program. */
int nests(void *ctx)
{
    u64 first;

    asm volatile("%0 = 0x6b6c6f6767657231 ll" : "=r"(first));
    if (!MINE)
        return 0;
    add(first ? 0 : 1, 1);
    if (first)
        bpf_trace_printk("inner");
    return 0;
}

int item(void *ctx)
{
    add(6, 1);
    return 0;
}

int sends(void *ctx)
{
    u64 value = 5;
    struct prefix prefix = {32, 1};
    u32 key = 0;

    table.update(&key, &value);
    prefixes.lookup(&prefix);
    scratch.lookup(&key);
    return events.perf_submit(ctx, &value, sizeof(value));
}
"""
FUNCTIONS = ("twice", "once", "prints", "nests", "item", "sends")
# What listen(2) and the close after it pass through: two state changes, one listen start.
WAYS = [
    ("btf", "inet_sock_set_state", 2),
    ("raw", "inet_sock_set_state", 2),
    ("fentry", "inet_csk_listen_start", 1),
    ("fexit", "inet_csk_listen_start", 1),
    ("kprobe", "inet_csk_listen_start", 1),
]
TIMES = 10


@pytest.fixture(scope="module")
def probing(btf: Btf) -> Probing:
    return Probing(btf)


@pytest.fixture(scope="module")
def image() -> Image:
    return compile_text(TEXT, FUNCTIONS, cache=False, flags=[f"-DMY_PID={os.getpid()}"])


@pytest.fixture
def loaded(image: Image, btf: Btf) -> Iterator[Loaded]:
    with Loaded(image, btf) as loaded:
        yield loaded


def listen_times(times: int = TIMES) -> None:
    for _ in range(times):
        with socket.socket() as listener:
            listener.listen()


def counter(loaded: Loaded, which: int) -> int:
    value = bpf.map_lookup(loaded.maps["seen"], struct.pack("=I", which), 8)
    assert value is not None
    return int(struct.unpack("=Q", value)[0])


@pytest.mark.parametrize(("kind", "target", "each"), WAYS)
def test_both_copies_see_every_event_in_order(
    loaded: Loaded, probing: Probing, kind: str, target: str, each: int
) -> None:
    if not probing.can(kind, target):
        pytest.skip(probing.why_not(kind, target))
    loaded.load([ProgramSpec("twice", kind, target, required=True)])
    assert counter(loaded, FIRST) == 0
    loaded.attach(at_once=True)
    loaded.attach(at_once=True)
    listen_times()
    assert counter(loaded, FIRST) == counter(loaded, AGAIN) == TIMES * each
    assert counter(loaded, AGAIN_AT) == counter(loaded, FIRST_AT) + 1, "the first copy runs first"
    loaded.detach()
    listen_times()
    assert counter(loaded, FIRST) == counter(loaded, AGAIN) == TIMES * each
    loaded.attach()
    listen_times()
    assert counter(loaded, FIRST) == 2 * TIMES * each, "what was detached attaches again"


def test_the_second_copy_comes_with_the_first_event_that_the_kernel_skipped(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LOOK_S", 0.0)
    monkeypatch.setattr(program, "REALTIME", False)
    nests = ProgramSpec("nests", "raw", "bpf_trace_printk", required=True)
    loaded.load([nests])
    loaded.attach()
    loaded.attach_second_copies()
    loaded.load([ProgramSpec("prints", "raw", "inet_sock_set_state", required=True)])
    loaded.attach()
    assert loaded.missed()["nests"].first == 0
    listen_times(1)
    events = counter(loaded, FIRST)
    assert events == 2
    assert counter(loaded, AGAIN) == 0
    assert loaded.missed()["nests"].first == events, "the event in each event is skipped, counted"
    loaded.attach_second_copies()
    loaded.attach_second_copies()
    listen_times(1)
    assert counter(loaded, FIRST) == 2 * events
    assert counter(loaded, AGAIN) == 2 * events, "it runs at both events of each"
    loaded.detach()
    listen_times(1)
    loaded.attach_second_copies()
    assert counter(loaded, FIRST) == 2 * events


def misses_again(loaded: Loaded) -> int:
    """Events for which the kernel skipped the second copy."""
    _, *copies = loaded.programs["twice"].prog_fds
    return sum(bpf.prog_info(fd).recursion_misses for fd in copies)


@pytest.mark.parametrize("preempted", [False, True])
def test_what_system_calls_run_is_loaded_once(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, preempted: bool
) -> None:
    """But with PREEMPT_RT a task may preempt another in the program."""
    monkeypatch.setattr(program, "REALTIME", preempted)
    loaded.load([ProgramSpec("twice", "raw", "sys_enter", required=True)])
    loaded.attach()
    for _ in range(TIMES):
        os.getppid()
    assert counter(loaded, FIRST) >= TIMES
    assert (counter(loaded, AGAIN) >= TIMES) == preempted
    assert misses_again(loaded) == 0


@pytest.mark.parametrize("kind", ["fentry", "fexit", "kprobe"])
def test_what_this_kernel_refuses_is_refused_cleanly(
    loaded: Loaded, probing: Probing, kind: str
) -> None:
    target = "inet_csk_listen_start"
    if probing.can(kind, target):
        target = "tcpkmon_no_such_function"
        assert not probing.can(kind, target)
    optional = ProgramSpec("twice", kind, target)
    loaded.load([optional])
    loaded.attach()
    assert loaded.attached() == ()
    assert isinstance(loaded.refused["twice"], KernelError)
    with pytest.raises(KernelError):
        loaded.load([ProgramSpec("once", kind, target, required=True)])
        loaded.attach()
    assert loaded.attached() == ()


def test_nothing_is_left_behind(image: Image, btf: Btf, monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[int] = []
    real = bpf.prog_load

    def noting(*arguments: Any) -> int:
        fd = real(*arguments)
        ids.append(bpf.prog_info(fd).id)
        return fd

    monkeypatch.setattr(bpf, "prog_load", noting)
    gc.collect()  # else what earlier tests left may be closed meanwhile
    before = open_files()
    with Loaded(image, btf) as loaded:
        loaded.load(
            [
                ProgramSpec("twice", "btf", "inet_sock_set_state", required=True),
                ProgramSpec("once", "raw", "inet_sock_set_state", required=True),
                ProgramSpec("sends", "raw", "tcp_destroy_sock", required=True),
            ]
        )
        loaded.attach()
        assert len(loaded.attached()) == 3
        assert all(exists(number) for number in ids)
    loaded.close()
    assert len(ids) == 4
    assert open_files() == before
    # The kernel frees programs some grace periods later.
    for _ in range(1000):
        if not any(exists(number) for number in ids):
            break
        wait_for_running()
    assert not any(exists(number) for number in ids)


def open_files() -> Counter[str]:
    """What this process has open, by name; the list that tells it is one too."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
    return found


def exists(prog_id: int) -> bool:
    """Whether a program of this number is loaded (BPF_PROG_GET_FD_BY_ID)."""
    try:
        os.close(call_bpf(13, struct.pack("=III", prog_id, 0, 0))[0])
    except OSError as error:
        assert error.errno == errno.ENOENT
        return False
    return True


def test_a_program_that_the_verifier_refuses(btf: Btf) -> None:
    text = "int bad(void *ctx)\n{\n    return *(volatile int *)(bpf_ktime_get_ns());\n}\n"
    image = compile_text(text, ["bad"], cache=False)
    with Loaded(image, btf) as loaded, pytest.raises(KernelError, match="the verifier says"):
        loaded.load([ProgramSpec("bad", "raw", "inet_sock_set_state", required=True)])


def test_tracefs_is_found_or_mounted_for_us_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    monkeypatch.setattr(kprobe_events, "MOUNTS", os.devnull)
    with Tracefs() as tracefs:
        assert str(tracefs.path).startswith("/proc/self/fd/")
        assert (tracefs.path / "trace").exists()
        assert Path("/proc/self/mounts").read_text() == mounts
    assert not tracefs.path.exists()


def append(file: Path, line: str) -> None:
    """Writes to a file of tracefs; Python's mode "a" would seek, which such a file refuses."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
