# SPDX-License-Identifier: Apache-2.0
"""Fields that hold names of kernel functions: found by address, and what a sleep there means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tcpkmon.collector.linux import kallsyms
from tcpkmon.collector.plan.event_layout import ring_dtype
from tcpkmon.collector.writer.function_names import FunctionNames, sleep_class
from tcpkmon.formats.schema import parse, place_fields

LISTING = """0000000000000000 A fixed_percpu_data
ffffffff81000000 T __pfx_pipe_read
ffffffff81000010 t pipe_read
ffffffff81000110 t pipe_read_end
ffffffff82000000 D some_data
ffffffffc0000000 t do_nothing\t[module]
ffffffff81000100 T n_tty_read.constprop.0
"""
CONF = """
enum what { OTHER, PIPE = 7, TTY = 8 }
event SLEEP { int tid; ulonglong place; string12 symbol // @function
    what class // @sleep_class
}
event PLAIN { ulonglong place; string12 symbol }
event NO_ADDRESS { int place; string12 symbol // @function
}
"""


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kallsyms"
    path.write_text(LISTING)
    monkeypatch.setattr(kallsyms, "KALLSYMS", path)
    return path


def test_functions_by_address(listing: Path) -> None:
    symbols = kallsyms.Kallsyms()
    names = {
        0xFFFFFFFF81000010: b"pipe_read", 0xFFFFFFFF810000FF: b"pipe_read",
        0xFFFFFFFF81000100: b"n_tty_read.constprop.0", 0xFFFFFFFFC0001000: b"do_nothing",
        0xFFFFFFFF81000000: b"", 0: b"", 5: b"",
    }  # fmt: skip
    assert {address: symbols.name(address) for address in names} == names
    assert symbols.bytes_of(0xFFFFFFFF81000010) == 0xF0
    assert symbols.bytes_of(0xFFFFFFFF81000011) == symbols.bytes_of(0) == 0


@pytest.mark.parametrize("kept", [0, 24])
def test_names_and_classes_are_filled_in(listing: Path, kept: int) -> None:
    schema = parse(CONF)
    numbers = {event.name: 10 + at for at, event in enumerate(schema.events)}
    names = FunctionNames(schema, [(numbers[event.name], event) for event in schema.events])
    places, size = place_fields(schema, schema.event("SLEEP"))
    at = {place.field.name: kept + place.offset for place in places}
    rows = np.zeros(6, ring_dtype(kept + size))
    raw = rows.view(np.uint8).reshape(6, -1)
    # A return address may be the first byte behind its function.
    for row, address in enumerate([0xFFFFFFFF81000100, 0xFFFFFFFF81000109, 0xFFFFFFFF81000111, 0]):
        raw[row, at["place"] : at["place"] + 8] = np.array([address], "=u8").view(np.uint8)
    raw[:, at["class"]] = 1
    raw[4:] = 9
    before = raw.copy()
    names.fill(np.array([numbers[n] for n in ("SLEEP",) * 4 + ("PLAIN", "NO_ADDRESS")]), rows, kept)
    texts = [bytes(row[at["symbol"] : at["symbol"] + 12]).rstrip(b"\0") for row in raw[:4]]
    assert texts == [b"pipe_read", b"n_tty_read.c", b"pipe_read_en", b""]
    # Where the name does not tell, the program's value stays.
    assert [int(row[at["class"]]) for row in raw[:4]] == [7, 8, 7, 1]
    assert (raw[4:] == before[4:]).all()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (b"anon_pipe_read", "PIPE"), (b"pipe_wait_readable", "PIPE"), (b"n_tty_read", "TTY"),
        (b"futex_wait_queue_me", "FUTEX"), (b"futex_do_wait", "FUTEX"), (b"do_wait", "WAIT"),
        (b"hrtimer_nanosleep", "TIMER"), (b"poll_schedule_timeout.constprop.0", "POLL"),
        (b"ep_poll", "POLL"), (b"do_epoll_wait", "POLL"), (b"sk_wait_data", "SOCKET"),
        (b"unix_stream_read_generic", "SOCKET"), (b"inet_csk_accept", "SOCKET"),
        (b"__lock_sock", "SOCKET"), (b"folio_wait_bit_common", "DISK"),
        (b"blk_io_schedule", "DISK"), (b"do_wait.isra.0", "WAIT"),
        (b"submit_bio_wait", "DISK"), (b"jbd2_log_wait_commit", "DISK"), (b"worker_thread", ""),
        (b"do_waiting_for_godot", ""), (b"synchronize_rcu", ""), (b"", ""),
    ],
)  # fmt: skip
def test_classes_of_sleeps(function: bytes, expected: str) -> None:
    assert sleep_class(function) == expected
