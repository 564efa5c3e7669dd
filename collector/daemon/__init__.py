# SPDX-License-Identifier: Apache-2.0
"""The daemon: its configuration, the supervisor of its captures, and what it tells systemd."""

__all__ = ["requests", "supervisor", "toml_files"]
