# SPDX-License-Identifier: Apache-2.0
"""A capture's maps, programs and links, parked with another process while this one records.

The kernel keeps what any process holds a descriptor of. Where a capture's process is killed, the
next one gets the descriptors back and goes on. By name:

    journal          collector/ring/journal.py
    map/NAME         the rings are in the map klogger_rings
    prog/FUNCTION/N  the copies of a program
    link/FUNCTION/N  the copies that are attached; more/FUNCTION/0: a second one, attached later
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tcpkmon.collector.linux.kprobe_events import KprobeEvent
from tcpkmon.collector.linux.places import Links
from tcpkmon.collector.linux.probe_kinds import Attachment
from tcpkmon.collector.linux.syscalls import close_all
from tcpkmon.collector.loader.prepare import Prepared
from tcpkmon.collector.loader.program import Program, ProgramSpec
from tcpkmon.collector.loader.programs import Loaded
from tcpkmon.collector.plan.request import Request
from tcpkmon.formats.base.closing import Closing
from tcpkmon.formats.base.errors import KernelError, TcpkmonError
from tcpkmon.formats.base.installing import own_version

KINDS = frozenset(["btf", "raw", "fentry", "fexit", "kprobe", "iter"])
"""Those whose links can be parked: they belong to no namespace, CPU or process."""
JOURNAL = "journal"


@dataclass
class Parked(Closing):
    """What was parked: descriptors by name, and `state`, fit for JSON. close() closes them all."""

    fds: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str) -> int:
        """A descriptor, which is the caller's from now on. KernelError where it is not there."""
        try:
            return self.fds.pop(name)
        except KeyError:
            raise KernelError(f"{name} was not handed over") from None

    def close(self) -> None:
        """Close what was not taken."""
        close_all(self.fds.values())
        self.fds.clear()


def why_not(request: Request, prepared: Prepared) -> str:
    """Why nobody could go on with such a capture, or ''."""
    if request.recorder is not None:
        return "the window of a flight recorder is in its process's memory"
    if request.reconcile:
        return "reconcile knows the connections' last records from the process itself"
    if not prepared.transport.lasts:
        return f"{prepared.transport.name} rings end with their process"
    is_psc = request.format.has_entries
    if is_psc and (missing := {"cpu", "serial"} - set(prepared.dtype.names or ())):
        return f"the file has no column {' and '.join(sorted(missing))}"
    if strange := {probe.kind for probe in prepared.plan.probes} - KINDS:
        return f"programs of the kind {', '.join(sorted(strange))} are not handed over"
    return ""


def digests(prepared: Prepared) -> dict[str, str]:
    """What must be the same for another process to go on, each as a digest."""
    image = prepared.image
    maps = [asdict(spec) for spec in image.maps]
    code = {name: (one.instructions.hex(), one.map_refs) for name, one in image.programs.items()}
    probes = [(probe.name, probe.kind, probe.target) for probe in prepared.plan.probes]
    parts = {
        "tcpkmon's version": own_version(),
        "the schema": (prepared.tcp and prepared.layout.dtype.descr, prepared.numbers),
        "the engine": (maps, str(prepared.engine.head), prepared.transport.name),
        "the byte code": sorted(code.items()),
        "the probes": probes,
    }
    return {
        what: hashlib.sha256(repr(value).encode()).hexdigest() for what, value in parts.items()
    }


def difference(parked: Parked, prepared: Prepared) -> str:
    """What differs in this capture from the one that was parked, or ''."""
    before, now = parked.state.get("digests"), digests(prepared)
    if not isinstance(before, Mapping):
        return "what was parked"
    return ", ".join(what for what in now if before.get(what) != now[what])


def park(loaded: Loaded, journal: int) -> dict[str, int]:
    """All descriptors by name, which stay the capture's own."""
    found = {JOURNAL: journal}
    found |= {f"map/{name}": fd for name, fd in loaded.maps.items()}
    for function, program in loaded.programs.items():
        attached = program.attachment.fds if program.attachment is not None else []
        second = program.second.fds if program.second is not None else []
        for kind, fds in (("prog", program.prog_fds), ("link", attached), ("more", second)):
            found |= {f"{kind}/{function}/{index}": fd for index, fd in enumerate(fds)}
    return found


def describe(loaded: Loaded) -> dict[str, Any]:
    """What descriptors do not tell: refusals, and the names of kprobe events."""
    events = {}
    for function, program in loaded.programs.items():
        for what, one in (("link", program.attachment), ("more", program.second)):
            if isinstance(one, KprobeEvent):
                events[f"{what}/{function}"] = [one.group, one.name]
    refused = {function: error.message for function, error in loaded.refused.items()}
    return {"refused": refused, "events": events}


def adopt(loaded: Loaded, specs: Iterable[ProgramSpec], parked: Parked) -> None:
    """The programs that were parked, attached as they are. KernelError where one is missing."""
    for spec in specs:
        why = parked.state["refused"].get(spec.function)
        if why is not None:
            loaded.refused[spec.function] = KernelError(why)
            continue
        program = Program(spec, _numbered(parked, f"prog/{spec.function}"))
        loaded.programs[spec.function] = program
        program.attachment = _attachment(parked, f"link/{spec.function}")
        if program.attachment is None or not program.prog_fds:
            raise KernelError(f"the program {spec.function} was not handed over")
        program.second = _attachment(parked, f"more/{spec.function}")


def _numbered(parked: Parked, name: str) -> list[int]:
    fds: list[int] = []
    while f"{name}/{len(fds)}" in parked.fds:
        fds.append(parked.take(f"{name}/{len(fds)}"))
    return fds


def _attachment(parked: Parked, name: str) -> Attachment | None:
    fds = _numbered(parked, name)
    if not fds:
        return None
    event = parked.state["events"].get(name)
    if event is None:
        return Links(fds)
    try:
        group, event_name = event
        return KprobeEvent.adopt(group, event_name, fds)
    except TcpkmonError:
        close_all(fds)
        raise
