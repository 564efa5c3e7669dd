# SPDX-License-Identifier: Apache-2.0
"""Uprobes: BPF programs at a function of a program or library, in all processes that run it.

The kernel runs such a program in the process itself, even inside itself: it misses none.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tcpkmon.collector.linux.bpf import PERF_EVENT_IOC_SET_BPF
from tcpkmon.collector.linux.places import Links
from tcpkmon.collector.linux.syscalls import (
    address,
    c_string,
    online_cpus,
    perf_attributes,
    perf_event_open,
    refused,
)
from tcpkmon.collector.linux.trusted_files import open_trusted
from tcpkmon.formats.base.errors import FileError, KernelError, PrivilegeError, TcpkmonError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

PMU = Path("/sys/bus/event_source/devices/uprobe")
_MOST_SYMBOLS = 1 << 20


def expect_function(target: str) -> str:
    """What was expected instead of this target, or ''."""
    path, _, symbol = target.rpartition(":")
    if path.startswith("/") and ".." not in Path(path).parts and symbol:
        return ""
    return "a file's whole path and a function, such as /lib/libc.so.6:malloc"


def find_offset(file: int, symbol: str) -> int:
    """Where in an ELF file (a descriptor) a function's code begins; KernelError."""
    # The import takes 50 ms, and few schemata need it.
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with os.fdopen(os.dup(file), "rb") as stream:
        try:
            elf = ELFFile(stream)
            found = {value for name, value in _functions(elf) if name == symbol}
            segments = [s for s in elf.iter_segments() if s["p_type"] == "PT_LOAD"]
        except (ELFError, ValueError, KeyError, IndexError, AssertionError, struct.error) as error:
            raise KernelError(f"it is no whole ELF file: {error}") from error
    if len(found) != 1:
        raise KernelError(f"it has {len(found) or 'no'} functions {symbol}")
    (value,) = found
    for segment in segments:
        if 0 <= value - segment["p_vaddr"] < segment["p_filesz"]:
            return int(value - segment["p_vaddr"] + segment["p_offset"])
    raise KernelError(f"the code of {symbol} is not in it")


def _functions(elf: ELFFile) -> list[tuple[str, int]]:
    from elftools.elf.sections import SymbolTableSection

    tables = [s for s in elf.iter_sections() if isinstance(s, SymbolTableSection)]
    if sum(table.num_symbols() for table in tables) > _MOST_SYMBOLS:
        raise KernelError(f"it has more than {_MOST_SYMBOLS} symbols")
    return [
        (symbol.name, symbol["st_value"])
        for table in tables
        for symbol in table.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
    ]


class Uprobe(Links):
    """A perf event for each program. The kernel finds new processes by itself.

    The file, and each folder above it, may be changed by root alone: the kernel writes
    a breakpoint where the file says that the function is.
    """

    def __init__(self, target: str, programs: Sequence[int], at_return: bool = False) -> None:
        super().__init__([])
        path, _, symbol = target.rpartition(":")
        try:
            file = open_trusted(Path(os.path.realpath(path)))
        except (FileError, PrivilegeError) as error:
            raise KernelError(error.message) from error
        try:
            offset = find_offset(file, symbol)
            for program in programs:
                self.fds.append(_open(file, offset, at_return))
                fcntl.ioctl(self.fds[-1], PERF_EVENT_IOC_SET_BPF, program)
        except TcpkmonError as error:
            self.remove()
            raise KernelError(f"{path}: {error.message}") from error
        except OSError as error:
            self.remove()
            raise refused(error, f"probing {symbol} of {path}") from error
        finally:
            os.close(file)


def _open(file: int, offset: int, at_return: bool) -> int:
    try:
        number = int((PMU / "type").read_text())
        bit = int((PMU / "format/retprobe").read_text().partition(":")[2])
    except (OSError, ValueError) as error:
        raise KernelError("this kernel has no uprobes (CONFIG_UPROBE_EVENTS)") from error
    path = c_string(f"/proc/self/fd/{file}")
    attributes = perf_attributes(number, at_return << bit, config1=address(path), config2=offset)
    # The kernel runs the program on every CPU, whichever CPU is named here.
    return perf_event_open(attributes, online_cpus()[0])


attach_uretprobe = partial(Uprobe, at_return=True)
