# SPDX-License-Identifier: Apache-2.0
"""The benchmark behind scripts/bench: what tcpkmon costs, beside perf, bpftrace and tcpdump."""
