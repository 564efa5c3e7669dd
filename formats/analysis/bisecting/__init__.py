# SPDX-License-Identifier: Apache-2.0
"""Which of several sides differ, by runs that are made until it is known: `tcpkmon bisect`.

plan     when one looks, and at which level
power    what so many runs show
telling  what a look tells of two sides
halving  several ordered sides
words    all of that for people and as JSON
"""

from tcpkmon.formats.analysis.bisecting.halving import Found, halve
from tcpkmon.formats.analysis.bisecting.plan import Look, Plan, make_plan
from tcpkmon.formats.analysis.bisecting.power import powers
from tcpkmon.formats.analysis.bisecting.telling import Told, refuse_useless, tell
from tcpkmon.formats.analysis.bisecting.words import (
    apart,
    plan_lines,
    power_lines,
    told_json,
    verdict_lines,
)

__all__ = [
    "Found",
    "Look",
    "Plan",
    "Told",
    "apart",
    "halve",
    "make_plan",
    "plan_lines",
    "power_lines",
    "powers",
    "refuse_useless",
    "tell",
    "told_json",
    "verdict_lines",
]
