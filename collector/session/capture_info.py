# SPDX-License-Identifier: Apache-2.0
"""Makes the writer's CaptureInfo from the request, the plan and the loaded programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tcpkmon.collector.linux.machine import describe_kernel, describe_machine
from tcpkmon.collector.linux.netns import name_namespaces
from tcpkmon.collector.linux.system_settings import read_system_settings
from tcpkmon.collector.loader.capture_maps import Kernel
from tcpkmon.collector.loader.following import descendants
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.loader.selftest_result import last_result
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.writer.capture_info import CaptureInfo
from tcpkmon.collector.writer.note import Note
from tcpkmon.formats.base.installing import own_version
from tcpkmon.formats.schema import format_schema


def make_info(
    request: Request,
    prepared: Prepared,
    kernel: Kernel,
    refused: Mapping[str, str],
    command: int,
    sockets: Callable[[], Iterable[Note]],
) -> CaptureInfo:
    """For the stream's begin(). Call it after attaching: then all refusals are known.

    command: the pid of the command that is captured, 0: there is none."""
    missing = kernel.missing()
    recorded = {n: prepared.plan.kind_of(n) for n in prepared.enabled if n not in missing}
    tcp, events = prepared.tcp, prepared.events.layout if prepared.events else None
    return CaptureInfo(
        version=own_version(),
        kernel=describe_kernel(),
        settings=_settings(request, prepared, recorded, missing, refused, command),
        dtype=prepared.dtype,
        cpus=len(kernel.heads()),
        requested=len(prepared.numbers),
        recorded=len(recorded),
        programs=len(prepared.plan.probes),
        buffer_bytes=request.buffer_bytes,
        low_water_percent=request.low_water_percent,
        tcp=tcp.layout.schema if tcp else None,
        columns=tcp.layout.columns if tcp else (),
        entry_size=tcp.layout.entry_size if tcp else 0,
        schema_text=format_schema(tcp.layout.schema) if tcp else "",
        page_bytes=tcp.facts.page_size if tcp else 0,
        schema=events.schema if events else None,
        events=[(slot.number, slot.event) for slot in events.slots] if events else (),
        mixed=tcp is not None and events is not None and bool(events.logged),
        sockets=sockets,
        remembered=request.remembered,
    )


def _settings(
    request: Request,
    prepared: Prepared,
    recorded: Mapping[str, str | None],
    missing: Mapping[str, str],
    refused: Mapping[str, str],
    command: int,
) -> dict[str, Any]:
    """For the header, with what this kernel lacks and what it refused."""
    tcp = prepared.tcp
    has_netns = tcp is not None and any(one.name == "netns" for one in tcp.layout.columns)
    return {
        "tcpkmon": own_version(),
        "machine": describe_machine(),
        "collector_pids": _own_pids(command),
        "selftest": last_result(),
        "command": list(request.arguments),
        "system": read_system_settings(),
        "filters": request.filters.describe(),
        "namespaces": name_namespaces() if has_netns else {},
        "schemata": list(request.schemata),
        "data": request.data,
        "columns": request.stored_columns if tcp else None,
        "locations": recorded,
        "missing_locations": missing,
        "unproven": {n: way for n, way in prepared.plan.unproven.items() if n in recorded},
        "unseen": prepared.plan.unseen,
        "absent_columns": list(tcp.layout.absent) if tcp else [],
        "when_changed": list(request.when_changed),
        "rings": prepared.transport.name,
        "connections": request.identities,
        "buffer_bytes": request.buffer_bytes,
        "low_water_percent": request.low_water_percent,
        "hz": tcp.facts.hz if tcp else None,
        "refused": refused,
        **_budget(request, prepared, recorded),
    }


def _own_pids(command: int) -> list[int]:
    """This process first, then those that work for it: that open files, enter namespaces, keep
    files. A helper that is started again later is not among them."""
    own = os.getpid()
    return [own, *sorted(descendants({own}) - descendants({command} - {0}) - {own})]


def _budget(request: Request, prepared: Prepared, recorded: Mapping[str, Any]) -> dict[str, Any]:
    if request.budget is None:
        return {}
    return {"budget": request.budget.describe(prepared.steps(recorded))}
