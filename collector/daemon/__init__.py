# SPDX-License-Identifier: Apache-2.0
"""The daemon: its configuration, the supervisor of its captures, and what it tells systemd."""

__all__ = ["checking", "requests", "supervisor", "toml_files"]
