# SPDX-License-Identifier: Apache-2.0
"""tcpkmon selftest: passes here, sees what is wrong, and is named in later captures."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands import selftest_captures, selftest_checks
from tcpkmon.collector.commands.selftest import command
from tcpkmon.collector.commands.selftest_checks import NOT_CAUSED, OK, WRONG
from tcpkmon.collector.loader.compiler import SUFFIX
from tcpkmon.collector.loader.image_cache import cache_folder
from tests.live.capturing import capturing


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[int, Any, selftest_captures.Recorded]]:
    """What the command says: its exit code, and the JSON; and what it recorded. The captures of
    this file find its result, and no other."""
    recorded: list[selftest_captures.Recorded] = []
    compare = selftest_checks.compare
    folder = tmp_path_factory.mktemp("selftest")

    def keep(found: selftest_captures.Recorded) -> list[selftest_captures.Finding]:
        copies = {name: folder / path.name for name, path in found.paths.items()}
        for name, path in found.paths.items():
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, copies[name])
        recorded.append(replace(found, paths=copies))
        return compare(found)

    (folder / "cache").mkdir(mode=0o700)
    for image in Path(cache_folder()).glob(f"*{SUFFIX}"):  # of other tests: less to compile
        with suppress(FileNotFoundError):
            shutil.copy2(image, folder / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TCPKMON_CACHE", str(folder / "cache"))
        with pytest.MonkeyPatch.context() as while_it_runs:
            while_it_runs.setattr(selftest_checks, "compare", keep)
            done = CliRunner().invoke(command, ["--json"], standalone_mode=False)
        assert done.exception is None, done.output
        yield done.return_value, json.loads(done.stdout), recorded[0]


@pytest.mark.full
def test_all_is_well_here_and_the_next_capture_says_so(
    told: tuple[int, Any, selftest_captures.Recorded], tmp_path: Path
) -> None:
    code, said, _ = told
    results = Counter(one["result"] for one in said["findings"])
    assert code == 0 and set(results) <= {OK, selftest_captures.NOT_HERE, NOT_CAUSED}, said
    assert results[OK] >= 40
    assert {one["area"] for one in said["findings"]} == set(selftest_captures.AREAS)
    with capturing(tmp_path / "a.pm") as run:
        outcome = run.stop()
    named = outcome.capture.settings["selftest"]
    assert named["digest"] == said["digest"]
    assert named["results"] == dict(results)


@pytest.mark.full
def test_a_call_that_nobody_recorded_is_found(
    told: tuple[int, Any, selftest_captures.Recorded]
) -> None:
    """The application counts one call more, the kernel one retransmission more than there was."""
    recorded = told[2]
    counts = recorded.counts
    counts.exchanges["v4"].client.connections[0].sends += 1
    counts.exchanges["v6"].client.connections.pop()
    counts.kernel["a"]["RetransSegs"] += 1
    wrong = {one.name for one in selftest_checks.compare(recorded) if one.result == WRONG}
    assert {"SEND_CALL", "RETRANSMIT", "DESTROY", "magnet: SOCK_SEND", "--addr", "-6"} <= wrong
    assert not wrong & {"RTO", "RESET_SENT", "-4", "--ports", "perf", "klogger"}
