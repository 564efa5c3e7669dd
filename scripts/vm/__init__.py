# SPDX-License-Identifier: Apache-2.0
"""Behind scripts/vmtest: kernels, the guests that boot them, and the tests in them."""
