# SPDX-License-Identifier: Apache-2.0
"""The child process that compiles, the only one that imports bcc: C text to bytecode and maps.

collector/loader/compiler.py runs `/usr/bin/python3 -I bcc_child.py` with BCC_KERNEL_SOURCE set.
stdin: JSON {"text", "functions", "flags"}. stdout: one JSON object, {"maps", "programs"} or
{"error": "bcc" | "compile" | "function" | "code", "detail"}. Clang writes to stderr. While BCC
compiles it makes the maps in the kernel; they end with this process. No program is loaded here.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import struct
import sys
from typing import Any

LD_IMM64 = 0x18
CALL = 0x85
PSEUDO_MAP_FD = 1
PSEUDO_CALL = 1
JUMPS = (0x05, 0x06)
EXIT = 0x95
STX_ATOMIC = 0xDB
MOV = 0xBF
ATOMIC_CALL = 0x6B6C6100
"""A call of this number and that of an atomic operation is one: bpf/include/klogger.h."""
COMPARE_EXCHANGE = 0xF1


class Refusal(Exception):
    """Why there is no image: the kind of error and its detail."""


def read_maps(lib: Any, module: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The maps that the text declares, sorted by name, and their names by file descriptor."""
    lib.bpf_num_tables.argtypes = [ctypes.c_void_p]
    lib.bpf_num_tables.restype = ctypes.c_size_t
    columns = {}
    for column, restype in {
        "name": ctypes.c_char_p,
        "fd_id": ctypes.c_int,
        "type_id": ctypes.c_int,
        "key_size_id": ctypes.c_size_t,
        "leaf_size_id": ctypes.c_size_t,
        "max_entries_id": ctypes.c_size_t,
        "flags_id": ctypes.c_int,
    }.items():
        columns[column] = getattr(lib, f"bpf_table_{column}")
        columns[column].argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        columns[column].restype = restype
    maps = []
    names: dict[int, str] = {}
    for number in range(lib.bpf_num_tables(module)):
        row = {column: read(module, number) for column, read in columns.items()}
        name = row["name"].decode()
        names[row["fd_id"]] = name
        maps.append(
            {
                "name": name,
                "type": row["type_id"],
                "key_size": row["key_size_id"],
                "value_size": row["leaf_size_id"],
                "max_entries": row["max_entries_id"],
                "flags": row["flags_id"],
            }
        )
    return sorted(maps, key=lambda spec: str(spec["name"])), names


def remove_maps(function: str, code: bytes, names: dict[int, str]) -> dict[str, Any]:
    """The code with 0 for map descriptors, and the instructions that need them with the maps."""
    cleaned = bytearray(code)
    references = []
    index = 0
    while index < len(code) // 8:
        operation, registers, _, immediate = struct.unpack_from("=BBhi", code, index * 8)
        source = registers >> 4
        if operation == CALL and source == PSEUDO_CALL:
            raise Refusal("code", f"{function} calls a function that is not inlined")
        if operation == LD_IMM64:
            if source == PSEUDO_MAP_FD and immediate in names:
                references.append((index, names[immediate]))
                struct.pack_into("=i", cleaned, index * 8 + 4, 0)
            elif source:
                raise Refusal("code", f"{function} uses a global variable or a foreign map")
            index += 1
        index += 1
    return {"code": base64.b64encode(cleaned).decode(), "maps": references}


def put_atomics(code: bytes) -> bytes:
    """The code with atomic instructions in place of the calls that are written before LLVM 12.

    r1 has the address, r2 a value; to compare, r2 the old value and r3 the new one. r0: the value
    that was there.
    """
    made: list[bytes] = []
    places = []
    old = [code[at : at + 8] for at in range(0, len(code), 8)]
    for one in old:
        places.append(len(made))
        operation, registers, _, immediate = struct.unpack("=BBhi", one)
        number = immediate - ATOMIC_CALL
        if operation != CALL or registers or not 0 < number < 0x100:
            made.append(one)
        elif number == COMPARE_EXCHANGE:
            made.append(struct.pack("=BBhi", MOV, 0x20, 0, 0))  # r0 = r2
            made.append(struct.pack("=BBhi", STX_ATOMIC, 0x31, 0, number))
        else:
            made.append(struct.pack("=BBhi", STX_ATOMIC, 0x21, 0, number))
            made.append(struct.pack("=BBhi", MOV, 0x20, 0, 0))
    for index, one in enumerate(old):
        operation, registers, offset, immediate = struct.unpack("=BBhi", one)
        if operation & 7 in JUMPS and operation not in {CALL, EXIT}:
            offset = places[index + 1 + offset] - places[index] - 1
            made[places[index]] = struct.pack("=BBhi", operation, registers, offset, immediate)
    return b"".join(made)


def build(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request, or Refusal."""
    try:
        from bcc.libbcc import lib
    except (ImportError, OSError) as error:
        raise Refusal("bcc", str(error)) from error
    # Not bcc.BPF: it compiles in the same way, but raises a bare Exception.
    # Nothing reads debug information; without it compiling is about a fifth faster. With -O1 it is
    # another fifth, but the verifier refuses what LLVM then makes of an array on the stack.
    flags = [b"-g0", *(str(flag).encode() for flag in request["flags"])]
    module = lib.bpf_module_create_c_from_string(
        request["text"].encode(), 0, (ctypes.c_char_p * len(flags))(*flags), len(flags), True, None
    )
    if not module:
        raise Refusal("compile", "")
    maps, names = read_maps(lib, module)
    programs = {}
    for function in request["functions"]:
        start = lib.bpf_function_start(module, function.encode())
        if not start:
            raise Refusal("function", function)
        code = ctypes.string_at(start, lib.bpf_function_size(module, function.encode()))
        programs[function] = remove_maps(function, put_atomics(code), names)
    return {"maps": maps, "programs": programs}


def main() -> None:
    """Answer the one request on stdin; what BCC prints goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    try:
        answer = build(request)
    except Refusal as refusal:
        answer = {"error": refusal.args[0], "detail": refusal.args[1]}
    with os.fdopen(answers, "w", encoding="utf-8") as out:
        json.dump(answer, out)
    sys.stdout.flush()
    sys.stderr.flush()
    # Without BCC's cleaning up, which is slower than the end of the process.
    os._exit(0)


if __name__ == "__main__":
    main()
