# SPDX-License-Identifier: Apache-2.0
"""Programs that sleep in known ways, and perf's view of who waited for a CPU."""

from __future__ import annotations

import re

# Each child sleeps in one way, as often as told; another process wakes it 10 ms later. It tells the
# pid of each.
SLEEPER = """
import fcntl, json, os, pty, select, socket, sys, threading, time, tty

times, folder = int(sys.argv[1]), sys.argv[2]

def later(act):
    if not os.fork():
        for _ in range(times):
            time.sleep(0.01)
            act()
            time.sleep(0.01)
        os._exit(0)

def repeat(act):
    for _ in range(times):
        act()

def pipe():
    inner, outer = os.pipe()
    later(lambda: os.write(outer, b"x"))
    repeat(lambda: os.read(inner, 1))

def terminal():
    master, slave = pty.openpty()
    tty.setraw(slave)
    later(lambda: os.write(master, b"x"))
    repeat(lambda: os.read(slave, 1))

def unix():
    one, other = socket.socketpair()
    later(lambda: other.send(b"x"))
    repeat(lambda: one.recv(1))

def tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    later(lambda: other.send(b"x"))
    repeat(lambda: one.recv(1))

def poll():
    inner, outer = os.pipe()
    poller = select.poll()
    poller.register(inner)
    repeat(lambda: poller.poll(10))

def epoll():
    inner, outer = os.pipe()
    poller = select.epoll()
    poller.register(inner)
    repeat(lambda: poller.poll(0.01))

def futex():
    repeat(lambda: threading.Event().wait(0.01))

def timer():
    repeat(lambda: time.sleep(0.01))

def wait():
    def once():
        child = os.fork()
        if not child:
            time.sleep(0.01)
            os._exit(0)
        os.waitpid(child, 0)
    repeat(once)

def disk():
    file = os.open(f"{folder}/file", os.O_RDWR | os.O_CREAT)
    def once():
        os.pwrite(file, os.urandom(1 << 16), 0)
        os.fsync(file)
    repeat(once)

told = {}
for kind in (pipe, terminal, unix, tcp, poll, epoll, futex, timer, wait, disk):
    child = os.fork()
    if not child:
        kind()
        os._exit(0)
    os.waitpid(child, 0)
    told[kind.__name__] = child
print(json.dumps(told))
"""
KINDS = {
    "pipe": "PIPE", "terminal": "TTY", "unix": "SOCKET", "tcp": "SOCKET", "poll": "POLL",
    "epoll": "POLL", "futex": "FUTEX", "timer": "TIMER", "wait": "WAIT", "disk": "DISK",
}  # fmt: skip
# perf needs tracefs: see tests/live/test_oracle_perf.py. `perf sched record` of today records no
# sched_wakeup, without which `perf sched latency` knows no wake-ups.
RECORD = (
    "{ mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing; } && "
    'exec perf record -q -a -R -c 1 -k CLOCK_MONOTONIC -m 1024 -o "$1" '
    "-e sched:sched_switch,sched:sched_wakeup,sched:sched_wakeup_new,sched:sched_stat_runtime "
    "-- sleep 1"
)
PERF_LINE = re.compile(
    r"^\s*(?P<task>\S+):\(?(?P<pid>\d+)\)?\s*\|\s*[\d.]+ ms \|\s*(?P<count>\d+) \|"
    r" avg:\s*(?P<mean>[\d.]+) ms \| max:\s*(?P<most>[\d.]+) ms", re.M
)  # fmt: skip
