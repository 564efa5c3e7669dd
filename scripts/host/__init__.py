# SPDX-License-Identifier: Apache-2.0
"""The experiments behind scripts/host-experiments: those of UBC's event monitor (1987) and of
HP-UX's measurement system (1988), on this machine."""
