# SPDX-License-Identifier: Apache-2.0
"""Arrays of rows of many connections, those of one together: its first and last row, neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]


def runs(keys: Array) -> tuple[Array, Array]:
    """The first and the last row of each run of equal keys."""
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    return firsts, np.append(firsts, len(keys))[1:] - 1


def is_one_of(values: Array, numbers: Iterable[int]) -> Mask:
    """(n,) whether each value is one of a few numbers, at least one. np.isin() is slow with few."""
    masks = [values == number for number in numbers]
    return np.asarray(np.logical_or.reduce(masks) if len(masks) > 1 else masks[0])


def shifted(values: Array, firsts: Array, base: Any) -> Array:
    """(n,) the value of the row before each one; of rows at which runs begin, `base`."""
    found = np.empty_like(values)
    found[1:] = values[:-1]
    found[firsts] = base
    return found


def join(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Columns by name, one part behind the other; at least one part."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def each_once(values: Array, told: Callable[[Any], Any]) -> Array:
    """(n,) objects: what is told of each value. Equal ones are asked for once."""
    distinct, which = np.unique(values, return_inverse=True)
    found = np.empty(len(distinct), object)
    found[:] = [told(one) for one in distinct.tolist()]
    return found[which]
