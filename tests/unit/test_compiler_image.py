# SPDX-License-Identifier: Apache-2.0
"""Images as text, and what is done with the code of an image before it is loaded."""

from __future__ import annotations

import json
import struct

import pytest

from tcpkmon.collector.loader import compiler
from tcpkmon.collector.loader.bcc_child import put_atomics
from tcpkmon.collector.loader.bytecode import (
    COPY_MARK,
    TO_TCP_SOCK,
    TYPE_MARK,
    Cast,
    cast_freely,
    fill_maps,
    second_copy,
)
from tcpkmon.collector.loader.compiler import Code, Image, MapSpec

COUNTS = MapSpec("counts", 2, 4, 8, 16, 0)
EVENTS = MapSpec("events", 4, 4, 4, 2, 0)
RETURN = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)


def load_constant(register: int, value: int, source: int = 0) -> bytes:
    low, high = value & 0xFFFFFFFF, value >> 32
    return struct.pack("=BBhIBBhI", 0x18, source << 4 | register, 0, low, 0, 0, 0, high)


@pytest.fixture
def image() -> Image:
    code = load_constant(1, 0, source=1) + RETURN + load_constant(2, 0, source=1)
    return Image((COUNTS, EVENTS), {"probe": Code(code, ((0, "counts"), (4, "events")))})


def test_an_image_survives_its_text_form(image: Image) -> None:
    assert Image.from_json(image.to_json()) == image


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("tcpkmon-image-1", "tcpkmon-image-0"),
        lambda text: text.replace('"counts"]', '"elsewhere"]'),
        lambda text: text.replace('[0, "counts"]', '[99, "counts"]'),
        lambda text: text.replace('"code": "', '"code": "?'),
        lambda text: text.replace('"code": "', '"code": "AAAA'),
        lambda text: text.replace('"key_size": 4', '"key_size": "many"'),
        lambda text: text.replace('"key_size"', '"keysize"'),
        lambda text: json.dumps([json.loads(text)]),
        lambda text: "null",
    ],
)
def test_a_damaged_image_is_a_value_error(image: Image, damage: object) -> None:
    assert callable(damage)
    text = damage(image.to_json())
    assert text != image.to_json()
    with pytest.raises(ValueError):
        Image.from_json(text)


def test_map_descriptors_go_where_the_references_are(image: Image) -> None:
    filled = fill_maps(image.programs["probe"], {"counts": 7, "events": 9})
    assert struct.unpack_from("=i", filled, 4) == (7,)
    assert struct.unpack_from("=i", filled, 4 * 8 + 4) == (9,)
    assert filled[16:32] == RETURN


def test_the_second_copy_differs_in_the_first_mark_only() -> None:
    code = load_constant(3, 5) + load_constant(1, COPY_MARK) + load_constant(1, COPY_MARK) + RETURN
    expected = load_constant(3, 5) + load_constant(1, 0) + load_constant(1, COPY_MARK) + RETURN
    assert second_copy(code) == expected


def test_code_without_the_mark_has_no_second_copy() -> None:
    assert second_copy(load_constant(1, COPY_MARK + 1) + RETURN) is None
    # The second half of a wide load may look like an instruction; it is none.
    assert second_copy(load_constant(1, 0x18 << 32) + RETURN) is None


def instruction(operation: int, registers: int, immediate: int) -> bytes:
    return struct.pack("=BBhi", operation, registers, 0, immediate)


ADD, EXCHANGE, COMPARE = (instruction(0x85, 0, 0x6B6C6100 + n) for n in (0x01, 0xE1, 0xF1))


def jump(offset: int, operation: int = 0x05) -> bytes:
    return struct.pack("=BBhi", operation, 0, offset, 0)


def test_atomics_take_the_place_of_calls() -> None:
    """Two instructions each: jumps over them are longer, also those back."""
    result = instruction(0xBF, 0x20, 0)
    assert put_atomics(
        jump(3, 0x15) + load_constant(1, 0x6B6C610100000085) + ADD + EXCHANGE + COMPARE
        + jump(-2, 0x1E) + jump(-7) + instruction(0x85, 0, 5) + RETURN
    ) == (
        jump(4, 0x15) + load_constant(1, 0x6B6C610100000085)
        + instruction(0xDB, 0x21, 0x01) + result
        + instruction(0xDB, 0x21, 0xE1) + result
        + result + instruction(0xDB, 0x31, 0xF1)
        + jump(-3, 0x1E) + jump(-10) + instruction(0x85, 0, 5) + RETURN
    )  # fmt: skip
    assert put_atomics(HELPER + RETURN) == HELPER + RETURN


TYPE = instruction(0xB7, 2, TYPE_MARK)
HELPER = instruction(0x85, 0, TO_TCP_SOCK)


def test_casts_take_the_place_of_the_helper() -> None:
    code = load_constant(1, TYPE_MARK) + TYPE + HELPER + instruction(0x85, 0, 5) + RETURN
    expected = (
        load_constant(1, TYPE_MARK)
        + instruction(0xB7, 2, 77)
        + instruction(0x85, 0x20, 99)
        + instruction(0x85, 0, 5)
        + RETURN
    )
    assert cast_freely(code, Cast(function=99, socket=77)) == expected


@pytest.mark.parametrize("code", [HELPER + RETURN, TYPE + HELPER + HELPER + RETURN, RETURN])
def test_helpers_without_a_type_stay(code: bytes) -> None:
    assert cast_freely(code, Cast(99, 77)) == code


@pytest.mark.parametrize("kind", ["u8[136]' (aka 'unsigned char[136]", "unsigned char[136]"])
def test_a_type_that_is_only_bytes_is_explained(kind: str) -> None:
    said = f"own.c:7:9: error: member reference base type '{kind}' is not a structure or union\n"
    error = compiler._error_of("compile", "", said, user_schema=True)
    assert error.lines()[-1].startswith("a type inside another is only bytes until the schema")
