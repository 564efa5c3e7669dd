# SPDX-License-Identifier: Apache-2.0
"""Netfilter hooks: attaches BPF programs to one in each network namespace, for IPv4 and IPv6.

A link belongs to the namespace in which it was made, and keeps that namespace alive: so it is
closed when the namespace has no process and no name any more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from collector.linux import bpf
from collector.linux.netns import list_namespaces, own_namespace, run_inside
from collector.linux.places import Places
from formats.base.errors import KernelError, TcpkmonError

HOOKS = {"PRE_ROUTING": 0, "LOCAL_IN": 1, "FORWARD": 2, "LOCAL_OUT": 3, "POST_ROUTING": 4}
"""By name, the number in linux/netfilter.h."""
_FIRST_HOOKS = {"PRE_ROUTING", "LOCAL_OUT"}
_FAMILIES = (2, 10)
"""NFPROTO_IPV4 and NFPROTO_IPV6."""
_LOWEST, _HIGHEST = -(1 << 31) + 1, (1 << 31) - 2
"""The kernel keeps the numbers beyond for itself."""
_TRIES = 256


def wrong_hook(target: str) -> str:
    """What was expected instead of this target, or ''."""
    return "" if target in HOOKS else f"a hook of netfilter ({', '.join(HOOKS)})"


def attach_netfilter(target: str, programs: Sequence[int]) -> Places:
    """Attaches programs to a hook: in this thread's namespace, by refresh() in all others too."""
    if target not in HOOKS:
        raise KernelError(f"there is no netfilter hook {target}", f"take {', '.join(HOOKS)}")

    def open_(place: int, program: int) -> list[int]:
        if place == own_namespace():
            return link_hook(target, program)
        path = list_namespaces().get(place)
        if path is None:
            return []
        try:
            namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            if os.fstat(namespace).st_ino != place:
                return []
            return run_inside(namespace, lambda: link_hook(target, program))
        finally:
            os.close(namespace)

    return Places(own_namespace(), list_namespaces, open_, programs)


def link_hook(target: str, program: int) -> list[int]:
    """Attaches a program in the calling thread's namespace; the links' descriptors.

    Where packets enter a layer (PRE_ROUTING, LOCAL_OUT) it runs before all rules, elsewhere after
    all: so it sees what comes, and what the rules let through.
    """
    links: list[int] = []
    try:
        for family in _FAMILIES:
            links.append(_link(family, target, program))
    except TcpkmonError:
        for fd in links:
            os.close(fd)
        raise
    return links


def _link(family: int, target: str, program: int) -> int:
    """The kernel allows no two BPF links of one priority at a hook: the next free one is taken."""
    for step in range(_TRIES):
        priority = _LOWEST + step if target in _FIRST_HOOKS else _HIGHEST - step
        try:
            return bpf.link_netfilter(program, family, HOOKS[target], priority)
        except KernelError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EBUSY:
                raise
    raise KernelError(f"{_TRIES} BPF programs are at netfilter's hook {target} already")
