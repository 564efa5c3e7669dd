# SPDX-License-Identifier: Apache-2.0
"""Where a capture starts at all."""

from __future__ import annotations

import platform

import pytest
from click.testing import CliRunner

from tcpkmon.collector.commands import doctor, event_cost
from tcpkmon.collector.loader.prepare import check_machine, decide, prepare
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request
from tcpkmon.formats.base.errors import KernelError


def test_other_machines_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, reason = "riscv64", "the programs are for x86_64 and"
    monkeypatch.setattr(platform, "machine", lambda: machine)
    default = Request(Filters(), "-")
    for start in (check_machine, lambda: decide(default), lambda: prepare(default),
                  lambda: next(event_cost.measure(["EVENT_START"]))):  # fmt: skip
        with pytest.raises(KernelError, match=reason) as refused:
            start()
        assert refused.value.exit_code == 4
        assert machine in refused.value.message
    asked = CliRunner().invoke(doctor.command, [], standalone_mode=False)
    assert asked.return_value == 4
    assert reason.split(",", maxsplit=1)[0] in " ".join(asked.output.split())
    assert "cannot capture here" in asked.output


@pytest.mark.parametrize("machine", ["x86_64", "amd64", "aarch64"])
def test_this_machine_is_not_refused(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    check_machine()
