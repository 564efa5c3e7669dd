# SPDX-License-Identifier: Apache-2.0
"""The file side of tcpkmon: codecs, readers and viewers that need no root and no kernel."""

from tcpkmon.formats.base.removed import attributes_of

__getattr__ = attributes_of("tcpkmon.formats")
