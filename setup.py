# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: formats/lines/lines.c is compiled where there is a compiler."""

from setuptools import Extension, setup

# Not a module of Python: formats.lines.native loads it by ctypes.
LINES = Extension(
    "tcpkmon.formats.lines._lines",
    ["tcpkmon/formats/lines/lines.c"],
    depends=[f"tcpkmon/formats/lines/{name}.h" for name in ("column", "numbers", "plan", "table")],
    extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
    optional=True,
)

setup(ext_modules=[LINES])
