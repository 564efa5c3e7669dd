# SPDX-License-Identifier: Apache-2.0
"""Compiles, loads and attaches the programs, and reads their maps and the kernel's sockets."""

__all__ = [
    "attach_trials",
    "bytecode",
    "capture_maps",
    "compiler",
    "following",
    "halving",
    "parked",
    "perf_counters",
    "prepare",
    "programs",
    "selftest_result",
    "sock_diag",
    "socket_iterator",
    "tcp_info",
]
