# SPDX-License-Identifier: Apache-2.0
"""The types of pmgraph's arrays."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
"""By name of the column, (n,) values of n records."""
