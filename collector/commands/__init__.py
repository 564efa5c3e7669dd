# SPDX-License-Identifier: Apache-2.0
"""The commands that need the kernel, a file each: they parse, call and print."""

__all__ = ["arguments", "collect", "columns", "schema", "tcpkmon"]
