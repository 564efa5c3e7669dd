# SPDX-License-Identifier: Apache-2.0
"""The soak test: a daemon under changing load, whose files must have every counted call."""
