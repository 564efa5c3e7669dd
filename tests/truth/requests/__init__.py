# SPDX-License-Identifier: Apache-2.0
"""Requests whose times the ends know: what `tcpkmon requests` says of them."""
