# SPDX-License-Identifier: Apache-2.0
"""tcpkmon packetdrill: scripts of real transfers pass on this kernel, and fail where it is changed.

The player of tests/truth/drill plays them, and packetdrill where it is installed. A machine that is
busy delays packets, so that a script may fail once: one of three plays passes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tcpkmon.formats.analysis.why import Source
from tcpkmon.formats.base.errors import UsageError
from tcpkmon.formats.commands.packetdrill import command
from tcpkmon.formats.export.packetdrill import Options, find_event, read_connection, walking
from tests.truth.drill.language import ScriptError
from tests.truth.drill.player import play
from tests.truth.drill.transfers import SYNS, play_real, record, script_of, try_play

PROGRAM = shutil.which("packetdrill")
TRIES = 3


def passes(text: str) -> bool:
    """Whether one of some plays passes, by the player and, if it is there, by packetdrill."""
    why = ""
    for _ in range(TRIES):
        passed, why = try_play(text, {}, 1)
        if passed:
            return PROGRAM is None or not all(play_real(text, PROGRAM) for _ in range(TRIES))
    raise AssertionError(why)


def test_a_loss_passes_and_another_loss_recovery_does_not(tmp_path: Path) -> None:
    path = tmp_path / "run.pm"
    ports = record(path, "tail")
    text = script_of(path, ports, Options(tolerance_us=40_000))
    assert "// sent again" in text and "<sack " in text and "timer expires" in text
    assert passes(text)
    passed, why = try_play(text, {"net.ipv4.tcp_early_retrans": "0"}, 1)
    assert not passed and "the kernel sent it" in why
    # It is the script that fails, and not the player: with the setting as it was, it passes.
    assert passes(text)


@pytest.mark.full
def test_lost_syns(tmp_path: Path) -> None:
    """The first ones are sent again each second: what Linux did before 6.5 fails."""
    path = tmp_path / "run.pm"
    text = script_of(path, record(path, SYNS))
    assert text.count(" > S 0:0(0) <...>") == 4
    assert passes(text)
    passed, why = try_play(text, {"net.ipv4.tcp_syn_linear_timeouts": "0"}, 1)
    assert not passed and "S 0:0(0)" in why


@pytest.mark.full
def test_a_part_of_a_connection_begins_in_its_midst(tmp_path: Path) -> None:
    path = tmp_path / "run.pm"
    ports = record(path, "loss")
    with Source(path) as source:
        found = read_connection(source, ports)
        at = find_event(found, "retransmit", source.location_codes())
    text = script_of(path, ports, Options(since_ns=at - 10_000_000, until_ns=at + 30_000_000))
    assert "It begins in the midst" in text and "initcwnd" in text
    assert text.count(" < ") < script_of(path, ports).count(" < ")
    assert "// sent again" in text
    assert passes(text)


@pytest.mark.full
def test_requests_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pm"
    ports = record(path, "requests")
    text = script_of(path, ports)
    out = tmp_path / "run.pkt"
    given = [str(path), "-p", ports, "-o", str(out)]
    done = CliRunner().invoke(command, given, standalone_mode=False)
    assert done.exception is None and done.return_value == 0 and out.read_text() == text
    with Source(path) as source:
        count = len(read_connection(source, ports).rows)
    for most, refused in ((count, False), (count - 1, True)):
        monkeypatch.setattr(walking, "MOST_SCRIPT_RECORDS", most)
        done = CliRunner().invoke(command, [*given, "--force"], standalone_mode=False)
        assert isinstance(done.exception, UsageError) == refused
    assert "read(3" in text and "write(3" in text
    assert passes(text)
    with pytest.raises(ScriptError, match="tcpi_snd_cwnd is 10 and not 11"):
        play(text.replace("tcpi_snd_cwnd == 10", "tcpi_snd_cwnd == 11"))


@pytest.mark.full
def test_a_server_that_only_receives(tmp_path: Path) -> None:
    """The end that acknowledges: of a capture of the lab's other namespace."""
    path = tmp_path / "run.pm"
    text = script_of(path, record(path, "requests", server=True))
    assert "accept(3" in text and "read(4" in text
    assert passes(text)
