# SPDX-License-Identifier: Apache-2.0
"""docs/gallery.md: each picture with its command line, drawn from captures that are made here."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
from PIL import Image
from selenium import webdriver

from tcpkmon.collector.capturing import start
from tcpkmon.collector.lab.lab import DEVICE, Bottleneck, Lab

ROOT = Path(__file__).resolve().parents[1]
_SERVER = ("import socket\ns = socket.create_server(('', 5201))\nprint('ready', flush=True)\n"
           "c = s.accept()[0]\nwhile c.recv(1 << 16): pass\n")  # fmt: skip
_CLIENT = ("import socket, time\nc = socket.create_connection(('10.77.0.2', 5201))\n"
           "end = time.monotonic() + 4\n"
           "while time.monotonic() < end: c.sendall(bytes(1 << 15))\nc.close()\n")  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """name: of the file in docs/images. command: of pmgraph, without -o. part: of a page."""

    name: str
    title: str
    command: str
    text: str
    part: str = ""


PICTURES = (
    Picture("sequence", "A first loss, segment by segment",
            "pmgraph cubic.pm --sequence --around retransmit --size 1200x1500",
            "cubic's window falls while SACK tells what is missing. "
            "Red marks are segments that were sent again, and no packet capture has the dashed "
            "edge of the congestion window."),
    Picture("sequence-bbr", "bbr through the same bottleneck",
            "pmgraph bbr.pm --sequence",
            "The strip says what limited each moment. The round-trip time shows how much of it "
            "is the queue that bbr leaves."),
    Picture("sequence-both", "cubic and bbr in one picture",
            "pmgraph cubic.pm bbr.pm --show snd_cwnd,srtt_us",
            "Both runs begin at 0, though they were made one after the other. bbr keeps "
            "the queue short, which cubic fills until a segment is lost."),
    Picture("report", "A page to send", "tcpkmon report cubic.pm -o report.html",
            "Verdicts, proof, a table to sort and search, and graphs that zoom together. It opens "
            "without network, from a mail too ([report](report.md))."),
    Picture("report-host", "The host beside a connection",
            "tcpkmon report host/ -o report.html",
            "The graphs of a log of the schemata tcp, sched, disk and paging. What ran on each "
            "CPU, the requests of the disk and the page-ins are on the connection's axis of time.",
            "graphs"),
)  # fmt: skip
MADE_BEFORE = (
    ("demo", "Congestion windows of three algorithms", "tcpkmon demo",
     "Concurrent reno, cubic and bbr transfers share a bottleneck. Markers are retransmissions "
     "and changes of the congestion state."),
    ("diff", "Before and after", "tcpkmon diff before.pm after.pm -o diff.png",
     "Distributions of two captures and their courses over time. [diff](diff.md) says which "
     "differences are more than chance."),
    ("latency", "Where the time of a write goes", "tcpkmon latency",
     "A waterfall of the parts from the write to the ACK, and the parts over time. "
     "[latency](latency.md) explains each part."),
)  # fmt: skip
_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by scripts/gallery; do not edit. -->
# Gallery

The captures of the first five are made by `sudo scripts/gallery`: one transfer of 4 s each, of
cubic and of bbr, through the lab's bottleneck of 20 Mbit/s with 0.1 % loss.
`-o FILE.png` writes a picture; that of the page is a browser's (`chromium`).
"""


def capture(folder: Path, congestion: str, *schemata: str) -> None:
    """A transfer from a to b, recorded in a; with schemata, as a log with the host."""
    line = Bottleneck(rate_mbit=20, queue_bytes=100_000, loss_percent=0.1)
    with Lab(line) as lab:
        lab.a.command(["ip", "route", "replace", "10.77.0.2/32", "dev", DEVICE,
                       "congctl", congestion])  # fmt: skip
        server = lab.b.start([sys.executable, "-I", "-c", _SERVER], stdout=subprocess.PIPE)
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        options = ["--format", "psc", "--netns", lab.a.name, "--quiet",
                   "--columns", "default,ca_name"]  # fmt: skip
        output = folder / (f"{congestion}.pm" if not schemata else "host")
        with start(["tcp", *schemata], output, force=True, buffer_mb=32,
                   options=options if not schemata else options[2:5]):
            lab.a.start([sys.executable, "-I", "-c", _CLIENT]).wait(60)
            server.wait(60)
        server.stdout.close()


def photograph(page: str, target: str, part: str) -> None:
    """What a browser shows of a page, or of its element with this id, in a file."""
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu",
                 f"--window-size=1100,{2600 if part else 1390}"):  # fmt: skip
        options.add_argument(word)
    driver = shutil.which("chromedriver")
    browser = webdriver.Chrome(options, service=webdriver.ChromeService(driver))
    browser.get(f"file://{page}")
    if part:
        browser.find_element("id", part).screenshot(target)
    else:
        browser.save_screenshot(target)
    browser.quit()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Make docs/gallery.md and its pictures, from transfers through a bottleneck."""
    images = ROOT / "docs" / "images"
    parts = [_HEAD]
    with tempfile.TemporaryDirectory() as name:
        for congestion in ("cubic", "bbr"):
            capture(Path(name), congestion)
        capture(Path(name), "cubic", "sched", "disk", "paging")
        for one in PICTURES:
            program, *words = one.command.split()
            target = str(images / f"{one.name}.png")
            output = target if "-o" not in words else str(Path(name, "report.html"))
            done = subprocess.run([Path(sys.executable).with_name(program), *words, "-o", output,
                                   "--force"], check=False, cwd=name)  # fmt: skip
            assert done.returncode in (0, 3), one.command  # 3: a busy machine lost records
            if output != target:
                photograph(output, target, one.part)
            with Image.open(target) as drawn:  # few colours: a third of the bytes
                few = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
            few.save(target, optimize=True)
    told = [(one.name, one.title, one.command, one.text) for one in PICTURES]
    for image, title, command, text in (*told, *MADE_BEFORE):
        lines = text.replace(". ", ".\n")
        parts.append(f"\n## {title}\n\n    {command}\n\n{lines}\n\n"
                     f"![{title}](images/{image}.png)\n")  # fmt: skip
    (ROOT / "docs" / "gallery.md").write_text("".join(parts))
