# SPDX-License-Identifier: Apache-2.0
"""Starts this Python so that it imports nothing from the current folder, a user's or PYTHONPATH.

    python -I isolated.py MODULE ARGUMENT...     calls MODULE.main()

Root may work in a folder where others may write, and Python would take their modules for its own.
It imports nothing of tcpkmon: it runs before tcpkmon is found.
"""

import os
import sys

PYTHON = (sys.executable, "-I")
"""The words of a command that begins this Python; a file or -c follows, never -m."""
_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
"""The folder of the package tcpkmon, by whose name this file was reached."""


def command(module: str, *arguments: str) -> list[str]:
    """The words of a command that calls main() of one of tcpkmon's modules, of this same tree."""
    return [*PYTHON, os.path.abspath(__file__), module, *arguments]


def _run() -> None:
    import importlib

    module = sys.argv.pop(1)
    sys.argv[0] = module.rpartition(".")[2]
    sys.path.insert(0, _ROOT)
    importlib.import_module(module).main()


if __name__ == "__main__":
    _run()
