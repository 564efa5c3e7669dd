# SPDX-License-Identifier: Apache-2.0
"""The commands of the systems of 1987 and 1988: msmod, iscan, monitor."""
