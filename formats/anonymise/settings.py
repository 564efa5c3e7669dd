# SPDX-License-Identifier: Apache-2.0
"""The settings in a header, and the text of its schema, without what could name somebody.

Only what is known is copied: a key that this version does not know is left out, and said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tcpkmon.formats.anonymise.who import Who
from tcpkmon.formats.base.segments import parse_name
from tcpkmon.formats.klogger.table import PLACED
from tcpkmon.formats.schema import comment_lines, split_doc

_CLOCK = ("mono_ns", "realtime_ns", "uncertainty_ns")
NAME = "anonymised"
"""Of the setting that says so."""
_WORD = re.compile(r"[\w.,:;+*=<>()\[\]%# -]{0,400}", re.ASCII)
"""A text that names no file, and nobody by a text in quotes."""
_DOTTED = re.compile(r"\d+\.\d+\.\d+\.\d|::|([0-9a-f]{1,4}:){3}", re.ASCII | re.IGNORECASE)
"""What may be an address."""
_VALUES = re.compile(r"[-\d. ]*|[a-z_0-9 -]{0,80}", re.ASCII)
"""Of sysctl: numbers, or names of algorithms."""
_SYSCTL = re.compile(r"net\.[a-z0-9_.]{1,80}", re.ASCII)
_KEY = re.compile(r"[\w ]{1,64}", re.ASCII)
_TAG = re.compile(
    r"none-?\d+|shed\d|auto|address|classic|data|default|extra|fack|full|function|none|pm|raw|"
    r"removed|sack|sample|sleep|sys",
    re.ASCII,
)
_UNIT = re.compile(r"[\w %/*^.,()-]{1,24}", re.ASCII)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|#[^\n]*", re.DOTALL)


@dataclass
class LeftOut:
    """What is not in the new file, as nobody could tell what it means."""

    names: list[str] = field(default_factory=list)
    """Keys of a header."""
    repaired: list[str] = field(default_factory=list)
    """What was left out as it was damaged: a line for each file."""

    def key(self, name: str) -> None:
        """A key of a header."""
        name = name if _KEY.fullmatch(name) else "?"
        if name not in self.names:
            self.names.append(name)


def settings_of(found: Mapping[str, Any], who: Who, left_out: LeftOut) -> dict[str, Any]:
    """The settings of a header, with a note of what was replaced."""
    made: dict[str, Any] = {}
    for name, value in found.items():
        rule = _RULES.get(name)
        if rule is None:
            if name != NAME:
                left_out.key(name)
            continue
        made[name] = rule(who, value)
        for key in who.unknown:
            left_out.key(f"{name} {key}")
        who.unknown.clear()
    earlier = found.get(NAME)
    before = earlier.get("replaced") if isinstance(earlier, dict) else None
    listed = {one for one in before if isinstance(one, str) and _KEY.fullmatch(one)} if isinstance(
        before, list) else set()  # fmt: skip
    made[NAME] = {"replaced": sorted(who.replaced | listed), "left_out": sorted(left_out.names)}
    return made


def header_of(
    old: Mapping[str, Any], known: Sequence[str], event: Sequence[str], who: Who, left_out: LeftOut
) -> dict[str, Any]:
    """The header of a log or a MAGNeT file. known, event: the keys that it and its events keep."""
    for key in old:
        if key not in known:
            left_out.key(key)
    clock, settings = old.get("clock"), old.get("settings")
    replaced = {
        "host": host_of(who, old.get("host")),
        "kernel": who.text("kernel", str(old.get("kernel", ""))),
        "tcpkmon": str(old.get("tcpkmon", ""))[:40],
        "schema": schema_text(who, old.get("schema")),
    }
    return only(old, known) | only(replaced, list(old)) | {
        "clock": only(clock, _CLOCK) if isinstance(clock, dict) else None,
        "events": [only(one, event) for one in old["events"]],
        "settings": settings_of(settings if isinstance(settings, dict) else {}, who, left_out),
    }  # fmt: skip


def only(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What has one of these names, in their order."""
    return {name: values[name] for name in names if name in values}


def host_of(who: Who, name: object) -> str:
    """The name of a host."""
    return who.text("hosts", name) if isinstance(name, str) else ""


def segment_name(who: Who, name: object) -> str:
    """The name of a segment's file, which begins with that of the host; "" for another one."""
    found = parse_name(name) if isinstance(name, str) else None
    if found is None or not isinstance(name, str):
        return ""
    begin = name.index(found.host)
    return name[:begin] + host_of(who, found.host) + name[begin + len(found.host) :]


def schema_text(who: Who, text: object) -> str:
    """A schema without the words of its comments; units and tags stay."""
    if not isinstance(text, str):
        return ""
    return _COMMENT.sub(lambda one: _comment(one[0]), text) if "notes" in who.replaced else text


def _comment(text: str) -> str:
    _, unit, tags = split_doc(comment_lines(text), has_unit=True)
    words = [f"[{unit}]"] if _UNIT.fullmatch(unit) else []
    words += [f"@{tag}" for tag in sorted(tags) if _TAG.fullmatch(tag)]
    made = " ".join(words)
    if text.startswith("/*"):
        return f"/* {made} */" if made else " "
    return f"// {made}".rstrip() if not text.startswith("#") else f"# {made}".rstrip()


def plain(who: Who, value: Any) -> Any:
    """What tcpkmon itself says: words, numbers; other texts are replaced."""
    if isinstance(value, str):
        is_plain = _WORD.fullmatch(value) and not _DOTTED.search(value)
        if _DOTTED.search(value) and "addresses" in who.replaced:
            return who.hidden(value)
        return value if is_plain else who.text("paths" if "/" in value else "texts", value)
    return _each(who, value, plain)


def _condition(who: Who, value: Any) -> Any:
    """What somebody asked for: numbers and names of columns stay."""
    if not isinstance(value, str):
        return _each(who, value, _condition)
    has_port = "ports" in who.replaced and re.search(r"\d", value)
    is_plain = _WORD.fullmatch(value) and not _DOTTED.search(value) and not has_port
    if has_port or (_DOTTED.search(value) and "addresses" in who.replaced):
        return who.hidden(value)
    return value if is_plain else who.text("notes", value)


def _text(kind: str) -> Callable[[Who, Any], Any]:
    def replace(who: Who, value: Any) -> Any:
        return who.text(kind, value) if isinstance(value, str) else _each(who, value, replace)

    return replace


def _each(who: Who, value: Any, rule: Callable[[Who, Any], Any]) -> Any:
    if isinstance(value, dict):
        return {_key(who, key): rule(who, one) for key, one in value.items()}
    if isinstance(value, list):
        return [rule(who, one) for one in value]
    return value if isinstance(value, (bool, int, float)) else None


def _key(who: Who, key: str) -> str:
    return key if _WORD.fullmatch(key) and not _DOTTED.search(key) else who.text("texts", key)


def _same(who: Who, value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else None


def _table(**rules: Callable[[Who, Any], Any]) -> Callable[[Who, Any], Any]:
    """An object with these keys, and no others."""

    def replace(who: Who, value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        who.unknown += [key for key in value if key not in rules]
        return {key: rules[key](who, one) for key, one in value.items() if key in rules}

    return replace


def _list(rule: Callable[[Who, Any], Any]) -> Callable[[Who, Any], Any]:
    return lambda who, value: [rule(who, one) for one in value] if isinstance(value, list) else None


def _by_device(rule: Callable[[Who, Any], Any]) -> Callable[[Who, Any], Any]:
    def replace(who: Who, value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return {who.text("devices", key): rule(who, one) for key, one in value.items()}

    return replace


def _commands(who: Who, value: Any) -> Any:
    if "commands" not in who.replaced:
        return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    return []


def _users(who: Who, value: Any) -> Any:
    return who.number("users", value, 32) if type(value) is int and 0 <= value < 1 << 32 else None


def _sysctl(who: Who, value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    found = ((key, one) for key, one in value.items() if isinstance(one, str))
    return {
        key: one if _VALUES.fullmatch(one) else who.text("texts", one)
        for key, one in found if _SYSCTL.fullmatch(key) and "key" not in key
    }  # fmt: skip


def _ports(who: Who, value: Any) -> Any:
    if isinstance(value, str):  # LOCAL.REMOTE
        parts = value.split(".")
        is_pair = all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts)
        return ".".join(str(who.port(int(part))) for part in parts) if is_pair else None
    if type(value) is int:
        return who.port(value)
    return _list(_ports)(who, value)


def _networks(who: Who, value: Any) -> Any:
    return who.network(value) if isinstance(value, str) else _list(_networks)(who, value)


def _kernel_version(who: Who, value: Any) -> Any:
    return who.text("kernel", value) if isinstance(value, str) else None


def _numbers(who: Who, value: Any) -> Any:
    if isinstance(value, str):
        return None
    return _each(who, value, _numbers)


_DEVICE = _text("devices")
_RULES: dict[str, Callable[[Who, Any], Any]] = {
    "tcpkmon": plain, "collector_pids": _numbers, "selftest": plain, "command": _commands,
    "machine": _table(cpu_model=_same, memory_bytes=_same, uid=_users, user=_text("names")),
    "system": _table(
        boot_id=lambda who, value: who.uuid(value) if isinstance(value, str) else None,
        clock=_table(is_synchronised=_same, max_error_us=_same, estimated_error_us=_same),
        sysctl=_sysctl, offloads=_by_device(plain),
        qdiscs=_list(_table(device=_DEVICE, kind=plain, handle=plain, parent=plain,
                            options=plain)),
        drivers=_by_device(_table(driver=plain, version=_kernel_version)),
    ),
    "filters": _table(
        ports=_ports, local_ports=_ports, remote_ports=_ports, pairs=_ports, addresses=_networks,
        family=_same, namespaces=_text("names"), cgroups=_text("cgroups"), pids=_numbers,
        follow=_same, syscalls=plain, users=_list(_users),
    ),
    "namespaces": _text("names"), "schemata": plain, "data": _same, "columns": plain,
    "locations": plain, "missing_locations": plain, "unproven": plain, "unseen": plain,
    "absent_columns": plain, "drop_places": plain, "when_changed": plain, "rings": plain,
    "buffer_bytes": _same, "low_water_percent": _same, "hz": _same, "refused": plain,
    "budget": plain,
    "logs": _numbers, "went_on": _same, "started_anew": _text("texts"), "reconcile": plain,
    "connections": _same, PLACED: _same,
    "segment": _table(
        capture=_same, number=_same, states=_numbers,
        previous=lambda who, value: None if value is None else _table(
            name=segment_name, last_seq=_same, entries=_same, checkpoints=_same, serials=_numbers,
            lost=_numbers, skipped=_same, evicted=_same)(who, value),
    ),
    "recorder": _table(
        last_s=_same, last_bytes=_same, after_s=_same, triggers=_condition, dumps_per_hour=_same,
        number=_same, why=_condition, at_ns=_same, from_ns=_same, states=_same, held_back=_same,
        dumps=_same,
    ),
    "cut": _list(_table(records=_same, since=_same, until=_same, connections=_condition,
                        where=_condition)),
}  # fmt: skip
