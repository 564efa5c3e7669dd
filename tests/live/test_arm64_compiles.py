# SPDX-License-Identifier: Apache-2.0
"""All shipped schemata compile for arm64, with the types of a kernel of arm64: 20 s, no guest.

What loads, and what it records, is for guests to show (scripts/vmtest arm64-newest).
"""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from scripts.vm import kernels, tools
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.loader import attach_trials, compiler, perf_counters, prepare
from tcpkmon.collector.plan import schema_sources
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request

KERNEL = "arm64-newest"
MAGIC = b"\x9f\xeb\x01\x00"
LEAST_BYTES = 1 << 20
"""Of the kernel's types: the bytes that look like their beginning are elsewhere too."""

pytestmark = [pytest.mark.live, pytest.mark.full, pytest.mark.timeout(900)]


def types_in(image: bytes) -> bytes:
    """The BTF in a kernel's image."""
    content = gzip.decompress(image) if image[:2] == b"\x1f\x8b" else image
    at = content.find(MAGIC)
    while at >= 0:
        head, _, types, strings, size = struct.unpack_from("<5I", content, at + 4)
        if head == 24 and types == strings > LEAST_BYTES:
            return content[at : at + head + strings + size]
        at = content.find(MAGIC, at + 1)
    raise AssertionError("no types in this kernel")


class Elsewhere(Btf):
    """The types of a kernel that does not run here, in place of KernelAnswers."""

    types_key = "of a kernel elsewhere"

    def address_of(self, function: str) -> int:
        return self.code_of(function)[0]

    def code_of(self, function: str) -> tuple[int, int]:
        return 0xFFFF800080001000, 64

    def can(self, kind: str, name: str) -> bool:
        """Whether it has such a target, as far as its types tell."""
        if named := KINDS[kind].btf:
            return self.find(named[0], named[1].format(name)) is not None
        if KINDS[kind].is_tracepoint:
            return self.find(Kind.TYPEDEF, f"btf_trace_{name}") is not None
        return kind != "kprobe" or self.find(Kind.FUNC, name) is not None


@pytest.fixture(scope="module")
def types() -> bytes:
    try:
        with tools.alone():
            release, folder = kernels.get_kernel(KERNEL)
    except tools.Failure as failure:
        pytest.skip(str(failure))
    return types_in((folder / "boot" / f"vmlinuz-{release}").read_bytes())


@pytest.fixture
def on_arm64(types: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nARCH=arm64 exec /usr/bin/python3 "$@"\n')  # BCC's name for it
    python.chmod(0o755)
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("TCPKMON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "PYTHON", str(python))
    # BCC defines this for ARCH alone, which is not set on such a machine.
    monkeypatch.setattr(prepare, "STRICT", (*prepare.STRICT, "-U__TARGET_ARCH_arm64"))
    monkeypatch.setattr(schema_sources, "ARM64", True)
    monkeypatch.setattr(perf_counters, "this_machine", lambda: "arm64")
    monkeypatch.setattr(prepare, "check_machine", lambda: None)
    monkeypatch.setattr(prepare, "KernelAnswers", lambda: Elsewhere(types))
    monkeypatch.setattr(attach_trials, "check_atomics", lambda: None)
    monkeypatch.setattr(attach_trials, "Probing", lambda btf: btf)


@pytest.mark.usefixtures("on_arm64")
@pytest.mark.parametrize("name", sorted({*schema_sources.shipped_names()} - {"base"}))
def test_a_schema_compiles(name: str) -> None:
    wanted = Request(Filters(), "-", schemata=(name,), file_format="klogger")
    if name == "tcp":
        wanted = Request(Filters(), "-", columns="all", locations="all")
    decided = prepare.decide(wanted)
    image = decided.compile(decided.make_engine())
    assert set(image.programs) == {probe.name for probe in decided.plan.probes}
