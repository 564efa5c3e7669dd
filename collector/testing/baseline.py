# SPDX-License-Identifier: Apache-2.0
"""Values of captures in a JSON file, by test: stored once, compared from then on.

    {"tests": {"test_web.py::test_upload": {"capture": {
        "kernel": "6.18.0", "values": {"goodput": 11718750.0, "retransmissions": 0.0}}}}}
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from tcpkmon.collector.linux.trusted_files import open_folder, open_no_link
from tcpkmon.collector.writer.output_file import trusted_users
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.base.files import create_file

if TYPE_CHECKING:
    from tcpkmon.formats.analysis.check import Capture

_ALLOWED = 0.2
"""The tolerance of an expression without one, either way."""


@dataclass(frozen=True)
class Value:
    """expression: of docs/check.md. worse: "less" or "more". tolerance: relative; slack: how much
    more than that is allowed, in the value's own unit."""

    expression: str
    worse: str
    tolerance: float
    slack: float = 0.0


VALUES = {
    "goodput": Value("sum(goodput_mean)", "less", 0.2),
    "retransmissions": Value("sum(retransmissions)", "more", 0.5, 10),
    "rto_count": Value("sum(rto_count)", "more", 0.5, 1),
    "srtt_p95_us": Value("max(srtt_p95_us)", "more", 0.5, 1000),
}
"""By default all are stored and compared."""


def read_tests(path: Path, folder: int | None = None) -> dict[str, dict[str, Any]]:
    """What a file stores, by test and capture; nothing where there is no file. FileError.

    folder: a descriptor of the path's folder. The file is no link, and no link of another user
    leads to it: root may test in a folder of others.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if folder is None:
            opened = open_no_link(os.fspath(path), flags, trusted_users())
        else:
            opened = os.open(path.name, flags, dir_fd=folder)
        with open(opened, encoding="utf-8") as file:
            tests: dict[str, dict[str, Any]] = json.load(file)["tests"]
        stored = [one["values"] for captures in tests.values() for one in captures.values()]
        for name, value in (pair for values in stored for pair in values.items()):
            if not isinstance(value, (int, float, NoneType)):
                raise TypeError(f"{name} is {value!r}, no number")
    except FileNotFoundError:
        return {}
    except KeyError as error:
        raise FileError(f"{path} is no baseline: it lacks {error}") from error
    except OSError as error:
        what = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise FileError(f"cannot read {path}: {what}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise FileError(f"{path} is no baseline: {error}") from error
    return tests


def check_file(path: Path, store: bool) -> None:
    """FileError for a file that is no baseline, or cannot be written."""
    read_tests(path)
    if store and not os.access(path.parent, os.W_OK):
        raise FileError(f"cannot store in {path}: {path.parent} is no folder to write to")


class Baseline:
    """The values of one test in a file. store: they are stored, and not compared."""

    def __init__(self, path: Path, test: str, store: bool) -> None:
        self._path = path
        self._test = test
        self._store = store

    def measure(self, capture: Capture, names: Sequence[str]) -> dict[str, float | None]:
        """The values of a capture; None where it has no data. UsageError for an expression."""
        from tcpkmon.formats.analysis.check import measure

        chosen = names or tuple(VALUES)
        texts = [VALUES[name].expression if name in VALUES else name for name in chosen]
        return dict(zip(chosen, measure(capture, texts), strict=True))

    def compare(
        self,
        capture: str,
        measured: Mapping[str, float | None],
        tolerance: float | Mapping[str, float] | None = None,
    ) -> list[str]:
        """A line for each value that is worse than allowed; with `store`, stores them: no lines.

        FileError.
        """
        if self._store:
            self._write(capture, measured)
            return []
        stored = read_tests(self._path).get(self._test, {}).get(capture)
        if stored is None:
            where = f"{self._path} has no values of {self._test}, {capture}"
            return [f"{where}: store them with --tcpkmon-store"]
        lines = []
        for name, now in measured.items():
            rule = VALUES.get(name, Value(name, "", _ALLOWED))
            allowed = tolerance.get(name) if isinstance(tolerance, Mapping) else tolerance
            allowed = rule.tolerance if allowed is None else allowed
            told = _differs(rule, stored["values"].get(name), now, allowed)
            if told:
                lines.append(f"  {name}: {told}")
        if lines:
            kernel = os.uname().release
            was = stored.get("kernel", kernel)
            more = "" if was == kernel else f" (stored on Linux {was}, this is {kernel})"
            lines.insert(0, f"worse than the baseline in {self._path}{more}")
        return lines

    def _write(self, capture: str, measured: Mapping[str, float | None]) -> None:
        """Several processes may store at once (pytest-xdist)."""
        folder = _open_folder(self._path)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            tests = read_tests(self._path, folder)
            mine = {"kernel": os.uname().release, "values": dict(measured)}
            tests.setdefault(self._test, {})[capture] = mine
            text = json.dumps({"tests": tests}, indent=2, sort_keys=True)
            with create_file(self._path, force=True, mode=0o644, folder=folder) as out:
                out.write(f"{text}\n".encode())
        finally:
            os.close(folder)


def _open_folder(path: Path) -> int:
    """All is done in this folder, even if another user puts a link in its place. FileError."""
    try:
        return open_folder(os.fspath(path.parent), trusted_users())
    except OSError as error:
        raise FileError(f"cannot store in {path}: {error.strerror}") from error


def _differs(rule: Value, stored: float | None, now: float | None, allowed: float) -> str:
    """What is wrong with a value, empty if nothing is."""
    if stored is None or now is None:
        if stored is now is None:
            return ""
        return f"{_number(now)}, stored {_number(stored)}: no data cannot be compared"
    change = now - stored
    limit = abs(stored) * allowed + rule.slack
    is_worse = {"less": -change, "more": change}.get(rule.worse, abs(change)) > limit
    if not is_worse:
        return ""
    how = f"{abs(change) / abs(stored):.1%} " if stored else f"{abs(change):.6g} "
    how += "more" if change > 0 else "less"
    slack = f" and {rule.slack:g}" if rule.slack else ""
    return f"{_number(now)}, stored {_number(stored)}: {how}, allowed are {allowed:.1%}{slack}"


def _number(value: float | None) -> str:
    return "no data" if value is None else f"{value:.6g}"
