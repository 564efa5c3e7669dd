# SPDX-License-Identifier: Apache-2.0
"""The ring buffers between the BPF programs and this process."""

__all__ = ["batch", "journal", "library", "notes", "points", "rings", "transport"]
