# SPDX-License-Identifier: Apache-2.0
"""Segments that arrive when one end closed: each is recorded, and they tell what limits then."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.loader.attach_trials import Probing
from tcpkmon.formats.analysis.why import connections, rows_of
from tests.live.capturing import capturing, connected, within

WAYS = {"typed": "btf,fentry,fexit,iter", "untyped": "raw,kprobe,iter"}
FUNCTION = "tcp_rcv_state_process"
SNDBUFFORCE = 32
SENT, ANSWERED = 400_000, 50_000


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_connection_goes_on_to_be_recorded(
    tmp_path: Path, probing: Probing, way: str
) -> None:
    """The client sends, and ends its direction; the reader sleeps, reads all, answers, closes."""
    kind = WAYS[way].split(",")[1]
    path = tmp_path / "a.pm"
    with Lab() as lab:
        with (
            capturing(path, *within(lab), kinds=WAYS[way]) as running,
            connected(lab) as pair,
        ):
            pair.client.setsockopt(socket.SOL_SOCKET, SNDBUFFORCE, 4 * SENT)
            pair.client.sendall(bytes(SENT))
            pair.client.shutdown(socket.SHUT_WR)
            time.sleep(1.0)
            while pair.server.recv(1 << 20):
                pass
            pair.server.sendall(bytes(ANSWERED))
            pair.server.shutdown(socket.SHUT_WR)
            while pair.client.recv(1 << 20):
                pass
            port = pair.client_port
        outcome = running.stop()
    outcome.check_complete()
    missing = outcome.capture.settings["missing_locations"].get("SEGMENT_CLOSING", "")
    lacking = probing.why_not(kind, FUNCTION)
    assert bool(missing) == bool(lacking)
    (sender,) = [row for row in rows_of(connections(path)) if row["lport"] == port]
    limited = sender["us_rwnd"] + sender["us_zero_window"]
    assert limited > 0.6 * sender["duration_us"], sender
    assert sender["us_closing"] < 0.2 * sender["duration_us"]
    assert sender["bytes_acked"] == SENT
    assert sender["bytes_received"] == ANSWERED
    assert (sender["uncertain_us"] > 0.1 * sender["duration_us"]) == bool(missing)
    client = outcome.records.where(lport=port).at("SEGMENT_CLOSING")
    if missing:
        assert len(client) == 0
        pytest.skip(f"the rest was tested; {missing}")
    assert {4, 5} <= set(client["state"].tolist()) <= {4, 5, 9, 11}
    # What arrives in FIN_WAIT2 is the answer; the ACKs before it carry nothing.
    assert client["callvalue"].sum() == client["seg_len"].sum() == ANSWERED
    server = outcome.records.where(rport=port).at("SEGMENT_CLOSING")
    assert set(server["state"].tolist()) <= {8, 9}
    final = outcome.records.where(rport=port).last("snd_una")
    assert (final - int(server["snd_una"][0])) % (1 << 32) >= ANSWERED
