# SPDX-License-Identifier: Apache-2.0
"""What makes why quick for very many connections gives what the plain way gives."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tcpkmon.formats.analysis.exchanges.resting import Resting
from tcpkmon.formats.analysis.why import Peers
from tcpkmon.formats.commands.why import _indented
from tests.full import first


@pytest.mark.parametrize("seed", first(4, range(20)))
def test_rows_rest_until_their_connection_goes_on(seed: int) -> None:
    rng = np.random.default_rng(seed)
    resting, plain = Resting("place"), defaultdict[int, list[int]](list)
    number = 0
    for _ in range(60):
        keys = np.unique(rng.integers(0, 40, rng.integers(0, 9)))
        found = resting.take(keys)
        wanted = [(key, row) for key in keys.tolist() for row in plain.pop(key, [])]
        if found is None:
            assert not wanted
        else:
            assert found["row"].dtype == np.int32
            at = np.lexsort((found["row"], found["place"]))
            pairs = zip(found["place"][at].tolist(), found["row"][at].tolist(), strict=True)
            assert list(pairs) == wanted
            same = [found["row"][found["place"] == key] for key in keys]
            assert all((np.diff(rows) > 0).all() for rows in same), "in the order they came in"
        new = np.repeat(keys, rng.integers(0, 4, len(keys)))
        rows = np.arange(number, number + len(new), dtype=np.int32)
        number += len(new)
        resting.put({"place": new, "row": rows})
        for key, row in zip(new.tolist(), rows.tolist(), strict=True):
            plain[key].append(row)
    rest, kept = resting.take_all(), [(key, row) for key in sorted(plain) for row in plain[key]]
    assert rest is not None
    assert list(zip(rest["place"].tolist(), rest["row"].tolist(), strict=True)) == kept
    assert resting.take_all() is None and resting.take(np.arange(40)) is None


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
