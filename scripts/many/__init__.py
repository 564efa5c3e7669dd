# SPDX-License-Identifier: Apache-2.0
"""A million connections: real ones, and what the collector makes of records of more than come."""
