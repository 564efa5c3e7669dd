# SPDX-License-Identifier: Apache-2.0
"""What all that measures shares, and no part of it: rounds, tools, results, tables, pages."""
