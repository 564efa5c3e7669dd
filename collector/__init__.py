# SPDX-License-Identifier: Apache-2.0
"""The collector: talks to the kernel, as root, and hands ordered batches to formats."""
