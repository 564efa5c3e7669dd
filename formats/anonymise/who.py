# SPDX-License-Identifier: Apache-2.0
"""Replaces what could name somebody: by a key, so that the same is replaced by the same.

Nobody can go back without the key. It is in no file; without --key it is forgotten.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.errors import FileError, UsageError
from tcpkmon.formats.base.installing import needed

# Crypto-PAn: a permutation of IP addresses that keeps how long a prefix two of them share.
#
# Each bit of an address is turned or not, by a bit of AES over the bits before it (Xu, Fan, Ammar
# and Moon, 2002). So two addresses that have the first n bits in common have them in common
# afterwards.
#
# Here, bits that lead to a special prefix are never turned. Then special addresses stay, no other
# one becomes such an address, and it is the same kind of permutation. What it costs: an address
# keeps the bits that it shares with a special prefix, and the one after them (its class, for most).

KEY_BYTES = 32
SPECIAL_4 = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32")
SPECIAL_6 = ("::/127", "fe80::/10", "ff00::/8")
MAPPED = b"\0" * 10 + b"\xff\xff"
"""With it begins an IPv4 address that stands as IPv6."""
_AT_ONCE = 1 << 12
"""Addresses that are computed at once: of IPv6 8 MiB."""


def encryptor(key: bytes) -> Any:
    """AES with this key, a block at a time. UsageError where `cryptography` is not installed."""
    with needed("tcpkmon anonymise needs cryptography, which", "cryptography"):
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()


class Addresses:
    """The permutation of one key of 32 bytes, as other programs have it: AES key, then padding.

    special: whether special addresses are permuted like others.
    """

    def __init__(self, key: bytes, special: bool = False) -> None:
        self._aes = encryptor(key[:16])
        self._pad = np.frombuffer(self._aes.update(key[16:32]), np.uint8)
        listed = {4: () if special else SPECIAL_4, 16: () if special else SPECIAL_6}
        self._fixed = {size: _leading(prefixes) for size, prefixes in listed.items()}

    def permute(self, addresses: Sequence[bytes]) -> list[bytes]:
        """Addresses of 4 or of 16 bytes each, in network order; v4-mapped ones as IPv4."""
        found: dict[bytes, bytes] = {}
        for size in (4, 16):
            wanted = {one: one for one in addresses if len(one) == size and one[:12] != MAPPED}
            if size == 4:
                wanted |= {one: one[12:] for one in addresses if one[:12] == MAPPED}
            keys = list(wanted)
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                done = self._permute(b"".join(wanted[one] for one in some), size)
                for number, one in enumerate(some):
                    new = done[number * size : (number + 1) * size]
                    found[one] = MAPPED + new if len(one) > size else new
        return [found.get(one, one) for one in addresses]

    def _permute(self, data: bytes, size: int) -> bytes:
        bits = 8 * size
        octets = np.frombuffer(data, np.uint8).reshape(-1, size)
        given = np.unpackbits(octets, axis=1)
        pad = np.unpackbits(self._pad)
        turned = np.empty_like(given)
        for low in range(0, bits, 32):  # 32 blocks an address at once
            blocks = np.broadcast_to(pad, (len(octets), 32, 128)).copy()
            for place in range(32):
                blocks[:, place, : low + place] = given[:, : low + place]
            sealed = self._aes.update(np.packbits(blocks, axis=2).tobytes())
            first = np.frombuffer(sealed, np.uint8).reshape(len(octets), 32, 16)[:, :, 0]
            turned[:, low : low + 32] = first >> 7
        self._keep_leading(octets, turned, size)
        return np.packbits(given ^ turned, axis=1).tobytes()

    def _keep_leading(self, octets: NDArray[Any], turned: NDArray[Any], size: int) -> None:
        """What leads to a special prefix, or is in one, is not turned."""
        given = np.unpackbits(octets, axis=1)
        for prefix, length in self._fixed[size]:
            same = np.cumprod(given[:, :length] == prefix[:length], axis=1).sum(axis=1)
            is_inside = same == length
            last = np.where(is_inside, 8 * size, same + 1)
            turned[np.arange(8 * size)[None, :] < last[:, None]] = 0


def _leading(prefixes: Iterable[str]) -> list[tuple[NDArray[Any], int]]:
    """The bits of each prefix, and how many they are."""
    found = []
    for text in prefixes:
        network = ipaddress.ip_network(text)
        octets = np.frombuffer(network.network_address.packed, np.uint8)
        found.append((np.unpackbits(octets), network.prefixlen))
    return found


_CACHED = 1 << 16
"""Values that are remembered: beyond that they are computed anew."""
_FIRST_PORT = 1024
_PREFIXES = {
    "hosts": "host", "names": "name", "commands": "command", "paths": "path", "notes": "note",
    "texts": "text", "cgroups": "cgroup", "devices": "dev", "kernel": "kernel",
}  # fmt: skip
_LETTERS = 10
_MADE = re.compile(r"(lo|(eth|ifb|wlan)\d{1,4})", re.ASCII)
"""Names of devices that the kernel gives."""
_ROUNDS = 8
_HINT = "head -c 32 /dev/urandom > KEY; chmod 600 KEY"


def read_key(path: Path | None) -> bytes:
    """The key in a file: 32 bytes, or 64 hex digits; a random one without. FileError, UsageError.
    """
    if path is None:
        return os.urandom(KEY_BYTES)
    try:
        with open(path, "rb") as file:
            data = file.read(4 * KEY_BYTES)
    except OSError as error:
        raise FileError(f"cannot read the key {path}: {error.strerror}", _HINT) from error
    if len(data) != KEY_BYTES:
        try:
            data = bytes.fromhex(data.decode("ascii"))
        except ValueError:
            data = b""
    if len(data) != KEY_BYTES:
        raise UsageError(f"{path} is no key: it has not {KEY_BYTES} bytes, or their hex", _HINT)
    return data


class Who:
    """Replaces the values of some kinds (see kinds.py), and leaves the others as they are."""

    def __init__(self, key: bytes, replaced: frozenset[str]) -> None:
        self.replaced = replaced
        self.unknown: list[str] = []
        """Keys within the setting that is replaced now which have no rule: they are left out."""
        self._key = hmac.digest(key, b"tcpkmon names", "sha256")
        self._addresses = Addresses(key, "special" in replaced)
        self._aes = encryptor(hmac.digest(key, b"tcpkmon numbers", "sha256"))
        self._cache: dict[tuple[Any, ...], Any] = {}

    def addresses(self, values: Sequence[bytes]) -> list[bytes]:
        """IP addresses of 4 or 16 bytes."""
        return self._addresses.permute(values) if "addresses" in self.replaced else list(values)

    def network(self, text: str) -> str:
        """An address or a network in words; what is none is a text."""
        if "addresses" not in self.replaced:
            return text
        try:
            network = ipaddress.ip_network(text.strip(), strict=False)
        except ValueError:
            return self.text("texts", text)
        (new,) = self._addresses.permute([network.network_address.packed])
        made = ipaddress.ip_network((new, network.prefixlen), strict=False)
        return str(made) if "/" in text else str(made.network_address)

    def text(self, kind: str, text: str) -> str:
        """A text of a kind."""
        if not text or kind not in self.replaced:
            return text
        if kind == "devices" and _MADE.fullmatch(text):
            return text
        data = text.encode("utf-8", "surrogateescape")
        made: str = self._remember(("text", kind, data), lambda: self._pseudonym(kind, data))
        return made

    def hidden(self, text: str) -> str:
        """A text, whatever is to be replaced: there is an address in it."""
        return self._pseudonym("texts", text.encode("utf-8", "surrogateescape"))

    def octets(self, kind: str, data: bytes, room: int) -> bytes:
        """A text in a field of so many bytes: up to its first NUL, whatever follows that."""
        data = data.split(b"\0", 1)[0]
        if not data or kind not in self.replaced:
            return data
        made: str = self._remember(("text", kind, data), lambda: self._pseudonym(kind, data))
        if room > len(made):
            return made.encode()
        return made.rpartition("-")[2].encode()[: max(room - 1, 1)]

    def _pseudonym(self, kind: str, data: bytes) -> str:
        # Not by the kind: a name is the same wherever it stands.
        digest = hmac.digest(self._key, data, "sha256")
        letters = base64.b32encode(digest).decode().lower()
        return f"{_PREFIXES.get(kind, 'text')}-{letters[:_LETTERS]}"

    def uuid(self, text: str) -> str:
        """An id such as that of a boot."""
        if not text or "hosts" not in self.replaced:
            return text
        made = hashlib.sha256(self._key + text.encode("utf-8", "surrogateescape")).hexdigest()
        return "-".join((made[:8], made[8:12], made[12:16], made[16:20], made[20:32]))

    def number(self, kind: str, value: int, bits: int) -> int:
        """A user, a cgroup or a port; those that are the same everywhere stay."""
        if kind not in self.replaced:
            return value
        if kind == "ports":
            return self.port(value)
        if value in (0, (1 << bits) - 1) or (kind == "cgroups" and value == 1):
            return value
        made: int = self._remember(("number", kind, bits, value), lambda: self._walk(
            bits, value, lambda new: new not in (0, 1, (1 << bits) - 1)))  # fmt: skip
        return made

    def port(self, value: int) -> int:
        """A port in host order."""
        if "ports" not in self.replaced or not _FIRST_PORT <= value < 1 << 16:
            return value
        made: int = self._remember(
            ("port", value), lambda: self._walk(16, value, lambda new: new >= _FIRST_PORT)
        )
        return made

    def ports(self, value: int) -> int:
        """Two ports in a number."""
        return self.port(value >> 16 & 0xFFFF) << 16 | self.port(value & 0xFFFF)

    def _walk(self, bits: int, value: int, is_good: Callable[[int], bool]) -> int:
        """A permutation of some numbers: one of all, as often as it leads to others."""
        value = self._permute(bits, value)
        while not is_good(value):
            value = self._permute(bits, value)
        return value

    def _permute(self, bits: int, value: int) -> int:
        """A Feistel network over AES."""
        half = bits // 2
        mask = (1 << half) - 1
        left, right = value >> half, value & mask
        for number in range(_ROUNDS):
            block = bytes([bits, number]) + right.to_bytes(14, "big")
            left, right = right, left ^ int.from_bytes(self._aes.update(block), "big") & mask
        return left << half | right

    def _remember(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[key] = make()
        return self._cache[key]
