# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: some files are compiled by a C compiler."""

from pathlib import Path

from setuptools import Extension, setup


def compiled(folder: str, name: str) -> Extension:
    """No module of Python: formats/base/compiled.py loads it by ctypes."""
    return Extension(
        f"tcpkmon.{folder.replace('/', '.')}._{name}",
        [f"tcpkmon/{folder}/{name}.c"],
        depends=[str(path) for path in sorted(Path("tcpkmon", folder).glob("*.h"))],
        extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden"],
    )


setup(ext_modules=[compiled("formats/lines", "lines"), compiled("collector/ring", "drain")])
