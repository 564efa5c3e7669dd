# SPDX-License-Identifier: Apache-2.0
"""The collector: talks to the kernel, as root, and hands ordered batches to formats."""

import os

# numpy's linear algebra, which nothing here uses, starts a thread for each further CPU when it is
# imported. They would keep all capabilities: privileges belong to threads (linux/privileges.py).
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
_before = {name: os.environ.get(name) for name in _THREADS}
os.environ.update(_THREADS)

import numpy  # noqa: E402, F401

# The environment is also that of the command that collect runs.
for _name, _value in _before.items():
    if _value is None:
        del os.environ[_name]
    else:
        os.environ[_name] = _value
