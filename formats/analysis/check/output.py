# SPDX-License-Identifier: Apache-2.0
"""What became of assertions: for people, as JSON, as JUnit XML, as annotations of GitHub."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from tcpkmon.formats.analysis.check.capture import Capture
from tcpkmon.formats.analysis.check.checking import Result
from tcpkmon.formats.base.escape import for_terminal

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_lines(result: Result) -> list[str]:
    """Lines for people."""
    seen = f": {result.seen}" if result.seen else ""
    head = f"{'ok    ' if result.ok else 'FAILED'} {result.text}{seen}"
    return [for_terminal(line) for line in (head, *(f"         {row}" for row in result.worst))]


def as_dict(capture: Capture, results: Sequence[Result]) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "file": str(capture.path),
        "proven": capture.proven,
        "verdict": capture.verdict,
        "assertions": [dataclasses.asdict(result) for result in results],
    }


def as_junit(found: Sequence[tuple[Capture, Sequence[Result]]]) -> bytes:
    """A test suite for each capture, a test case for each assertion."""
    root = ElementTree.Element("testsuites", name="tcpkmon check")
    for capture, results in found:
        failures = str(sum(not result.ok for result in results))
        suite = ElementTree.SubElement(
            root, "testsuite", name=_xml(str(capture.path)), tests=str(len(results)),
            failures=failures, errors="0", skipped="0",
        )  # fmt: skip
        for result in results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(str(capture.path)), name=_xml(result.text)
            )
            if not result.ok:
                told = ElementTree.SubElement(case, "failure", message=_xml(result.seen))
                told.text = _xml("\n".join(result.worst))
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def github_lines(capture: Capture, results: Sequence[Result]) -> list[str]:
    """A workflow command for each assertion that failed."""
    return [
        f"::error title=tcpkmon check::{_command(f'{capture.path}: {text}')}"
        for result in results
        if not result.ok
        for text in ["\n".join((f"{result.text}: {result.seen}", *result.worst))]
    ]


def _command(text: str) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return for_terminal(escaped)


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
