# SPDX-License-Identifier: Apache-2.0
"""--pid and --follow on this kernel: where it has fexit, who accepts is known at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcpkmon.collector.loader.attach_trials import Probing
from tests.live import test_follow_live as follow

WAYS = {"typed": "btf,fentry,fexit,iter", "untyped": "raw,kprobe,iter"}


@pytest.mark.parametrize("way", WAYS)
def test_workers_are_followed(tmp_path: Path, way: str, probing: Probing) -> None:
    seen = probing.can("btf", "sock_send_length") or probing.can("fexit", "tcp_sendmsg")
    if way == "typed" and not seen:
        pytest.skip("only a kprobe sees calls here: nothing else tells an owner")
    follow.test_workers_that_exist_and_those_that_come(tmp_path, WAYS[way])


def test_a_worker_has_what_it_accepts_alone(tmp_path: Path) -> None:
    follow.test_of_a_worker_only_what_it_accepts(tmp_path)


def test_a_command_is_followed(tmp_path: Path) -> None:
    follow.test_a_command_and_its_children_alone(tmp_path)
