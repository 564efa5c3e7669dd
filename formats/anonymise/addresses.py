# SPDX-License-Identifier: Apache-2.0
"""Crypto-PAn: a permutation of IP addresses that keeps how long a prefix two of them share.

Each bit of an address is turned or not, by a bit of AES over the bits before it (Xu, Fan, Ammar and
Moon, 2002). So two addresses that have the first n bits in common have them in common afterwards.

Here, bits that lead to a special prefix are never turned. Then special addresses stay, no other one
becomes such an address, and it is the same kind of permutation. What it costs: an address keeps the
bits that it shares with a special prefix, and the one after them (its class, for most).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpkmon.formats.base.installing import needed

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
