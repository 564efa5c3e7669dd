# SPDX-License-Identifier: Apache-2.0
"""What Linux offers, by ctypes, /proc and BTF; nothing here knows tcpkmon."""

__all__ = [
    "bpf",
    "btf",
    "btf_raw",
    "confinement",
    "cpu_affinity",
    "deputy",
    "isolated",
    "kallsyms",
    "kernel_constants",
    "kprobe_events",
    "lasting",
    "machine",
    "netns",
    "nf_hooks",
    "perf_events",
    "perf_names",
    "places",
    "privileges",
    "probe_kinds",
    "syscalls",
    "system_settings",
    "trusted_files",
    "uprobes",
    "waiting",
]
