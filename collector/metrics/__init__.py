# SPDX-License-Identifier: Apache-2.0
"""What a capture counts of its TCP connections, for the metrics and for tcpkmon top."""

__all__ = ["watching", "words"]
