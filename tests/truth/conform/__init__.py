# SPDX-License-Identifier: Apache-2.0
"""Transfers with each congestion control, and which rules of `tcpkmon conform` they keep."""
