# SPDX-License-Identifier: Apache-2.0
"""What scripts/magnet-experiments and scripts/host-experiments share: figures, page, command."""
