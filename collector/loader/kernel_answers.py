# SPDX-License-Identifier: Apache-2.0
"""What a capture asks of the running kernel's BTF, and the answers that are known since the boot.

Reading all types takes 0.1 s and 40 MB. A start that asks what an earlier one asked needs no types:
the answers are in the folder of the compiled images (collector/loader/image_cache.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tcpkmon.collector.linux import btf, btf_raw
from tcpkmon.collector.linux.btf import Btf, Kind
from tcpkmon.collector.linux.kallsyms import Kallsyms
from tcpkmon.collector.loader.image_cache import PrivateFolder, cache_folder
from tcpkmon.collector.plan import kernel_types

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SUFFIX = ".tcpkmon-answers"
_KEPT = 4
_CODE = tuple(Path(str(code.__file__)) for code in (btf, btf_raw, kernel_types))


class KernelAnswers(Btf):
    """The running kernel's types, which are read at the first question without a known answer.

    find(), has_member(), struct_bytes(), args() and address_of() remember; save() keeps what they
    found. KernelError where the types are needed and cannot be read.
    """

    def __init__(self) -> None:
        # Not Blob's: that reads the types.
        self._folder = PrivateFolder(cache_folder(), SUFFIX, _KEPT)
        self._about = b"".join([btf.bbr_types(), *(path.read_bytes() for path in _CODE)])
        self.key = hashlib.sha256(boot_id() + self._about).hexdigest()
        """Of this boot, the module of BBR, and the code that reads types and writes them as C."""
        self._answers: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._answers = dict(json.loads(self._folder.read(self.key)))
        self._saved = len(self._answers)

    @property
    def types_key(self) -> str:
        """As `key`, but of the kernel's types in place of the boot: for what has no address in it.
        So what was compiled serves the next boot too."""
        made = hashlib.sha256(self._about)
        try:
            with btf.KERNEL_BTF.open("rb") as file:
                while piece := file.read(1 << 20):
                    made.update(piece)
        except OSError:
            return self.key
        return made.hexdigest()

    def __getattr__(self, name: str) -> Any:
        """An attribute of Btf: reads the types, once."""
        if "_words" in self.__dict__:
            raise AttributeError(name)
        self.__dict__.update(vars(Btf.from_kernel()))
        return getattr(self, name)

    def _remember(self, question: str, ask: Callable[[], Any]) -> Any:
        if question not in self._answers:
            self._answers[question] = ask()
        return self._answers[question]

    def find(self, kind: Kind, name: str) -> int | None:
        question = f"{kind.name} {name}"
        found: int | None = self._remember(question, partial(super().find, kind, name))
        return found

    def has_member(self, struct_name: str, path: str) -> bool:
        ask = partial(super().has_member, struct_name, path)
        return bool(self._remember(f"member {struct_name}.{path}", ask))

    def struct_bytes(self, name: str) -> int:
        return int(self._remember(f"size {name}", partial(super().struct_bytes, name)))

    def args(self, type_id: int) -> list[tuple[str, int]]:
        found = self._remember(f"args {type_id}", partial(super().args, type_id))
        return [(name, at) for name, at in found]

    def names_of(self, enum: str) -> dict[str, int]:
        """The constants of an enum; none where the kernel lacks it."""

        def ask() -> dict[str, int]:
            found = self.find(Kind.ENUM, enum)
            return {} if found is None else self.enumerators(found)

        return dict(self._remember(f"constants {enum}", ask))

    def address_of(self, function: str) -> int:
        """The function's address; 0 where the kernel has none of the name, or hides it."""
        question = f"address {function}"
        if question not in self._answers:
            found = Kallsyms().functions(function)
            # A hidden address is 0, and may be shown later.
            if not found or not found[0]:
                return 0
            self._answers[question] = found[0]
        return int(self._answers[question])

    def code_of(self, function: str) -> tuple[int, int]:
        """The function's address and its bytes; zeros where the kernel has none, or hides it."""
        address = self.address_of(function)
        if not address:
            return 0, 0
        ask = partial(Kallsyms().bytes_of, address)
        return address, int(self._remember(f"bytes {function}", ask))

    def save(self) -> None:
        """Keeps the answers for later starts. A folder that cannot be used is ignored."""
        if len(self._answers) == self._saved:
            return
        with contextlib.suppress(OSError):
            self._folder.write(self.key, json.dumps(self._answers).encode())
            self._saved = len(self._answers)


def boot_id() -> bytes:
    """What no other boot has; without an id, no other process either."""
    try:
        return BOOT_ID.read_bytes()
    except OSError:
        return os.urandom(16)
