# SPDX-License-Identifier: Apache-2.0
"""scripts/vmtest around its guests: second boots, time that runs out, tools that are not there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts.vm import guests, kernels, main, tools, ubuntu

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vmtest"
KERNEL = ("6.1.0-1-amd64", Path("/nowhere"))
TESTS = ("tests/a.py::one", "tests/a.py::two", "tests/b.py::three")
Boot = tuple[dict[str, str], str]


@pytest.fixture
def vmtest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The main module, with a cache of its own. Nothing is compiled for guests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(main, "compile_tests", lambda tests: None)
    return main


@pytest.fixture
def boots(vmtest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Guests that do what they are told: (outcomes, what broke) each; the tests they were given."""

    def make(*planned: Boot) -> list[list[str]]:
        asked: list[list[str]] = []
        plan = iter(planned)

        def boot(
            release: str, folder: Path, tests: Sequence[str], results: Path, until: float
        ) -> Any:
            outcomes, broken = next(plan)
            asked.append(list(tests))
            results.mkdir(parents=True)
            (results / "collected.json").write_text(json.dumps(list(tests)))
            rows = [{"test": test, "outcome": outcome} for test, outcome in outcomes.items()]
            (results / "outcomes.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"te')
            return broken

        monkeypatch.setattr(guests, "boot", boot)
        return asked

    return make


ALL = dict.fromkeys(TESTS, "passed")


def run(vmtest: ModuleType, tmp_path: Path, left_s: float = 3600.0) -> Any:
    return vmtest.test_guest(KERNEL, TESTS, tmp_path / "logs", time.monotonic() + left_s)


def test_what_did_not_pass_is_booted_once_more(
    vmtest: ModuleType, boots: Any, tmp_path: Path
) -> None:
    first = {TESTS[0]: "passed", TESTS[1]: "failed"}
    asked = boots((first, "the kernel broke"), ({TESTS[1]: "passed", TESTS[2]: "skipped"}, ""))
    verdict = run(vmtest, tmp_path)
    assert asked == [list(TESTS), [TESTS[1], TESTS[2]]]
    assert verdict.good
    assert verdict.outcomes == {**ALL, TESTS[2]: "skipped"}


@pytest.mark.parametrize(
    ("second", "failed"),
    [(({TESTS[1]: "failed", TESTS[2]: "passed"}, ""), [TESTS[1]]),
     (({}, "the kernel broke"), [TESTS[1]])],
)  # fmt: skip
def test_what_fails_again_has_failed(
    vmtest: ModuleType, boots: Any, tmp_path: Path, second: Boot, failed: list[str]
) -> None:
    """A guest that dies fails the test that was under way, both times."""
    boots(({TESTS[0]: "passed", TESTS[1]: "failed"}, ""), second)
    verdict = run(vmtest, tmp_path)
    assert not verdict.good
    assert verdict.having("failed") == failed


def test_time_that_runs_out_is_a_failure_and_said(
    vmtest: ModuleType, boots: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = boots(({TESTS[0]: "passed"}, vmtest.TIME_IS_UP))
    verdict = run(vmtest, tmp_path, left_s=0)
    assert len(asked) == 1
    assert not verdict.good
    assert f"not reached: {TESTS[1]} {TESTS[2]}" in capsys.readouterr().out


def test_ci_fails_where_no_guest_can_run(
    vmtest: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def get_tools(machines: object) -> None:
        raise vmtest.Failure("apt-get failed: no network")

    monkeypatch.setattr(tools, "get_tools", get_tools)
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert vmtest.main(["--ci"]) == 1
    said = capsys.readouterr().out
    assert "6.1, newest were NOT tested: apt-get failed: no network" in said
    with pytest.raises(vmtest.Failure):
        vmtest.main([])


def test_a_kernel_that_cannot_be_had_fails_and_stops_no_other(
    vmtest: ModuleType, boots: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def get_kernel(wanted: str) -> tuple[str, Path]:
        if wanted == "6.1":
            raise vmtest.Failure("no package")
        return f"{wanted}.0-1-amd64", Path("/nowhere")

    boots((ALL, ""))
    monkeypatch.setattr(tools, "get_tools", lambda machines: None)
    monkeypatch.setattr(kernels, "check_bootable", lambda *_: None)
    monkeypatch.setattr(kernels, "get_kernel", get_kernel)
    monkeypatch.setattr("os.getuid", lambda: 0)
    assert vmtest.main(["--ci", "--", *TESTS]) == 1
    said = capsys.readouterr().out
    assert "kernel 6.1 was NOT tested: no package" in said
    assert said.splitlines()[-1] == f"vmtest: {len(TESTS)} passed, 0 failed, 0 skipped"


def test_a_panic_is_seen_and_a_program_that_crashed_is_none() -> None:
    assert guests.BROKEN.search("[ 1.0] Oops: int3: 0000 [#1]")
    assert guests.BROKEN.search("[ 1.0] BUG: kernel NULL pointer dereference")
    assert not guests.BROKEN.search("watchdog: BUG: soft lockup - CPU#0 stuck")
    assert not guests.BROKEN.search("traps: python[9] general protection fault ip:7f00")


LISTINGS = {
    "amd64": (
        "6.1.0-0.deb11.52-amd64", "6.1.0-9-amd64", "6.1.0-56-amd64", "6.1.0-56-amd64-dbg",
        "6.1-amd64", "6.12.90+deb13-amd64", "6.12.90+deb13.1-amd64", "7.2.13+deb14-cloud-amd64",
        "7.3.4+deb13-amd64", "7.3.4+deb13-rt-amd64",
    ),
    "arm64": ("6.1.0-56-arm64", "6.12.90+deb13-arm64-16k"),
    "arm64-64k": ("7.0.0-9-generic-64k", "7.0.0-14-generic-64k", "7.0.0-1003-oracle-64k"),
}  # fmt: skip
"""Releases of the packages linux-image-* of an archive; of 7.3 there are linux-binary-* and
linux-modules-* too, and of 7.4 modules alone."""
BESIDE = ("7.3.4+deb13-amd64", "7.3.4+deb13-rt-amd64", "7.4.1+deb14-amd64")


def listing(archive: str) -> str:
    """What apt-cache search says of it."""
    names = [f"linux-image-{release}" for release in LISTINGS[archive]]
    if archive == "amd64":
        names += [f"linux-binary-{release}" for release in BESIDE[:2]]
    if archive != "arm64":
        names += [f"linux-modules-{release}" for release in BESIDE]
    return "".join(f"{name} - Linux\n" for name in names)


@pytest.fixture
def lists(vmtest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's lists as above."""

    def run(*command: str, **options: Any) -> str:
        archive = "arm64" if "APT::Architecture=arm64" in command else "amd64"
        if any("arm64-64k" in word for word in command):
            archive = "arm64-64k"
        return listing(archive) if command[0] == "apt-cache" else ""

    monkeypatch.setattr(kernels, "run", run)
    monkeypatch.setattr(kernels, "KEYRING", SCRIPT)
    monkeypatch.setattr(ubuntu, "run", lambda *command: "")


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("6.1", "6.1.0-56-amd64"),
        ("6.1.0-9-amd64", "6.1.0-9-amd64"),
        ("6.12", "6.12.90+deb13.1-amd64"),
        ("6", "6.12.90+deb13.1-amd64"),
        ("newest", "7.3.4+deb13-amd64"),
        ("7.3-rt", "7.3.4+deb13-rt-amd64"),
        ("newest-rt", "7.3.4+deb13-rt-amd64"),
        ("7.2-cloud", "7.2.13+deb14-cloud-amd64"),
        ("arm64-6.1", "6.1.0-56-arm64"),
        ("arm64-newest-16k", "6.12.90+deb13-arm64-16k"),
        ("arm64-newest-64k", "7.0.0-14-generic-64k"),
    ],
)
def test_what_a_name_stands_for(lists: None, name: str, release: str) -> None:
    assert kernels.find_release(name) == release


@pytest.mark.parametrize("name", ["5.10", "7.2", "6.1-rt", "7.4", "oldest", "6.1-amd64"])
def test_a_name_that_stands_for_none(lists: None, name: str) -> None:
    with pytest.raises(kernels.Failure, match=f"no kernel {name}: see --list"):
        kernels.find_release(name)


def test_a_kernel_without_9p_is_not_booted(tmp_path: Path) -> None:
    folder = tmp_path / "lib/modules/7.3.4-amd64/kernel/fs/9p"
    folder.mkdir(parents=True)
    kernels.check_bootable("7.3.4-amd64", tmp_path)
    folder.rmdir()
    with pytest.raises(kernels.Failure, match="no 9p"):
        kernels.check_bootable("7.3.4-amd64", tmp_path)


def test_the_tests_for_guests_are_there(vmtest: ModuleType) -> None:
    for test in (*vmtest.CI_TESTS, *vmtest.MORE_TESTS, *vmtest.HOST_TESTS):
        file, _, name = test.partition("::")
        text = (SCRIPT.parents[1] / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text, test
    beside = {f"tests/vm/{path.name}" for path in (SCRIPT.parents[1] / "tests/vm").glob("test_*")}
    listed = (*vmtest.CI_TESTS, *vmtest.MORE_TESTS)
    assert beside <= {test.partition("::")[0] for test in listed}


KERNELS = Path(__file__).resolve().parents[2] / "scripts" / "kernels"


@pytest.fixture
def script() -> Any:
    loader = SourceFileLoader("kernels_script", str(KERNELS))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_has_the_texts(script: Any) -> None:
    page = (KERNELS.parents[1] / "docs/kernels.md").read_text()
    for text in (script.LEGEND, script.DIFFERENCES, script.ARM64, script.TESTS, script.FACTS,
                 script.WAYS):  # fmt: skip
        assert text.rstrip("\n") in page
