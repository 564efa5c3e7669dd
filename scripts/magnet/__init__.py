# SPDX-License-Identifier: Apache-2.0
"""The experiments behind scripts/magnet-experiments: those of MAGNeT in 2001, on this machine."""
