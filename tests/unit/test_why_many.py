# SPDX-License-Identifier: Apache-2.0
"""What makes why quick for very many connections gives what the plain way gives."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.analysis.why import Peers
from tcpkmon.formats.commands.why import _indented
from tests.full import first


@pytest.mark.parametrize("value", [
    {"a": 1, "b": [], "c": {}, "d": None, "e": "a\n\"\u00fc", "f": 1.5, "g": True},
    {"a": ["x, y", "[", "{}"], "b": {"c": 1, "d": "e: f"}, "g": 2, "h": [1, [2, [3, {"i": []}]]]},
    {"a": {"b": {"c": [1, 2]}, "d": 3}, "e": float("inf"), "f": [[], {}, {"g": 0}]},
    [1, "2", [3], {}],
])  # fmt: skip
def test_indented_json_is_that_of_python(value: Any) -> None:
    assert _indented(value, "\n") == json.dumps(value, indent=2)
    behind = json.dumps(value, indent=2).replace("\n", "\n    ")
    assert _indented(value, "\n    ") == behind


@pytest.mark.parametrize("seed", first(2, range(10)))
def test_peers_of_many(seed: int) -> None:
    """Ends and times that often are the same; ports as a damaged file may have them."""
    rng, count = np.random.default_rng(seed), 200
    addresses = np.array(["10.0.0.1", "10.0.0.2", "::1"], object)
    start, ports = rng.integers(0, 50, count), [0, 7, -1, 1 << 40]
    table: dict[str, Any] = {
        "conn_id": rng.permutation(count) + 5,
        "laddr": addresses[rng.integers(0, 3, count)], "lport": rng.choice(ports, count),
        "raddr": addresses[rng.integers(0, 3, count)], "rport": rng.choice(ports, count),
        "start_ns": start, "end_ns": start + rng.integers(0, 20, count),
    }  # fmt: skip
    peers = Peers(table)
    rows = [{name: values[at] for name, values in table.items()} for at in range(count)]
    for at, one in enumerate(rows):
        ends = one["raddr"], one["rport"], one["laddr"], one["lport"]
        shared = {
            number: min(one["end_ns"], other["end_ns"]) - max(one["start_ns"], other["start_ns"])
            for number, other in enumerate(rows)
            if number != at and ends == tuple(other[name] for name in
                                              ("laddr", "lport", "raddr", "rport"))
        }  # fmt: skip
        together = {number: ns for number, ns in shared.items() if ns >= 0}
        best = max(together, key=lambda number: together[number], default=None)
        assert peers.of(int(one["conn_id"])) == best
