# SPDX-License-Identifier: Apache-2.0
"""How a connection ended, and what may be missing of its beginning and its end."""

from __future__ import annotations

import errno
import math
import os
from collections import Counter
from collections.abc import Iterable

from tcpkmon.formats.analysis.why.connections import Connection
from tcpkmon.formats.analysis.why.words import human_bytes, human_time
from tcpkmon.formats.base.text import endpoint

REFUSED, RESET = "refused by the peer", "reset by the peer"
_OWN, _TIMED_OUT = "reset by this host", "ended by a timeout"
_GIVEN_UP = "given up by this host"
_UNREACHABLE = "ended because the peer cannot be reached"
_CANNOT = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def kind_of_end(reason: str, error: int) -> str:
    """The first words of ending(). reason, error: end_reason and errno of the table connections."""
    if reason == "rst_received":
        return REFUSED if error == errno.ECONNREFUSED else RESET
    if reason == "error" and error == errno.ECONNREFUSED:
        return REFUSED
    kinds = {"rst_sent": _OWN, "timeout": _TIMED_OUT, "given_up": _GIVEN_UP,
             "error": _UNREACHABLE if error in _CANNOT else "ended by an error"}  # fmt: skip
    return kinds.get(reason, "")


def ending(one: Connection) -> str:
    """A sentence on an end that is not an orderly one, or ""."""
    kind = kind_of_end(one.end_reason, one.errno)
    if not kind:
        return ""
    peer = endpoint(one.raddr, one.rport)
    name = errno.errorcode.get(one.errno, str(one.errno))
    # The errno of a reset that this host sent speaks of the peer.
    told = f" ({name}: {os.strerror(one.errno)})" if one.errno and kind != _OWN else ""
    tries = f" ({one.syn_retrans + 1} SYN sent)" if one.syn_retrans else ""
    if kind == REFUSED:
        return (
            f"{kind}{told}: a RST of {peer} answered the SYN{tries}. Look whether a server "
            "listens there, or a firewall rejects it"
        )
    if kind == _GIVEN_UP:
        return (
            f"{kind} after {human_time(1e6 * one.duration_s)}: its program closed it before {peer} "
            f"answered{tries}. Look whether a host is there, and a firewall lets it through"
        )
    if not one.established and not one.errno and one.end_reason == "error":
        return (
            f"ended by an ICMP message that {peer} cannot be reached, which answered the "
            f"SYN{tries}: look at the route, or a firewall rejects it"
        )
    if not one.established:
        return f"{kind}{told}: the connection to {peer} was never established{tries}"
    passed = (
        f"{kind} after {human_bytes(one.bytes_sent)} sent and {human_bytes(one.bytes_received)} "
        f"received{told}"
    )
    lost = one.bytes_sent - one.bytes_acked
    if lost > 0 and is_reset(one):
        passed += f", {human_bytes(lost)} of what was sent was not acknowledged"
    if one.bytes_unsent:
        passed += f", {human_bytes(one.bytes_unsent)} that its program wrote were never sent"
    if kind == RESET and lost > 0:
        return f"{passed}: look at the program there, or at a box on the path that sends RSTs"
    if kind == _OWN:
        return (
            f"{passed}: its program closed it with data unread or with SO_LINGER 0, or data came "
            "after its close"
        )
    return passed


def closed_unsent(one: Connection) -> str:
    """A sentence on what was written and not sent when its program closed, or ""."""
    if not one.bytes_unsent or kind_of_end(one.end_reason, one.errno):
        return ""
    rest = human_bytes(one.bytes_unsent)
    if one.bytes_at_least:
        return f"its program closed it with {rest} unsent; what was sent of that is not recorded"
    return (
        f"its program closed it, and {rest} that it wrote were not sent until the last record: "
        "shut it down, and read to the end before closing"
    )


def closed_before(one: Connection) -> str:
    """What the time in which nothing could be sent any more was."""
    if kind := kind_of_end(one.end_reason, one.errno):
        return f"it was closing, or over already ({kind}), and the socket was still there"
    return (
        "all was sent and the connection closed: the last data and the other side's end were "
        "waited for"
    )


def died_idle(one: Connection) -> bool:
    """Whether a timeout ended it while nothing, nor a FIN, waited for an ACK or a window."""
    is_timeout = kind_of_end(one.end_reason, one.errno) == _TIMED_OUT
    waits = one.bytes_sent > one.bytes_acked or one.rto_unanswered or "zero_window" in one.limit_ns
    return is_timeout and one.established and not waits


def is_reset(one: Connection) -> bool:
    """Whether a connection that was established was reset: that says nothing of its speed."""
    return one.established and kind_of_end(one.end_reason, one.errno) in (RESET, _OWN)


def count_ends(reasons: Iterable[str], errors: Iterable[float]) -> str:
    """Ends that are not orderly, with their numbers: "5 refused by the peer", or ""."""
    kinds = Counter(
        kind_of_end(reason, 0 if math.isnan(error) else int(error))
        for reason, error in zip(reasons, errors, strict=True)
    )
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common() if kind)


def outside(one: Connection) -> list[str]:
    """Sentences: what is missing before the first record and behind the last one may be of it."""
    places = ((one.lost_before, "before its first one", "begun earlier"),
              (one.lost_after, "behind its last one", "gone on"))  # fmt: skip
    return [
        f"{lost} records of the capture are missing {where}, which may be of it: it may have {then}"
        for lost, where, then in places if lost
    ]  # fmt: skip
