# SPDX-License-Identifier: Apache-2.0
"""The collector: talks to the kernel, as root, and hands ordered batches to formats."""

from tcpkmon.formats.base.removed import attributes_of

__getattr__ = attributes_of("tcpkmon.collector")
