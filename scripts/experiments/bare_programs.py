# SPDX-License-Identifier: Apache-2.0
"""Run as a program: attaches, wherever a default capture does, programs that do next to nothing.

    python -m scripts.experiments.bare_programs READY_FD [clock]

With `clock` they read the clock, as each record must, and nothing else. What these cost no capture
of the same events can save. It writes a byte to READY_FD when they are attached, and ends with
SIGINT.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys

from tcpkmon.collector.linux import bpf
from tcpkmon.collector.linux.btf import Btf
from tcpkmon.collector.linux.privileges import raise_limits
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.loader.prepare import prepare
from tcpkmon.collector.loader.program import load_code
from tcpkmon.collector.loader.programs import attach_type_id
from tcpkmon.collector.plan.filters import Filters
from tcpkmon.collector.plan.request import Request

KTIME_GET_NS = 5  # enum bpf_func_id
READ_CLOCK = struct.pack("=BBhi", bpf.BPF_CALL, 0, 0, KTIME_GET_NS) + bpf.RETURN_ZERO


def main() -> int:
    """0 after SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    code = READ_CLOCK if sys.argv[2:] == ["clock"] else bpf.RETURN_ZERO
    raise_limits()
    btf = Btf.from_kernel()
    with contextlib.ExitStack() as attached:
        for probe in prepare(Request(Filters(), "-", existing=False)).plan.probes:
            btf_id = attach_type_id(btf, probe.kind, probe.target)
            fd = load_code(probe.kind, code, "bench_bare", btf_id)
            attached.callback(os.close, fd)
            attached.callback(KINDS[probe.kind].attach(probe.target, [fd]).remove)
        os.write(int(sys.argv[1]), b"\n")
        signal.sigwait([signal.SIGINT])
    return 0


if __name__ == "__main__":
    sys.exit(main())
