# SPDX-License-Identifier: Apache-2.0
"""Schemata for the tests: generated ones (hypothesis), and the HOWTO's own examples."""

from __future__ import annotations

HOWTO_LEVELS = """
using two

loglevel one <
   event ONE_DO {
   }

   event ONE_SIMPLE {
   }
>

loglevel two <
   include one

   omit ONE_SIMPLE

   event TWO_DETAILED {
   }
>
"""
