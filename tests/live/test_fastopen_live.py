# SPDX-License-Identifier: Apache-2.0
"""TCP Fast Open: the data that the SYN carries is counted, on both sides."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from tcpkmon.collector.lab.lab import Lab
from tcpkmon.collector.lab.namespaces import Side
from tcpkmon.collector.lab.pair import listening
from tcpkmon.formats.analysis.why import connections, rows_of
from tests.live.capturing import capturing, within

SENT, ANSWERED = 20_000, 3_000
FAST_OPEN, MSG_FASTOPEN = 23, 0x20000000
NO_COOKIES = 0x1 | 0x2 | 0x4 | 0x200  # client, server, and neither asks for a cookie


def _allow(side: Side) -> None:
    side.run(lambda: Path("/proc/sys/net/ipv4/tcp_fastopen").write_text(str(NO_COOKIES)))


def test_the_data_of_the_syn_counts(tmp_path: Path, lab: Lab) -> None:
    for side in (lab.a, lab.b):
        _allow(side)
    got = []

    def serve(listener: socket.socket) -> None:
        end, _ = listener.accept()
        with end:
            while sum(got) < SENT:
                got.append(len(end.recv(1 << 16)))
            end.sendall(bytes(ANSWERED))

    path = tmp_path / "a.pm"
    with capturing(path, *within(lab)) as running, listening(lab.b, "10.77.0.2") as listener:
        listener.setsockopt(socket.IPPROTO_TCP, FAST_OPEN, 5)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with lab.a.run(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as client:
            early = client.sendto(bytes(SENT), MSG_FASTOPEN, listener.getsockname())
            client.sendall(bytes(SENT - early))
            while client.recv(1 << 16):
                pass
        thread.join()
        outcome = running.stop()
    outcome.check_complete()
    assert not outcome.capture.settings["namespaces"], "without the column netns"
    opened = outcome.records.at("STATE_CHANGE").where(callvalue=1)
    assert len(opened) == 2 and (opened["seg_len"] > 0).all(), "the SYN carried data"
    rows = {row["laddr"]: row for row in rows_of(connections(path))}
    client_row, server_row = rows["10.77.0.1"], rows["10.77.0.2"]
    told = [client_row[name] for name in ("bytes_sent", "bytes_acked", "bytes_received")]
    assert told == [SENT, SENT, ANSWERED]
    told = [server_row[name] for name in ("bytes_sent", "bytes_acked", "bytes_received")]
    assert told == [ANSWERED, ANSWERED, SENT]
