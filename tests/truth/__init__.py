# SPDX-License-Identifier: Apache-2.0
"""Traffic whose truth is known beforehand, and how often tcpkmon finds it."""
