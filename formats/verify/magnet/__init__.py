# SPDX-License-Identifier: Apache-2.0
"""Proves and repairs MAGNeT files."""
