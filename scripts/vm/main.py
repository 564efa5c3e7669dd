# SPDX-License-Identifier: Apache-2.0
"""Runs the tests in guests and on this kernel, and sums up: the program behind scripts/vmtest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from scripts.vm import arm64, guests, kernels, tools
from scripts.vm.guests import OUTCOMES, TIME_IS_UP, Verdict
from scripts.vm.tools import ROOT, Failure, say

SERIES = ("6.1", "6.12", "newest")
CI_SERIES = ("6.1", "newest")
"""With --ci, both at once: the kernels of CI_TESTS."""
ARM64_SERIES = ("arm64-6.1", "arm64-newest", "arm64-newest-16k", "arm64-newest-64k")
FULL_SERIES = ("5.10", *SERIES, "newest-rt", *ARM64_SERIES)
"""With --full."""
LIMIT_S = 2700.0
"""For each guest,"""
CI_LIMIT_S = 600.0
"""and with --ci for all."""
LEAST_S = 90.0
"""With less time left than this, there is no second boot."""
HOST_TESTS = (
    *sorted(f"tests/vm/{path.name}" for path in (ROOT / "tests/vm").glob("test_*")),
    "tests/live/test_locations.py",
)
CI_TESTS: dict[str, Sequence[str]] = {
    "tests/vm/test_vm_latecpu.py": [],  # first: the guest's second CPU is off until then
    "tests/vm/test_vm_old.py": ["6.1"],
    "tests/vm/test_vm_ways.py::test_all_programs_load_and_record": ["6.1"],
    "tests/vm/test_vm_ways.py::test_all_ways_read_the_same": ["newest"],
    "tests/vm/test_vm_loads.py::test_a_schema_loads[magnet]": [],
    "tests/vm/test_vm_loads.py::test_a_schema_loads[network]": [],
    "tests/vm/test_vm_loads.py::test_a_schema_loads[others]": [],
    "tests/live/test_attach_trials.py": CI_SERIES,
    "tests/live/test_bpf.py": [],
    "tests/live/test_kernel_constants.py": [],
    "tests/vm/test_vm_kprobes.py": ["6.1"],
    "tests/vm/test_vm_functions.py::test_functions[typed]": [],
    "tests/vm/test_vm_functions.py::test_functions[untyped]": ["6.1"],
    "tests/vm/test_vm_schemata.py::test_all_of_them[-fentry]": ["newest"],
    "tests/vm/test_vm_schemata.py::test_all_of_them[raw,kprobe-kprobe]": [],
    "tests/vm/test_vm_schemata.py::test_spinlocks_that_are_waited_for": [],
    "tests/vm/test_vm_schemata.py::test_stopwatch_without_functions": [],
    "tests/vm/test_vm_magnet.py": [],
    "tests/vm/test_vm_closing.py": [],
}
"""The guests' tests, and the kernels that run each with --ci, so that the guests have the same to
do. Without --ci all kernels run all of them.
"""
MORE_TESTS = (
    "tests/live/test_locations.py",
    "tests/vm/test_vm_network.py",
    "tests/vm/test_vm_host.py::test_all_of_them[best]",
    "tests/live/test_programs.py",
    "tests/live/test_rings.py",
    "tests/vm/test_vm_hotplug.py",
    "tests/vm/test_vm_clocks.py",
    "tests/vm/test_vm_probes.py",
    "tests/vm/test_vm_follow.py",
    "tests/vm/test_vm_schemata.py::test_a_release_that_is_not_seen",
    "tests/vm/test_vm_conform.py",
    "tests/vm/test_vm_drill.py",
    "tests/vm/test_vm_cpus.py",
    "tests/vm/test_vm_smoke.py",
    "tests/vm/test_vm_host.py::test_all_of_them[untyped]",
    "tests/vm/test_vm_bbr.py",
    "tests/vm/test_vm_protocols.py",
    "tests/live/test_identity.py::test_connections_one_after_the_other_on_one_socket[default]",
    "tests/live/test_try_live.py::test_half_of_the_ends_get_all_options_and_others_none[4]",
    "tests/live/test_try_live.py::test_half_of_the_ends_get_all_options_and_others_none[6]",
    "tests/live/test_try_live.py::test_only_sockets_of_the_control_group",
    "tests/live/test_daemon_early.py",
    "tests/live/test_disk.py",
    "tests/live/test_hostile_names.py",
    "tests/live/test_kernel_types_compile.py",
    "tests/live/test_kill.py",
    "tests/live/test_many_connections.py",
    "tests/live/test_oracle_ss.py",
    "tests/live/test_overload.py",
    "tests/live/test_signals.py::test_a_signal_during_a_full_drain",
    "tests/live/test_signals.py::test_a_second_signal",
    "tests/live/test_wireshark_live.py::test_rebuilt_packets_are_those_of_tcpdump[10.77.0.2-free]",
)
"""Left out with --ci: slow, or rather about tcpkmon than about kernels; scripts/test has live tests
of the same on this one."""
ARM64_TESTS = ("tests/vm/test_vm_smoke.py",)
"""On arm64, unless all are asked for,"""
ARM64_WHOLE = ("arm64-6.1", "arm64-newest")
"""but with --full these run CI_TESTS too, most of what LIMIT_S leaves time for: all that depends
on a machine's registers, numbers and names. Pages of another size change nothing of that.
MORE_TESTS are rather about tcpkmon: ask for them by --all.
"""
OLD_TESTS = ("tests/vm/test_vm_old.py",)
"""On kernels that are too old to capture."""
OLDEST = (5, 12)


def choose_tests(wanted: str, release: str, options: Collection[str]) -> Sequence[str]:
    """The tests for a guest, which was asked for by this name."""
    if kernels.arch_of(release) == "arm64" and "--all" not in options:
        whole = "--full" in options and wanted in ARM64_WHOLE
        return (*CI_TESTS, *ARM64_TESTS) if whole else ARM64_TESTS
    if kernels.version_key(release)[:2] < OLDEST:
        return OLD_TESTS
    if "--ci" in options:
        return [test for test, series in CI_TESTS.items() if wanted in series]
    return (*CI_TESTS, *MORE_TESTS)


def test_guest(kernel: tuple[str, Path], tests: Sequence[str], logs: Path, until: float) -> Verdict:
    """Runs tests on a kernel: in one boot, and what did not pass again in a second one."""
    release, folder = kernel
    verdict = Verdict(release)
    begun = time.monotonic()
    todo = list(tests)
    ended_in = ""
    for attempt in (1, 2):
        results = logs / f"{release}-{attempt}"
        verdict.broken = guests.boot(release, folder, todo, results, until)
        guests.keep_seen(release, results)
        outcomes, verdict.unreached = guests.read_results(results, todo)
        verdict.outcomes.update(outcomes)
        guests.show_failures(release, results)
        if verdict.broken and verdict.unreached and (results / "collected.json").exists():
            if ended_in == verdict.unreached[0]:
                verdict.outcomes[ended_in] = "failed"  # it ended the guest twice
            if verdict.broken != TIME_IS_UP:
                ended_in = verdict.unreached[0]
        if verdict.good or guests.stopping.is_set() or until - time.monotonic() < LEAST_S:
            break
        if attempt == 1:
            todo = [*verdict.having("failed"), *verdict.unreached]
            say(f"{release}  {verdict.broken or 'tests failed'}; another boot for what is left")
    if verdict.unreached and until - time.monotonic() < LEAST_S:
        verdict.broken = TIME_IS_UP
    verdict.report(time.monotonic() - begun)
    say(f"{release}  logs: {logs}/{release}-*")
    return verdict


def compile_tests(tests: Sequence[str]) -> None:
    """Python's compiled files of all that the tests import: guests take them from here."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "TCPKMON_LIVE": "1"}
    subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider",
         "--collect-only", "-q", *tests],
        cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def test_host(tests: Sequence[str], logs: Path) -> Verdict:
    """Runs tests on this kernel, directly."""
    release = os.uname().release
    results = logs / f"{release}-1"
    results.mkdir(parents=True)
    environment = {**os.environ, "TCPKMON_RESULTS": str(results), "TCPKMON_LIVE": "1"}
    python = str(ROOT / ".venv/bin/python")
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.vm.reporting"]
    begun = time.monotonic()
    with (results / "guest.log").open("wb") as log:
        done = subprocess.run(
            [*command, *tests], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, check=False,
        )  # fmt: skip
    guests.print_new(release, results, 0)
    outcomes, unreached = guests.read_results(results, tests)
    broken = "" if done.returncode in {0, 1} else f"pytest ended with {done.returncode}"
    verdict = Verdict(release, outcomes, unreached, broken)
    guests.show_failures(release, results)
    verdict.report(time.monotonic() - begun)
    guests.keep_seen(release, results)
    return verdict


def get_guest(wanted: str) -> tuple[str, Path]:
    """A kernel, as get_kernel() has it, and what its machine needs besides."""
    if kernels.arch_of(wanted) == "arm64":
        arm64.get_userland()
    return kernels.get_kernel(wanted)


def prepare(names: Sequence[str], is_ci: bool) -> dict[str, tuple[str, Path]]:
    """Fetches the guests' kernels; with --ci what cannot be fetched stops no other guest."""
    ready: dict[str, tuple[str, Path]] = {}
    wanted = [kernel for kernel in names if kernel != "host"]
    try:
        if os.getuid() != 0:
            raise Failure("needs root (sudo)")
        with tools.alone():
            tools.get_tools({kernels.arch_of(kernel) for kernel in wanted})
            for kernel in wanted:
                try:
                    release, folder = get_guest(kernel)
                    kernels.check_bootable(release, folder)
                    ready[kernel] = release, folder
                except Failure as failure:
                    if not is_ci:
                        raise
                    say(f"vmtest: the VM kernel {kernel} was NOT tested: {failure}")
    except Failure as failure:
        if not is_ci:
            raise
        say(f"vmtest: the VM kernels {', '.join(wanted)} were NOT tested: {failure}")
    return ready


def test_all(
    names: Sequence[str], arguments: Sequence[str], options: Collection[str]
) -> list[Verdict]:
    """Runs the tests (or pytest with `arguments`) on each kernel."""
    is_ci = "--ci" in options
    ready = prepare(names, is_ci)
    logs = tools.cache() / "vm-logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    until = time.monotonic() + (CI_LIMIT_S if is_ci else LIMIT_S * len(names))
    jobs = []
    for wanted in dict.fromkeys(names):
        if wanted == "host":
            jobs.append(partial(test_host, arguments or HOST_TESTS, logs))
        elif wanted in ready:
            tests = arguments or choose_tests(wanted, ready[wanted][0], options)
            compile_tests(tests)
            jobs.append(partial(test_guest, ready[wanted], tests, logs, until))
    at_once = len(jobs) if options & {"--ci", "--parallel"} else 1
    with ThreadPoolExecutor(at_once or 1) as pool:
        try:
            futures = [pool.submit(job) for job in jobs]
            return [future.result() for future in futures]
        except BaseException:
            guests.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise


def main(arguments: list[str], usage: str = "") -> int:
    """The exit code; Failure or OSError when the tests could not be run."""
    more: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, more = arguments[:at], arguments[at + 1 :]
    if {"-h", "--help"} & set(arguments):
        print(usage)
        return 0
    options = {word for word in arguments if word.startswith("-")}
    given = CI_SERIES if "--ci" in options else FULL_SERIES if "--full" in options else SERIES
    names = [word for word in arguments if word not in options] or list(given)
    if unknown := options - {"--all", "--ci", "--fetch", "--full", "--list", "--parallel"}:
        print(f"vmtest: unknown option {min(unknown)}; try --help", file=sys.stderr)
        return 2
    if "--list" in options:
        print("\n".join(f"{name:10} {its}" for name, its in kernels.list_names().items()))
        return 0
    if "--fetch" in options:
        with tools.alone():
            tools.get_tools({kernels.arch_of(wanted) for wanted in names})
            for wanted in names:
                get_guest(wanted)
        return 0
    verdicts = test_all(names, more, options)
    sums = [sum(len(v.having(name)) for v in verdicts) for name in OUTCOMES[:3]]
    if any(sums):
        say(f"vmtest: {sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    all_ran = len(verdicts) == len(dict.fromkeys(names))
    return 0 if all_ran and all(verdict.good for verdict in verdicts) else 1
