# SPDX-License-Identifier: Apache-2.0
"""The control plane: a socket that takes requests, its client, and what carries them out."""

__all__ = ["client", "handlers", "server"]
