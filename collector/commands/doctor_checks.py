# SPDX-License-Identifier: Apache-2.0
"""Examines this machine for tcpkmon doctor."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tcpkmon.collector.linux.btf import KERNEL_BTF, Btf
from tcpkmon.collector.loader.attach_trials import check_atomics
from tcpkmon.collector.loader.prepare import check_machine, check_privilege, decide, prepare
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.ring.rings import choose_transport
from tcpkmon.formats.base.errors import TcpkmonError

SYSTEM_PYTHON = "/usr/bin/python3"
MOUNTS = Path("/proc/mounts")
_REASONS = {
    "drop reasons": ("skb_drop_reason", "before Linux 5.17 drops have no reason, and so no cause"),
    "reset reasons": ("sk_rst_reason", "before Linux 6.10 resets have none: no cause orphans"),
}
"""What a kernel may not say, its enum, and what is lacking then."""


@dataclass(frozen=True)
class Check:
    """One check of this machine. Captures work only where all `needed` ones are good."""

    name: str
    good: bool
    found: str
    advice: str = ""
    needed: bool = True


@dataclass(frozen=True)
class Report:
    """The results. locations: name -> kind:target, or None; missing: name -> why it is None."""

    checks: tuple[Check, ...]
    locations: Mapping[str, str | None] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    @property
    def is_root(self) -> bool:
        return all(check.good for check in self.checks if check.name == "privilege")

    @property
    def able(self) -> bool:
        return all(check.good for check in self.checks if check.needed)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "kernel": platform.release(),
            "able": self.able,
            "checks": [vars(check) for check in self.checks],
            "locations": dict(self.locations),
            "missing": dict(self.missing),
            "absent_columns": list(self.absent),
        }


def examine() -> Report:
    """Checks kernel, privilege, BTF, bcc, perf and namespaces, and tries each way to attach."""
    privilege = _attempt("privilege", check_privilege, "root", "not root")
    required = [
        Check("kernel", platform.system() == "Linux", f"{platform.release()} {platform.machine()}"),
        _attempt("machine", check_machine, platform.machine()),
        privilege,
        _attempt("BTF", Btf.from_kernel, str(KERNEL_BTF)),
    ]
    if privilege.good:
        required.append(_attempt("atomics", check_atomics, "programs can number records"))
    checks = [*required, _check_bcc(), *_check_files()]
    if not all(check.good for check in required):
        return Report(tuple(checks))
    transport, refused = choose_transport()
    checks.append(Check("rings", True, "; ".join((transport.name, *refused))))
    everything = decide(Request(Filters(), "-", columns="all", locations="all"))
    plan, tcp = everything.plan, everything.tcp
    assert tcp is not None
    walk = plan.kind_of("EXISTING")
    checks.append(
        Check("existing connections", walk is not None, walk or plan.missing["EXISTING"],
              "the kernel needs the BPF iterator of TCP sockets; else capture with --no-existing",
              needed=False)
    )
    attachable = any(p.kind != "iter" for p in plan.probes)
    checks.append(
        Check("tracing", attachable, "programs attach" if attachable else "nothing attaches",
              "CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF are needed")
    )  # fmt: skip
    btf = Btf.from_kernel()
    for name, (enum, lacking) in _REASONS.items():
        there = btf.find_enum(enum) is not None
        checks.append(Check(name, there, "there" if there else "not in this kernel", lacking,
                            needed=False))  # fmt: skip
    unseen = plan.unseen
    checks.append(Check("processes", not unseen, unseen or "programs see all", needed=False))
    if attachable:
        # The default capture of collect: its image is in the cache from now on.
        compiles, default = "the default capture compiles", Request(Filters(), "-")
        checks.append(_attempt("compiler", lambda: prepare(default, transport), compiles))
    kinds = {name: plan.kind_of(name) for name in tcp.switches.enabled}
    return Report(tuple(checks), kinds, plan.missing, tcp.layout.absent)


def _attempt(name: str, call: Callable[[], object], found: str, not_found: str = "") -> Check:
    """A check that is good unless the call raises; `not_found` in place of the error's message."""
    try:
        call()
    except TcpkmonError as error:
        return Check(name, False, not_found or error.message, error.hint)
    return Check(name, True, found)


def _check_bcc() -> Check:
    try:
        asked = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-c", "import bcc; print(bcc.__version__)"],
            capture_output=True, text=True, check=False, timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("bcc", False, f"{SYSTEM_PYTHON}: {error}", "apt install python3-bpfcc")
    if asked.returncode:
        return Check("bcc", False, "not installed", "apt install python3-bpfcc")
    return Check("bcc", True, asked.stdout.strip())


def _check_files() -> list[Check]:
    """Checks what /proc shows: perf events, tracefs, namespaces, cgroups."""
    rows = (line.split() for line in reversed(_read(MOUNTS)))
    mounts = {words[2]: words[1] for words in rows}  # of each type the first
    known = "tracefs" in " ".join(_read(Path("/proc/filesystems"))).split()
    tracefs = "not mounted (tcpkmon mounts its own)" if known else "none"
    cgroup = mounts.get("cgroup2", "")
    return [
        _check_there("perf events", "/proc/sys/kernel/perf_event_paranoid",
                     "CONFIG_PERF_EVENTS is needed"),
        Check("tracefs", "tracefs" in mounts or known,
              "mounted" if "tracefs" in mounts else tracefs, "only kprobes need it", needed=False),
        _check_there("network namespaces", "/proc/self/ns/net", needed=False),
        Check("cgroup version 2", bool(cgroup), cgroup or "not mounted",
              "only --cgroup needs it", needed=False),
    ]  # fmt: skip


def _check_there(name: str, path: str, advice: str = "", needed: bool = True) -> Check:
    there = Path(path).exists()
    return Check(name, there, "there" if there else "not in this kernel", advice, needed)


def _read(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
