# SPDX-License-Identifier: Apache-2.0
"""The types of pmgraph's arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, Array]
"""By name of the column, (n,) values of n records."""
