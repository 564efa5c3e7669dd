# SPDX-License-Identifier: Apache-2.0
"""Chooses the locations, events and columns that a request names, and checks the names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tcpkmon.collector.plan.budget import make_steps
from tcpkmon.collector.plan.columns import (
    EVENT,
    choose_columns,
    choose_locations,
    load_schema,
    locations_of,
    narrow,
    split_words,
)
from tcpkmon.collector.plan.event_layout import EventLayout, lay_out_sources
from tcpkmon.collector.plan.extension import tcp_schema
from tcpkmon.collector.plan.request import Request
from tcpkmon.collector.plan.schema_sources import Source, find_sources, has_tcp
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.schema import Schema


def choose(
    text: str | None, tcp: Schema | None, events: EventLayout | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The locations of the schema tcp and the events of other schemata that --locations names.

    tcp: None: it is not captured."""
    logged = [slot.name for slot in events.logged] if events is not None else []
    if events is None or not logged:
        return choose_locations(tcp or load_schema(), text), ()
    known = set(locations_of(tcp)) if tcp is not None else set()
    if both := known & set(logged):
        raise UsageError(f"{min(both)} is an event and a location of the schema tcp", "rename it")
    ours, theirs = [], []
    for word in split_words(text):
        name = word.lstrip("-+")
        is_set = name.lower() in {"default", "all"}
        if is_set or name.upper() in known:
            ours.append(word)
        if is_set or name in logged:
            theirs.append(word)
        elif name.upper() not in known:
            declared = any(slot.name == name for slot in events.slots)
            why = "its log level is not in use" if declared else "tcpkmon events lists them"
            raise UsageError(f"no such event to record: {name}", why)
    locations = choose_locations(tcp, ",".join(ours)) if tcp is not None and ours else ()
    return locations, narrow(theirs, logged, logged, "event") if theirs else ()


def check_limits(limits: Iterable[str], chosen: Collection[str]) -> None:
    """Raises UsageError for a limit of an event that is not recorded. chosen: the events."""
    for name in limits:
        if name not in chosen:
            raise UsageError(
                f"--limit {name}: no such event is recorded", "it holds for events of schemata"
            )


def check_budget(chosen: Collection[str], events: EventLayout) -> None:
    """Raises UsageError where a budget can leave out none of these events, without tcp."""
    if not make_steps(chosen, (), [slot.event for slot in events.logged], has_tcp=False):
        raise UsageError(
            "a budget needs events that it may leave out: this capture has none",
            "set a limit for single events: --limit EVENT=N",
        )


def check_names(request: Request, find: Callable[..., tuple[Source, ...]] = find_sources) -> None:
    """Raises UsageError or SchemaError for a name that no schema has; needs no kernel. find: reads
    the schemata."""
    sources = find(request.schemata)
    holds_events = request.format.holds_events
    layout = lay_out_sources(sources, request.using, request.data) if holds_events else None
    tcp = tcp_schema(sources) if has_tcp(sources) else None
    _, chosen = choose(request.locations, tcp, layout)
    check_limits((name for name, _ in request.limits), chosen)
    if request.budget is not None and layout is not None and tcp is None:
        check_budget(chosen, layout)
    if tcp is not None:
        event = tcp.event(EVENT)
        choose_columns(event, request.stored_columns)
        choose_columns(event, ",".join(request.when_changed))
