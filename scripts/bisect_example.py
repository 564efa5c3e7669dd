# SPDX-License-Identifier: Apache-2.0
"""Two plans of tcpkmon bisect whose answer is known, for docs/bisect.md: bursts with pauses over
80 ms over a sysctl, with a picture; lost SYNs over kernels, in guests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import click

from scripts.experiments.machine import here
from scripts.experiments.report import write_part
from tcpkmon.formats.base.errors import TcpkmonError

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs" / "bisect.md", ROOT / "docs" / "images" / "bisect.png"
TCPKMON = Path(sys.executable).parent / "tcpkmon"
SETTING = "net.ipv4.tcp_slow_start_after_idle=0,1"
PATH = "delay_ms=40,rate_mbit=100"
PROGRAMS = {
    "serve.py": """import socket
listener = socket.create_server(("", 5201))
while True:
    end, _ = listener.accept()
    got = 0
    while some := len(end.recv(1 << 16)):
        got += some
        if got % 400_000 == 0:
            end.send(b"!")
    end.close()
""",
    "send.py": """import os, socket
end = socket.create_connection((os.environ["TCPKMON_PEER"], 5201))
end.sendall(bytes(10_000))
end.shutdown(socket.SHUT_WR)
end.recv(1)
""",
    "bursts.py": """import os, socket, time
end = socket.socket()
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
end.connect((os.environ["TCPKMON_PEER"], 5201))
for pause in (1, 1, 0):
    end.sendall(bytes(400_000))
    end.recv(1)
    time.sleep(pause)
""",
}


SYSCTL = ["--over", "sysctl", SETTING, "--path", PATH, "--peer", "python3 serve.py", "-o", "runs",
          "--", "python3", "bursts.py"]  # fmt: skip
KERNELS = ["--over", "kernels", "6.1", "6.12", "newest", "--runs", "4", "--alpha", "0.05",
           "--metrics", "duration_us", "--path", "delay_ms=10,syn_loss=3", "--peer",
           "python3 serve.py", "-o", "kernels", "--", "python3", "send.py"]  # fmt: skip
"""The command's words, as the page has them; the programs are in the current folder."""


def bisect(folder: Path, words: list[str]) -> str:
    """What the command said, with the machine, for the page. TcpkmonError where it fails."""
    done = subprocess.run(
        [TCPKMON, "bisect", *words], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    click.echo(done.stdout)
    if done.returncode:
        raise TcpkmonError(f"tcpkmon bisect ended with {done.returncode}")
    shown = " ".join(f"'{word}'" if " " in word else word for word in words)
    machine = "Linux {kernel}, {cpu}".format(**here())
    load = f"load {os.getloadavg()[0]:.0f} of {os.cpu_count()} CPUs"
    said = (line for line in done.stdout.splitlines() if not line.startswith("setup: "))
    lines = (f"# tcpkmon bisect {shown}", *said)
    wrapped = (textwrap.wrap(line, 114, subsequent_indent="    ", break_on_hyphens=False)
               for line in lines)  # fmt: skip
    return f"{machine}, {load}:\n\n" + "\n".join(
        f"    {part}" for parts in wrapped for part in parts
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--docs", is_flag=True, help="Write the part of docs/bisect.md, and its picture.")
@click.option("--kernels", is_flag=True,
              help="The plan over kernels alone, in emulated guests: half an hour.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Work here, and keep the captures.")
def command(docs: bool, kernels: bool, keep: Path | None) -> int:
    """Bisect the sysctl, and draw the two sides; or bisect kernels."""
    with tempfile.TemporaryDirectory() as made:
        folder = (keep or Path(made)).resolve()
        folder.mkdir(exist_ok=True)
        for name, text in PROGRAMS.items():
            (folder / name).write_text(text)
        told = bisect(folder, KERNELS if kernels else SYSCTL)
        if not kernels:
            sides = sorted(str(path) for path in (folder / "runs").iterdir())
            picture = PICTURE if docs else folder / PICTURE.name
            subprocess.run([TCPKMON, "diff", *(f"{side.rpartition('idle=')[2]}={side}" for side in
                                               sides), "-o", picture, "--force"],
                           check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    if docs:
        write_part(PAGE, "bisect-kernels" if kernels else "bisect-example", told)
    return 0
