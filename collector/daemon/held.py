# SPDX-License-Identifier: Apache-2.0
"""What a capture's process parked with the supervisor: collector/loader/parked.py says what it is.

The supervisor only holds it, for the next process if this one is killed. Under systemd it is
stored there too (FDSTORE), for the next supervisor: each descriptor as CAPTURE/WHEN/NAME, and what
is to be known of them in a memory file, CAPTURE/WHEN/state.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tcpkmon.collector.daemon.messages import LATER
from tcpkmon.collector.daemon.systemd import Systemd
from tcpkmon.collector.linux.syscalls import close_aside
from tcpkmon.formats.base.closing import Closing

_STATE = "state"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MOST_BYTES = 1 << 20


class Held(Closing):
    """Descriptors by name, and `state`, which is JSON. table: the capture's configuration."""

    def __init__(self, systemd: Systemd, capture: str, table: Mapping[str, Any]) -> None:
        self.fds: dict[str, int] = {}
        self.state: dict[str, Any] = {}
        self.table = table
        self._systemd = systemd
        self._prefix = f"{capture}/{time.monotonic_ns()}"

    @classmethod
    def restore(cls, systemd: Systemd, prefix: str, fds: dict[str, int]) -> Held:
        """What another supervisor held. ValueError, OSError where nobody can know what it is."""
        held = cls(systemd, "", {})
        held._prefix, held.fds = prefix, fds
        try:
            found = json.loads(os.pread(fds[_STATE], _MOST_BYTES, 0))
            held.state, held.table = dict(found["state"]), dict(found["table"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            held.close()
            raise ValueError("its state cannot be read") from None
        os.close(fds.pop(_STATE))
        return held

    @property
    def is_stored(self) -> bool:
        """Whether the next supervisor gets it, if this one is killed."""
        return self._systemd.is_there

    def add(
        self, state: Mapping[str, Any], names: Sequence[str], fds: Sequence[int], trusted: bool
    ) -> None:
        """Hold these instead of all before, as a process parks all of its own at its start.

        trusted: it has not given up its privileges yet. Then it adds links alone: LATER.
        """
        if trusted and state and state != self.state:
            self.close()
            self.state = dict(state)
            self._store_state()
        for index, fd in enumerate(fds):
            name = str(names[index]) if index < len(names) else ""
            # One that went on parks what it was given.
            later = LATER.fullmatch(name)
            is_later = later is not None and f"link/{later[1]}/0" in self.fds
            if name in self.fds or not (trusted or is_later):
                close_aside([fd])
            else:
                self.fds[name] = fd
                self._systemd.store(f"{self._prefix}/{name}", fd)

    def configure(self, table: Mapping[str, Any]) -> None:
        """The capture was changed while it goes on."""
        self.table = table
        if self.state:
            self._systemd.forget(f"{self._prefix}/{_STATE}")
            self._store_state()

    def _store_state(self) -> None:
        text = json.dumps({"state": self.state, "table": dict(self.table)}).encode()
        fd = os.memfd_create("tcpkmon-state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.write(fd, text)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self._systemd.store(f"{self._prefix}/{_STATE}", fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close all: what no other process holds ends."""
        if self.state or self.fds:
            for name in (_STATE, *self.fds):
                self._systemd.forget(f"{self._prefix}/{name}")
        close_aside(self.fds.values())
        self.fds.clear()
        self.state = {}


class Stored(Closing):
    """What the supervisor before this one held, by the name of a capture."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._found: dict[str, Held] = {}
        by_prefix: dict[str, dict[str, int]] = {}
        for full, fd in systemd.stored():
            capture, _, rest = full.partition("/")
            when, _, name = rest.partition("/")
            by_prefix.setdefault(f"{capture}/{when}", {})[name] = fd
        for prefix in sorted(by_prefix):
            capture = prefix.partition("/")[0]
            try:
                held = Held.restore(systemd, prefix, by_prefix[prefix])
            except ValueError:
                continue
            if capture in self._found:  # another had relieved it
                self._found[capture].close()
            self._found[capture] = held

    def take(self, capture: str, table: Mapping[str, Any]) -> Held:
        """What was held of a capture, if its configuration is the same; else nothing is held."""
        held = self._found.pop(capture, None)
        if held is not None and held.table == table:
            return held
        if held is not None:
            held.close()
        return Held(self._systemd, capture, table)

    def close(self) -> None:
        """Give up what was not taken."""
        while self._found:
            self._found.popitem()[1].close()
