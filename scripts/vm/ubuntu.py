# SPDX-License-Identifier: Apache-2.0
"""Ubuntu's kernel of arm64 with pages of 64 kB: Debian has none. Its archive of 26.04 has arm64."""

from __future__ import annotations

import struct
from pathlib import Path

from scripts.vm.tools import Failure, run

ARCHIVE = "http://archive.ubuntu.com/ubuntu"
SUITE = "resolute"
KEYS = "ubuntu-keyring_2023.11.28.1_all.deb"
KEYS_SUM = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
"""As in scripts/userlands."""
KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
_SECTION = struct.Struct("<8s4I16x")


def write_sources(place: Path) -> None:
    """The list of sources in apt's folder `place`, and the keys that it names."""
    if not (place / KEYRING).exists():
        place.mkdir(parents=True, exist_ok=True)
        package = place / KEYS
        address = f"{ARCHIVE}/pool/main/u/ubuntu-keyring/{KEYS}"
        run("/usr/lib/apt/apt-helper", "download-file", address, str(package), f"SHA256:{KEYS_SUM}")
        run("dpkg-deb", "-x", str(package), str(place))
    lines = ("Types: deb", f"URIs: {ARCHIVE}", f"Suites: {SUITE}", "Components: main",
             f"Signed-By: {place / KEYRING}")  # fmt: skip
    sources_in(place).write_text("\n".join(lines) + "\n")


def sources_in(place: Path) -> Path:
    return place / "ubuntu.sources"


def unpack_image(image: Path) -> None:
    """Replaces a program of EFI by the kernel that is packed in it, which an emulator can boot.

    Its section .linux is another such program: the kernel, compressed (the format `zimg`).
    """
    content = image.read_bytes()
    if content[:2] != b"MZ":
        return
    for at in _sections(content):
        if content[at + 4 : at + 8] == b"zimg":
            start, size = struct.unpack_from("<II", content, at + 8)
            packed = image.with_name(f"{image.name}.zst")
            packed.write_bytes(content[at + start : at + start + size])
            run("zstd", "-dqf", "--rm", str(packed), "-o", str(image))
            return
    raise Failure(f"{image.name} has no kernel in it that is known here")


def _sections(content: bytes) -> list[int]:
    """Where the sections of a program of EFI begin, and 0 for the program itself."""
    (head,) = struct.unpack_from("<I", content, 0x3C)
    (count,) = struct.unpack_from("<H", content, head + 6)
    (optional,) = struct.unpack_from("<H", content, head + 20)
    rows = (
        _SECTION.unpack_from(content, head + 24 + optional + number * 40) for number in range(count)
    )
    return [0, *(start for name, _, _, _, start in rows if name.rstrip(b"\0") == b".linux")]
