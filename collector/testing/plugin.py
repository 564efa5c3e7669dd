# SPDX-License-Identifier: Apache-2.0
"""The plugin of pytest: the fixture and the marker tcpkmon. docs/pytest.md describes it.

Every run of pytest imports this module: all else is imported when the fixture is used.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collector.testing.captures import Captures

_NAME = "tcpkmon"
_MADE = pytest.StashKey["Captures"]()


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
        "tcpkmon(check=(), baseline=False, **options): capture TCP while the test runs, "
        "with options of collect; then check these assertions",
    )
    if config.getoption("tcpkmon_store") and config.getoption("tcpkmon_baseline") is None:
        raise pytest.UsageError("--tcpkmon-store stores in the file of --tcpkmon-baseline FILE")


def pytest_itemcollected(item: pytest.Item) -> None:
    """A marked test has the fixture, whether it asks for it or not."""
    if not isinstance(item, pytest.Function) or item.get_closest_marker(_NAME) is None:
        return
    if _NAME not in item.fixturenames:
        item.fixturenames.append(_NAME)


@pytest.fixture
def tcpkmon(request: pytest.FixtureRequest, tmp_path: Path) -> Captures:
    """Captures TCP: `with tcpkmon.capture(ports=[5201]) as capture:`, then capture.check(...)."""
    from collector.testing.captures import Captures

    config = request.config
    made = Captures(
        tmp_path,
        request.node.nodeid,
        baseline=config.getoption("tcpkmon_baseline"),
        store=config.getoption("tcpkmon_store"),
        require=config.getoption("tcpkmon_require"),
        collector=config.getoption("tcpkmon_collector"),
    )
    request.node.stash[_MADE] = made
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Captures around a marked test, then checks what the marker says."""
    marker = item.get_closest_marker(_NAME)
    made = item.stash.get(_MADE, None)
    if marker is None or made is None:
        return (yield)
    options = dict(marker.kwargs)
    checks, baseline = options.pop("check", ()), options.pop("baseline", False)
    checks = [checks] if isinstance(checks, str) else checks
    with made.capture(**options) as capture:
        result = yield
    broken = ""
    try:
        if checks:
            capture.check(*checks)
        if baseline:
            capture.baseline()
    except AssertionError as error:
        broken = str(error)
    if broken:  # out of the handler: a traceback of the plugin would be no help
        pytest.fail(broken, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A report of a failed test names its captures."""
    report = yield
    made = item.stash.get(_MADE, None)
    if report.failed and made is not None and made.paths:
        lines = "\n".join(f"{path}\n    tcpkmon why {path}" for path in made.paths)
        report.sections.append(("captures of tcpkmon", lines))
    return report
