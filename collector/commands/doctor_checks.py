# SPDX-License-Identifier: Apache-2.0
"""Examines this machine for tcpkmon doctor."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.linux.btf import Btf
from collector.linux.kernel_constants import measure
from collector.loader.attach_trials import Probing
from collector.loader.prepare import Wish, prepare
from collector.plan.columns import choose_locations, load_schema
from collector.plan.probes import absent_columns, find_probes, make_plan, read_text
from formats.base.errors import TcpkmonError

SYSTEM_PYTHON = "/usr/bin/python3"
MOUNTS = Path("/proc/mounts")


@dataclass(frozen=True)
class Check:
    """One thing a capture needs or can use: `needed` ones must be good."""

    name: str
    good: bool
    found: str
    advice: str = ""
    needed: bool = True


@dataclass(frozen=True)
class Report:
    """What was found; `locations`: name -> kind:target, None where `missing` says why not."""

    checks: tuple[Check, ...]
    locations: Mapping[str, str | None] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

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
    """Looks at kernel, privilege, BTF, bcc, perf, namespaces, and tries each way to attach."""
    checks = [
        Check("kernel", platform.system() == "Linux", f"{platform.release()} {platform.machine()}"),
        Check("privilege", os.geteuid() == 0, "root" if os.geteuid() == 0 else "not root",
              "run it with sudo"),
    ]
    btf: Btf | None = None
    try:
        btf = Btf.from_kernel()
        checks.append(Check("BTF", True, "/sys/kernel/btf/vmlinux"))
    except TcpkmonError as error:
        checks.append(Check("BTF", False, error.message, error.hint))
    checks += [_check_bcc(), _check_perf(), _check_tracefs(), _check_namespaces(), _check_cgroups()]
    if btf is None or os.geteuid() != 0:
        return Report(tuple(checks))
    schema = load_schema()
    text = read_text()
    everything = choose_locations(schema, "all")
    plan = make_plan(find_probes(text), {*everything, "EXISTING"}, Probing(btf), btf)
    absent = list(absent_columns(text, btf))
    if measure(btf).mss_overhead is None:
        absent.append("sb_net_target")
    walk = plan.kind_of("EXISTING")
    checks.append(
        Check("existing connections", True, walk or "sock_diag (there is no socket iterator)")
    )
    attachable = any(p.kind != "iter" for p in plan.probes)
    checks.append(
        Check("tracing", attachable, "programs attach" if attachable else "nothing attaches",
              "CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF are needed")
    )  # fmt: skip
    if attachable:
        checks.append(_check_program())
    kinds = {name: plan.kind_of(name) for name in everything}
    return Report(tuple(checks), kinds, plan.missing, tuple(absent))


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


def _check_program() -> Check:
    """Compiles what collect runs by default: it is in the cache then, when it is wanted."""
    try:
        prepare(Wish())
    except TcpkmonError as error:
        return Check("compiler", False, error.message, error.hint)
    return Check("compiler", True, "the default capture compiles")


def _check_perf() -> Check:
    path = Path("/proc/sys/kernel/perf_event_paranoid")
    there = path.exists()
    return Check("perf events", there, "there" if there else "not in this kernel",
                 "CONFIG_PERF_EVENTS is needed")


def _check_tracefs() -> Check:
    mounted = any(
        line.split()[2] == "tracefs" for line in MOUNTS.read_text().splitlines()
    )
    known = "tracefs" in Path("/proc/filesystems").read_text()
    found = "mounted" if mounted else "not mounted (tcpkmon mounts its own)" if known else "none"
    return Check("tracefs", mounted or known, found, "only kprobes need it", needed=False)


def _check_namespaces() -> Check:
    there = Path("/proc/self/ns/net").exists()
    found = "there" if there else "not in this kernel"
    return Check("network namespaces", there, found, needed=False)


def _check_cgroups() -> Check:
    lines = [line.split() for line in MOUNTS.read_text(errors="replace").splitlines()]
    place = next((words[1] for words in lines if words[2:3] == ["cgroup2"]), None)
    return Check("cgroup version 2", place is not None, place or "not mounted",
                 "only --cgroup needs it", needed=False)
