# SPDX-License-Identifier: Apache-2.0
"""Which programs of a BPF text a capture attaches, and how on this kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.linux.probe_kinds import KINDS
from tcpkmon.collector.plan.schema_sources import blank_comments
from tcpkmon.formats.base.errors import KernelError

PROBE = re.compile(r'^PROBE\(\s*(\w+)\s*,\s*"([^"]*)"\s*,\s*"([^"]*)"\s*\)', re.MULTILINE)
SERVES = "+"
"""Before a location that a program serves: others record it."""
_NEEDS = re.compile(r'^NEEDS\(\s*(\w+),\s*"([^"]*)"\s*\)', re.MULTILINE)
_ADDRESS = re.compile(r"\b(?:ADDRESS\(|IN_FUNCTION\([^;{}]*?,)\s*([A-Za-z_]\w*)\s*\)")

_UNSEEN = (
    "this kernel runs no program while process 1 has the CPU: what happens then, interrupts too, is"
    " neither recorded nor counted"
)


@dataclass(frozen=True)
class Probe:
    """A program of the BPF text: its locations, and (kind, target) of its ways, best first.

    serves: locations that need it, but that others record.
    """

    name: str
    locations: tuple[str, ...]
    alternatives: tuple[tuple[str, str], ...]
    serves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """A program, and how this capture attaches it. serves: others need it too."""

    name: str
    locations: tuple[str, ...]
    kind: str
    target: str
    serves: bool = False

    @property
    def place(self) -> str:
        """kind:target, as PROBE() names it."""
        return f"{self.kind}:{self.target}"


@dataclass(frozen=True)
class Plan:
    """The programs to load, the locations that this kernel lacks (name -> why), and the numbers of
    arguments of the tracepoints."""

    probes: tuple[Chosen, ...]
    missing: Mapping[str, str]
    arguments: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    """Programs of the text that are not loaded."""
    unproven: Mapping[str, str] = field(default_factory=dict)
    """Locations that may lose events which this kernel does not count, and their kind:target."""
    unseen: str = ""
    """What this kernel shows no program, or ''."""

    def kind_of(self, location: str) -> str | None:
        """kind:target of each program of a location or event, or None."""
        places = [probe.place for probe in self.probes if location in probe.locations]
        return " ".join(dict.fromkeys(places)) or None


def find_probes(text: str) -> tuple[Probe, ...]:
    """The PROBE() declarations of a BPF text."""
    return tuple(
        Probe(
            name,
            tuple(word for word in locations.split() if not word.startswith(SERVES)),
            tuple((kind, target) for kind, _, target in (a.partition(":") for a in ways.split())),
            tuple(word[1:] for word in locations.split() if word.startswith(SERVES)),
        )
        for name, locations, ways in PROBE.findall(blank_comments(text))
    )


def address_lines(text: str, code_of: Callable[[str], tuple[int, int]]) -> list[str]:
    """C text for each ADDRESS() and IN_FUNCTION() of a BPF text.

    code_of: the address and the bytes of a function of the kernel, by name.
    """
    lines = []
    for name in dict.fromkeys(_ADDRESS.findall(blank_comments(text))):
        address, size = code_of(name)
        lines.append(f"#define KLOGGER_ADDRESS_{name} {address:#x}ull")
        lines.append(f"#define KLOGGER_BYTES_{name} {size}ull")
    return lines


def absent_columns(text: str, btf: Btf) -> tuple[str, ...]:
    """The columns whose NEEDS() name a member that this kernel lacks."""
    return tuple(
        column
        for column, members in _NEEDS.findall(text)
        if not all(btf.has_member(*member.split(".", 1)) for member in members.split())
    )


def make_plan(
    probes: Iterable[Probe],
    enabled: Collection[str],
    can: Callable[[str, str], bool],
    btf: Btf,
    always: Collection[str] = (),
    kinds: Collection[str] | None = None,
) -> Plan:
    """Chooses for each probe with an enabled location the first way that this kernel offers.

    can: whether a kind can be attached to a target (Probing.can of collector/loader). always:
    probes that are attached in any case. kinds: only these and iterators, for tests and
    benchmarks. Locations without a way are in `missing`.
    """
    chosen: list[Chosen] = []
    missing: dict[str, str] = {}
    arguments: dict[str, int] = {}
    unused = []
    for probe in probes:
        wanted = [location for location in probe.locations if location in enabled]
        serves = probe.name in always or any(name in enabled for name in probe.serves)
        if not wanted and not serves:
            unused.append(probe.name)
            continue
        for kind, target in probe.alternatives:
            narrowed = kinds is not None and kind not in (*kinds, "iter")
            if narrowed or not can(kind, target):
                continue
            chosen.append(Chosen(probe.name, tuple(wanted), kind, target, serves))
            if KINDS[kind].is_tracepoint and target not in arguments:
                arguments[target] = count_arguments(btf, target)
            break
        else:
            ways = ", ".join(f"{kind}:{target}" for kind, target in probe.alternatives)
            unused.append(probe.name)
            for location in wanted:
                before = missing.get(location)
                missing[location] = (
                    f"{before}, {ways}" if before else f"this kernel offers none of {ways}"
                )
    # Several programs may record the same location.
    for probe_chosen in chosen:
        for location in probe_chosen.locations:
            missing.pop(location, None)
    unproven = {
        location: probe_chosen.place
        for probe_chosen in chosen
        if not counts_skipped(btf, probe_chosen.kind)
        for location in probe_chosen.locations
    }
    return Plan(tuple(chosen), missing, arguments, tuple(unused), unproven, find_unseen(btf))


def counts_skipped(btf: Btf, kind: str) -> bool:
    """Whether this kernel counts the events for which it skips a program of this kind."""
    sign = KINDS[kind].counts_skipped
    return sign is None or btf.has_member(*sign)


def find_unseen(btf: Btf) -> str:
    """What this kernel shows no program, or ''.

    Some providers' kernels run a program only where process 1 is not the current one, unless
    process 1 loaded it, and count no such event. Interrupts come in any process.
    """
    return _UNSEEN if btf.has_member("bpf_prog_aux", "init_owned") else ""


def count_arguments(btf: Btf, tracepoint: str) -> int:
    """How many arguments a tracepoint has; newer kernels have appended some."""
    found = btf.find(Kind.TYPEDEF, f"btf_trace_{tracepoint}")
    return 0 if found is None else len(btf.args(found)) - 1  # the first is `void *__data`


def require_any(missing: Mapping[str, str], asked: Collection[str]) -> None:
    """Raises KernelError where nothing that was asked for can be recorded on this kernel."""
    if asked and set(asked) <= set(missing):
        reasons = "; ".join(f"{name}: {why}" for name, why in missing.items())
        text = f"nothing that was asked for can be recorded here: {reasons}"
        raise KernelError(text, "run tcpkmon doctor")
