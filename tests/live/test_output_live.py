# SPDX-License-Identifier: Apache-2.0
"""From the sequencer to a real, small disk: what does not fit is proven by the file itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.writer.output_file import Output
from tcpkmon.formats.base.control import EndReason
from tcpkmon.formats.base.errors import FileError
from tcpkmon.formats.verify import verify_file
from tests.live.faults import WAIT_S, small_disk
from tests.unit.makers import CPUS, Maker


@pytest.mark.parametrize("size", ["256k", "1m"])
def test_full_disk_is_proven_by_the_file(tmp_path: Path, size: str) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        path = disk / "out.pm"
        maker = Maker(path, rotates=False)
        for turn in range(60):
            maker.records(100, lose=turn % 2)
            maker.checkpoint()
        maker.close(EndReason.DURATION)
        report = verify_file(path)
        assert not report.problems, report.problems
        assert report.proven_end
        assert report.exit_code == 3
        assert report.totals.lost["disk full"] > 0
        assert report.totals.attempts == int(maker.serials.sum())
        assert report.totals.in_file + report.totals.lost["disk full"] == CPUS * 6000
        # The disk was used, but for the reserve.
        total = os.statvfs(disk)
        assert path.stat().st_size > 0.75 * total.f_blocks * total.f_frsize


def test_capture_goes_on_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcpkmon.collector.writer.appender.RETRY_NS", 0)
    with small_disk(tmp_path / "disk", "2m") as disk:
        maker = Maker(disk / "out.pm", rotates=False)
        filler = disk / "filler"
        room = os.statvfs(disk)
        filler.write_bytes(b"x" * (room.f_bavail * room.f_frsize - 100_000))
        for _ in range(10):
            maker.records(200)
        maker.stream._spool.put_call(filler.unlink)
        for _ in range(3):
            maker.records(200, lose=3)
        maker.close()
        report = verify_file(disk / "out.pm")
        assert not report.problems, report.problems
        assert report.exit_code == 3 and report.proven_end
        lost = report.totals.lost["disk full"]
        assert 0 < lost < CPUS * 2000
        assert report.totals.in_file == CPUS * 2600 - lost


def test_no_room_for_the_header_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        output = Output(disk / "out.pm")
        with pytest.raises(FileError, match="no room"):
            output.begin(b"h" * 100_000)
        assert os.listdir(disk) == []


def test_whole_capture_adds_up(tmp_path: Path) -> None:
    maker = Maker(tmp_path / "out.pm", rotates=False)
    for _ in range(20):
        maker.records(500)
        maker.checkpoint()
    maker.close()
    report = verify_file(tmp_path / "out.pm")
    assert not report.problems, report.problems
    assert report.exit_code == 0
    assert report.totals.in_file == 20_000


def test_killed_writer_leaves_a_file_that_opens(tmp_path: Path) -> None:
    """SIGKILL while writing: what stands there is whole, and the tail is said to be unknown."""
    path = tmp_path / "out.pm"
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.unit.makers import Maker\n"
        "maker = Maker(Path(sys.argv[1]), rotates=False)\n"
        "for turn in range(10**6):\n"
        "    maker.records(100)\n"
        "    maker.checkpoint()\n"
        "    if turn == 20:\n"
        "        maker.stream._spool.put_call(lambda: print('going', flush=True))\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=root, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"going\n"
        child.send_signal(signal.SIGKILL)
    report = verify_file(path)
    assert not report.problems, report.problems
    assert report.tail_unknown
    assert report.checkpoints > 5


def test_a_reader_without_permission_is_refused(tmp_path: Path) -> None:
    """Nobody but root may name a file in a folder that is root's."""
    tmp_path.chmod(0o755)
    code = (
        "import os, sys; sys.path.insert(0, '.')\n"
        "from tcpkmon.collector.writer.output_file import Output\n"
        "from tcpkmon.formats.base.errors import FileError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    Output('/proc/out')\n"
        "except FileError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    Output('/usr/out.pm')\n"
        "except FileError as error:\n"
        "    print(error)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no permission to write /usr/out.pm; choose another place with -o" in done.stdout
