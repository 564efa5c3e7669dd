# SPDX-License-Identifier: Apache-2.0
"""What tcpkmon had and has no more: who asks for it is answered by what serves instead.

The command line (cli.py), the daemon's configuration (collector/daemon/config.py) and, for names of
Python, packages look here when they refuse something. The table goes with the next release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NoReturn

REMOVED = {
    "tcpkmon bisect": "git bisect run with tcpkmon diff --fail-if (docs/diff.md)",
    "tcpkmon try FILE": "tcpkmon try --live measures a setting on half of the new connections",
    "[capture] format = magnet": "format = klogger, then tcpkmon export --format magnet",
    "tcpkmon metrics --otlp": "OpenTelemetry's collector scrapes tcpkmon metrics --listen",
    "[metrics] otlp": "OpenTelemetry's collector scrapes what listen serves",
    "collect --format arrow": "tcpkmon export --format arrow makes one of a PSC file",
    "[capture] format = arrow": "tcpkmon export --format arrow makes one of a PSC file",
    "collect --archive parquet": "--archive zst compresses; tcpkmon export makes Parquet",
    "[capture] rotation.archive = parquet": "zst compresses; tcpkmon export makes Parquet",
    "tcpkmon export --format chrome-json": "viewers take --format perfetto",
    "tcpkmon dataset query --sql": "DuckDB answers, or Spark with --engine",
    "tcpkmon.collector.klogger": "use tcpkmon.collect()",
    "tcpkmon.formats.open": "use tcpkmon.open()",
}
"""By what people write, what serves instead:

- a command, its option, or an option's value: "tcpkmon COMMAND", "collect --OPTION VALUE"; FILE is
  any argument
- a table of TOML, its key, or a key's value: "[TABLE] KEY = VALUE"; [capture] is that of any name
- a module of Python, or a name in one
"""


def find_in_words(words: Sequence[str]) -> str | None:
    """The answer to a command line that was refused, if it asks for what was removed.

    words: the program, and its arguments.
    """
    given = [part for word in words for part in word.split("=", word.startswith("--"))]
    for removed, instead in REMOVED.items():
        asked = removed.split()
        command = list(takewhile(lambda word: not word.startswith("-"), asked))
        option = asked[len(command) :]
        starts_so = [
            word == wanted or (wanted == "FILE" and not word.startswith("-"))
            for word, wanted in zip(given, command, strict=False)
        ]
        if len(starts_so) == len(command) and all(starts_so) and any(
            given[at : at + len(option)] == option for at in range(len(given))
        ):
            if not option:
                command, option = command[:-1], command[-1:]
            return f"{' '.join(command)}: {' '.join(option)} was removed: {instead}"
    return None


def find_in_toml(keys: Sequence[str], value: Any) -> str | None:
    """The answer to a key of the configuration that was refused, if it or its value was removed."""
    table, *rest = keys or ("",)
    key = ".".join(rest[1:] if table == "capture" else rest)
    name = f"[{table}] {key}".strip()
    for removed, what in ((name, "it"), (f"{name} = {value}", repr(value))):
        if removed in REMOVED:
            return f"{what} was removed: {REMOVED[removed]}"
    return None


def attributes_of(package: str) -> Callable[[str], NoReturn]:
    """__getattr__ of a package: ImportError for what was removed, which `from` shows as it is."""

    def answer(name: str) -> NoReturn:
        whole = f"{package}.{name}"
        if whole in REMOVED:
            raise ImportError(f"{whole} was removed: {REMOVED[whole]}", name=whole)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return answer
