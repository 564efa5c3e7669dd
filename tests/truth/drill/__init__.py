# SPDX-License-Identifier: Apache-2.0
"""A player of the scripts that `tcpkmon packetdrill` writes, where packetdrill is not at hand."""
