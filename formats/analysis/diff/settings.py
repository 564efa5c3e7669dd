# SPDX-License-Identifier: Apache-2.0
"""The settings of captures, as their headers have them, and those in which two sides differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcpkmon.formats.psc.header import KIND_HOST, KIND_KERNEL
from tcpkmon.formats.psc.reader import Capture

NOT_RECORDED = "(not recorded)"
_CAPTURED = ("schemata", "columns", "locations", "filters", "data", "when_changed", "rings",
             "buffer_bytes", "absent_columns", "refused", "hz")  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """a, b: the distinct values of each side's captures."""

    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]


def read_settings(reader: Any) -> dict[str, str]:
    """What a capture's header tells of the machine and the capture, by name, in order of weight."""
    if isinstance(reader, Capture):
        settings: Any = reader.settings
        kernel, host = (reader.header.text(kind) for kind in (KIND_KERNEL, KIND_HOST))
    else:
        header = reader.format.header
        settings, kernel, host = header.get("settings"), header.get("kernel"), header.get("host")
    settings = settings if isinstance(settings, dict) else {}
    found = {"kernel": kernel, "host": host}
    machine = dict(_group(settings, "machine"))
    found["cpu model"] = machine.get("cpu_model")
    if isinstance(size := machine.get("memory_bytes"), int):
        found["memory"] = f"{size / 1e9:.3g} GB"  # some pages more or less at each boot
    found |= dict(_system(settings.get("system")))
    found |= {name.replace("_", " "): settings[name] for name in _CAPTURED if name in settings}
    found["tcpkmon"] = settings.get("tcpkmon")
    return {name: _text(value) for name, value in found.items() if value is not None}


def differences(
    a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]
) -> list[Difference]:
    """The settings whose values are not those of the other side, in order of weight.

    a, b: of each capture of a side. A setting that no capture of a side has is NOT_RECORDED there.
    """
    names = dict.fromkeys(name for one in (*a, *b) for name in one)
    order = sorted(names, key=_weight)
    found = []
    for name in order:
        values = [
            tuple(sorted({one.get(name, NOT_RECORDED) for one in side})) for side in (a, b)
        ]
        if values[0] != values[1]:
            found.append(Difference(name, values[0], values[1]))
    return found


def _weight(name: str) -> int:
    first = ("kernel", "host", "cpu model", "memory", "congestion control", "net.", "qdisc ",
             "offloads ", "driver ")  # fmt: skip
    return next((n for n, start in enumerate(first) if name.startswith(start)), len(first))


def _group(settings: Any, name: str) -> list[tuple[str, Any]]:
    found = settings.get(name) if isinstance(settings, dict) else None
    return list(found.items()) if isinstance(found, dict) else []


def _system(system: Any) -> Iterator[tuple[str, Any]]:
    yield from _group(system, "sysctl")
    queues: dict[str, list[str]] = {}
    listed = system.get("qdiscs") if isinstance(system, dict) else None
    for one in listed if isinstance(listed, list) else []:
        if isinstance(one, dict):
            # The kernel gives handles in turn: only the class below one is a setting.
            parent = str(one.get("parent")).rpartition(":")[2]
            options = f" {one['options']}" if one.get("options") else ""
            name = f"qdisc {one.get('device')} {parent}"
            queues.setdefault(name, []).append(f"{one.get('kind')}{options}")
    yield from queues.items()
    for device, offloads in _group(system, "offloads"):
        if isinstance(offloads, dict):
            yield f"offloads {device}", [name for name, on in offloads.items() if on]
    for device, driver in _group(system, "drivers"):
        told = driver.values() if isinstance(driver, dict) else [driver]
        yield f"driver {device}", " ".join(map(str, told))


def _text(value: Any) -> str:
    """A value as text: names alone of a list, and of a map those with their values."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list):
        text = ", ".join(one if isinstance(one, str) else json.dumps(one) for one in value)
    elif isinstance(value, dict):
        text = ", ".join(f"{name}={_text(value[name])}" for name in sorted(value))
    else:
        text = json.dumps(value)
    return text or "none"
