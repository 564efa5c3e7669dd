# SPDX-License-Identifier: Apache-2.0
"""Connections whose limit is known because it was made: how often `tcpkmon why` is right."""
