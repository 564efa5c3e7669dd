# SPDX-License-Identifier: Apache-2.0
"""From the sequencer to a real, small disk: what does not fit is proven by the file itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcpkmon.collector.writer.output_file import Output
from tcpkmon.formats.base.errors import FileError
from tests.live.faults import WAIT_S, small_disk


def test_no_room_for_the_header_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4k") as disk:
        output = Output(disk / "out.pm")
        with pytest.raises(FileError, match="no room"):
            output.begin(b"h" * 100_000)
        assert os.listdir(disk) == []


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
