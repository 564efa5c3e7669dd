# SPDX-License-Identifier: Apache-2.0
"""The plugin of pytest: the fixture and the marker tcpkmon. docs/pytest.md describes it.

Every run of pytest imports this module: all else is imported when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pluggy

    from tcpkmon.collector.testing.captures import Captures

_NAME = "tcpkmon"
_MADE = pytest.StashKey["Captures"]()
_BEFORE = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options --tcpkmon-..."""
    group = parser.getgroup(_NAME, "captures of TCP around tests")
    group.addoption("--tcpkmon-baseline", metavar="FILE", type=Path,
                    help="Compare what captures measure with the values in this JSON file.")
    group.addoption("--tcpkmon-store", action="store_true",
                    help="Store the values in that file instead.")
    group.addoption("--tcpkmon-collector", metavar="PID|NAME",
                    help="Without root: the running capture to look at, if there are several.")
    group.addoption("--tcpkmon-require", action="store_true",
                    help="Let tests fail that would be skipped because they cannot capture.")


def pytest_configure(config: pytest.Config) -> None:
    """Adds the marker."""
    config.addinivalue_line(
        "markers",
        "tcpkmon(name='', check=(), baseline=False, **options): capture TCP while the test "
        "runs, with options of collect; then check these assertions",
    )
    baseline, store = _baseline(config), config.getoption("tcpkmon_store")
    if baseline is None:
        if store:
            raise pytest.UsageError("--tcpkmon-store stores in the file of --tcpkmon-baseline FILE")
        return
    from tcpkmon.collector.testing.baseline import check_file
    from tcpkmon.formats.base.errors import FileError

    try:
        check_file(baseline, store)
    except FileError as error:
        raise pytest.UsageError(f"--tcpkmon-baseline: {error}") from None
    if store:
        config.stash[_BEFORE] = _changed_ns(baseline)


def _changed_ns(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what --tcpkmon-store did; tests may run in other processes."""
    config = terminalreporter.config
    baseline, before = _baseline(config), config.stash.get(_BEFORE, None)
    if baseline is None or before is None:
        return
    said = f"values are stored in {baseline}"
    if _changed_ns(baseline) == before:
        marker = "had the marker tcpkmon(baseline=True)"
        said = f"nothing was stored: no test called capture.baseline(), or {marker}"
    terminalreporter.write_line(f"tcpkmon: {said}")


def _baseline(config: pytest.Config) -> Path | None:
    """From where pytest was started: a test may be in another folder."""
    given = config.getoption("tcpkmon_baseline")
    return None if given is None else config.invocation_params.dir / given


def pytest_itemcollected(item: pytest.Item) -> None:
    """A marked test has the fixture, whether it asks for it or not."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker(_NAME) is None:
        return
    if _NAME not in item.fixturenames:
        item.fixturenames.append(_NAME)


@pytest.fixture
def tcpkmon(request: pytest.FixtureRequest, tmp_path: Path) -> Captures:
    """Captures TCP: `with tcpkmon.capture(ports=[5201]) as capture:`, then capture.check(...)."""
    from tcpkmon.collector.testing.captures import Captures

    config = request.config
    made = Captures(
        tmp_path,
        request.node.nodeid,
        baseline=_baseline(config),
        store=config.getoption("tcpkmon_store"),
        require=config.getoption("tcpkmon_require"),
        collector=config.getoption("tcpkmon_collector"),
    )
    request.node.stash[_MADE] = made
    return made


# Wrappers in the old style: the system's pytest of Debian 12 has no others, and a plugin that is
# installed is loaded by every run.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, pluggy.Result[None], None]:
    """Captures around a marked test, then checks what the marker says."""
    marker = item.get_closest_marker(_NAME)
    made = item.stash.get(_MADE, None)
    if marker is None or made is None:
        yield
        return
    options = dict(marker.kwargs)
    checks, baseline = options.pop("check", ()), options.pop("baseline", False)
    checks = [checks] if isinstance(checks, str) else checks
    capturing = made.capture(*marker.args, **options)
    capture = capturing.__enter__()
    outcome = yield
    try:
        if capturing.__exit__(*(outcome.excinfo or (None, None, None))) or outcome.excinfo:
            return
        if checks:
            capture.check(*checks)
        if baseline:
            capture.baseline()
    except AssertionError as error:
        _fail(outcome, pytest.fail.Exception(str(error), pytrace=False))
    except BaseException as error:
        _fail(outcome, error)


def _fail(outcome: pluggy.Result[None], error: BaseException) -> None:
    if not hasattr(outcome, "force_exception"):  # before pluggy 1.1
        raise error from None
    outcome.force_exception(error)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """A report of a failed test names its captures."""
    report = (yield).get_result()
    made = item.stash.get(_MADE, None)
    if report.failed and made is not None and made.paths:
        lines = "\n".join(f"{path}\n    tcpkmon why {path}" for path in made.paths)
        report.sections.append(("captures of tcpkmon", lines))
