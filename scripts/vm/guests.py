# SPDX-License-Identifier: Apache-2.0
"""Boots a guest, which runs tests, and reads the results that tests/vm/reporting.py writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.vm import arm64
from scripts.vm.kernels import arch_of
from scripts.vm.tools import ROOT, Failure, cache, run, say

STALL_S = {"amd64": 540.0, "arm64": 1320.0}
"""A guest that writes nothing for so long hangs; a test's own time limit is shorter: guest.sh."""
APPEND = "tsc=reliable mitigations=off nowatchdog audit=0 tcpkmon-guest"
"""A test or guest.sh switches the second CPU on. The rest saves work for an emulated CPU."""
_TSC = re.compile(r"tsc: (?:Detected|Refined TSC clocksource calibration:) ([\d.]+) MHz")
BROKEN = re.compile(
    r"Kernel panic|\bBUG: (?!soft lockup|workqueue)|Oops:|general protection fault[,:]"
)
DOUBTFUL = re.compile(r"soft lockup|rcu.*detected stalls|hung_task|blocked for more than")
TIME_IS_UP = "time is up"
OUTCOMES = ("passed", "failed", "skipped", "rerun")
stopping = threading.Event()


@dataclass
class Verdict:
    """The outcomes of the tests on one kernel."""

    release: str
    outcomes: dict[str, str] = field(default_factory=dict)
    unreached: list[str] = field(default_factory=list)
    broken: str = ""
    """What ended the last boot before the end of its tests."""

    def having(self, outcome: str) -> list[str]:
        return [test for test, its in self.outcomes.items() if its == outcome]

    @property
    def good(self) -> bool:
        return not self.having("failed") and not self.unreached and not self.broken

    def report(self, seconds: float) -> None:
        counts = ", ".join(f"{len(self.having(name))} {name}" for name in OUTCOMES[:3])
        say(f"{self.release}  {'passed' if self.good else 'NOT PASSED'}: {counts}"
            f" in {seconds:.0f} s")  # fmt: skip
        for test in self.having("failed"):
            say(f"{self.release}  failed: {test}")
        if self.broken:
            say(f"{self.release}  {self.broken}")
        if self.unreached:
            say(f"{self.release}  not reached: {' '.join(self.unreached)}")


def tsc_option() -> str:
    """The frequency of the host's time stamp counter, which is the guests' too. A guest that
    measures it beside other work finds a third of it, and its clock is three times too fast."""
    try:
        found = _TSC.findall(run("dmesg"))
    except Failure:
        return ""
    return f" tsc_early_khz={round(1000 * float(found[-1]))}" if found else ""


def boot_command(release: str, folder: Path, results: Path) -> list[str]:
    """Boots the kernel and runs guest.sh, which finds the tests in `results`. TCPKMON_GUEST_CPUS:
    how many CPUs it has, all of them on; else two, the second off."""
    cpus = os.environ.get("TCPKMON_GUEST_CPUS", "")
    return [
        "vng", "--verbose", "--run", str(folder / "boot" / f"vmlinuz-{release}"), "--disable-kvm",
        "--cpus", cpus or "2", "--memory", "4G", "--user", "root", "--force-9p",
        "--disable-monitor",
        f"--rwdir={results}={results}",
        # One thread for both CPUs: with two, a CPU of qemu 7.2 sometimes runs into a breakpoint
        # that the other has already removed, when a tracepoint is switched on (Oops: int3).
        # A plain CPU: the extensions of newer ones (AVX, protection keys) are slow to emulate.
        "--qemu-opts=-accel tcg,thread=single -cpu Nehalem"
        " -fsdev local,id=cached,path=/,readonly=on,security_model=none,multidevs=remap"
        " -device virtio-9p-pci,fsdev=cached,mount_tag=cached",
        "--append", (APPEND if cpus else f"maxcpus=1 {APPEND}") + tsc_option(),
        "--exec", f"bash '{ROOT}/tests/vm/guest.sh' '{ROOT}' '{results}'",
    ]  # fmt: skip


def boot(
    release: str, folder: Path, tests: Sequence[str], results: Path, until: float
) -> str:
    """Boots, waits, prints a line for each test file; returns what broke, or an empty text."""
    (results / "compile").mkdir(parents=True)
    (results / "arguments").write_text("".join(f"{test}\n" for test in tests))
    make = arm64.boot_command if arch_of(release) == "arm64" else boot_command
    command = make(release, folder, results)
    with (results / "console.log").open("wb") as console:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        try:
            broken = wait(process, release, results, until)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    status = results / "exit"
    if not broken and not status.exists():
        broken = "the guest ended before its tests did"
    if not broken and status.read_text().strip() not in {"0", "1"}:
        broken = f"pytest ended with {status.read_text().strip()}"
    return broken


def wait(process: subprocess.Popen[bytes], release: str, results: Path, until: float) -> str:
    """Waits until the guest is off; returns what broke, or an empty text."""
    logs = [results / name for name in ("console.log", "guest.log", "outcomes.jsonl")]
    moved = time.monotonic()
    most_s = STALL_S[arch_of(release)]
    sizes: list[int] = []
    printed = 0
    while True:
        ended = process.poll() is not None
        printed = print_new(release, results, printed)
        text = logs[0].read_text(errors="replace") if logs[0].exists() else ""
        if found := BROKEN.search(text):
            line = text[text.rfind("\n", 0, found.start()) + 1 :].splitlines()[0]
            return f"the kernel broke: {line.strip()}"
        if ended:
            for doubt in sorted({match[0] for match in DOUBTFUL.finditer(text)}):
                say(f"{release}  note: the kernel said '{doubt}' (an emulated CPU was starved?)")
            return ""
        now = time.monotonic()
        new = [log.stat().st_size if log.exists() else 0 for log in logs]
        if new != sizes:
            sizes, moved = new, now
        if now > until:
            return TIME_IS_UP
        if now - moved > most_s:
            return f"the guest hangs: nothing was said for {most_s:.0f} s"
        serve_compiler(results / "compile", arch_of(release))
        if stopping.wait(0.2):
            return "interrupted"


def serve_compiler(folder: Path, arch: str) -> None:
    """Compiles what the guest asks for: see tests/vm/compile_far.py."""
    for asked in folder.glob("*.request"):
        text = asked.read_text()
        asked.unlink()
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        if arch == "arm64":
            environment["ARCH"] = arch  # BCC's name for the machine that it compiles for
        environment["BCC_KERNEL_SOURCE"] = str(ROOT / "bpf/include/stub")
        try:
            done = subprocess.run(
                ["/usr/bin/python3", "-I", str(ROOT / "collector/loader/bcc_child.py")], input=text,
                text=True, capture_output=True, env=environment, cwd="/", timeout=50, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            continue  # the guest compiles by itself
        new = asked.with_suffix(".new")
        new.write_text(json.dumps({"stdout": done.stdout, "stderr": done.stderr}))
        new.rename(asked.with_suffix(".answer"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that may still grow."""
    rows = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(text))
        except ValueError:
            break
    return rows


def print_new(release: str, results: Path, printed: int) -> int:
    """Prints a line for each test file that is done, but the first `printed`; how many are done."""
    rows = rows_of(results / "results.jsonl")
    for row in rows[printed:]:
        counts = ", ".join(f"{row[name]} {name}" for name in OUTCOMES if row[name])
        verdict = "FAILED" if row["failed"] else "ok"
        say(f"{release}  {row['file']:<36} {verdict:<6} {counts}  ({row['seconds']} s)")
    return len(rows)


def read_results(results: Path, tests: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The outcomes by test, and the tests without one."""
    outcomes = {row["test"]: row["outcome"] for row in rows_of(results / "outcomes.jsonl")}
    collected = results / "collected.json"
    wanted = json.loads(collected.read_text()) if collected.exists() else list(tests)
    return outcomes, [test for test in wanted if test not in outcomes]


def show_failures(release: str, results: Path) -> None:
    """Prints the end of the failures' text, for readers of this output only (CI)."""
    path = results / "failures.log"
    for line in path.read_text(errors="replace").splitlines()[-80:] if path.exists() else []:
        shown = "".join(char if char.isprintable() else "?" for char in line[:200])
        say(f"{release}  | {shown}")


def keep_seen(release: str, results: Path) -> None:
    """Keeps what was seen, for scripts/kernels and `scripts/test --truth conform`; adds earlier
    records of ways that are the same."""
    if (found := results / "conform.json").exists():
        kept = cache() / "conform" / f"{release}.json"
        told = json.loads(kept.read_text()) if kept.exists() else {}
        for key, value in json.loads(found.read_text()).items():
            # A run of some tests leaves what others found.
            told[key] = told.get(key, {}) | value if isinstance(value, dict) else value
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(told))
    seen, kept = results / "seen.json", cache() / "seen" / f"{release}.json"
    if not seen.exists():
        return
    new = json.loads(seen.read_text())
    old = json.loads(kept.read_text()).get("locations", {}) if kept.exists() else {}
    for name, place in new.get("locations", {}).items():
        before = old.get(name, {})
        if before.get("ways") == place["ways"]:
            place["recorded"] = {**before["recorded"], **place["recorded"]}
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(new, indent=1) + "\n")
