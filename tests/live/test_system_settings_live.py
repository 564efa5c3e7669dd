# SPDX-License-Identifier: Apache-2.0
"""The machine's network settings in the header, against sysctl and tc."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tcpkmon
from tcpkmon.collector.lab.lab import Bottleneck, Lab
from tcpkmon.collector.linux.system_settings import read_system_settings
from tests.full import first


def ask(*words: str) -> str:
    return subprocess.check_output(words, text=True)


@pytest.mark.parametrize("form", first(1, ["psc", "klogger"]))
def test_headers_have_the_settings_of_the_machine(tmp_path: Path, form: str) -> None:
    path = tmp_path / "out"
    collect = str(Path(sys.executable).with_name("collect"))
    ask(collect, "--schema", "tcp", "--format", form, "-q", "-o", str(path), "--", "true")
    with tcpkmon.open(path) as reader:
        settings: Any = reader
        settings = settings.settings if form == "psc" else settings.format.header["settings"]
    told = settings["system"]
    assert told["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_congestion_control", "net.core.rmem_max"):
        assert told["sysctl"][name].split() == ask("sysctl", "-n", name).split()
    assert not [name for name in told["sysctl"] if "key" in name]
    assert told["offloads"]["lo"]["gso"] is True
    assert len(json.dumps(told)) < 32_768


class NtpTime(ctypes.Structure):
    """struct ntptimeval of sys/timex.h."""

    _fields_ = [("time", ctypes.c_long * 2), ("most", ctypes.c_long), ("estimated", ctypes.c_long),
                ("rest", ctypes.c_long * 5)]  # fmt: skip


def test_the_clock_is_that_of_ntp_gettime() -> None:
    """Whose answer is 5 where nobody keeps the clock."""
    found = NtpTime()
    state = ctypes.CDLL(None).ntp_gettime(ctypes.byref(found))
    told = read_system_settings()["clock"]
    assert told["is_synchronised"] is (state != 5)
    assert 0 <= told["max_error_us"] - found.most < 10_000  # it grows by 500 us a second
    assert told["estimated_error_us"] == found.estimated


def test_qdiscs_are_those_of_tc() -> None:
    with Lab(Bottleneck(rate_mbit=50, queue_bytes=60_000)) as lab:
        for side in (lab.a, lab.b):
            told = side.run(read_system_settings)["qdiscs"]
            found = {(one["device"], one["kind"], one["handle"]) for one in told}
            listed = json.loads(side.command(["tc", "-j", "qdisc", "show"]))
            assert found == {(one["dev"], one["kind"], one["handle"]) for one in listed}
