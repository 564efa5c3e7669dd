# SPDX-License-Identifier: Apache-2.0
"""Calls a container runtime as kubelet does: CRI over gRPC, with messages made by hand.

A message is written as (number of the field, value) pairs; see api.proto of Kubernetes, runtime.v1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Message = list[tuple[int, Any]]
UID = "4b7d2c1e-8e1a-4c11-9d0e-52a4c7b1f0aa"
"""Of the tests' pod."""
NODE = 2
"""NamespaceMode: the node's own."""


def pack(message: Message) -> bytes:
    """A message of protobuf: its values are numbers, texts and messages."""
    out = bytearray()
    for number, value in message:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else pack(value)
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def first_text(data: bytes) -> str:
    """The answer's field 1, an id."""
    return data[2 : 2 + data[1]].decode() if data else ""


def caller(channel: Any) -> Callable[..., str]:
    """channel: of grpc. call(method, message, ...) returns the id that the runtime answers."""

    def call(method: str, *message: tuple[int, Any]) -> str:
        one = channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")
        return first_text(one(pack([*message]), timeout=240, wait_for_ready=True))

    return call


def sandbox(name: str, uid: str, space: str, parent: str) -> Message:
    """PodSandboxConfig: a pod in the node's network, with logs where kubelet has them."""
    options: Message = [(1, NODE), (2, 1), (3, 0)]
    return [
        (1, [(1, name), (2, uid), (3, space)]), (3, f"/var/log/pods/{space}_{name}_{uid}"),
        (8, [(1, parent), (2, [(1, options)])]),
    ]  # fmt: skip


def container(name: str, image: str, *command: str) -> Message:
    """ContainerConfig."""
    options: Message = [(1, NODE), (2, 1), (3, 0)]
    return [
        (1, [(1, name)]), (2, [(1, image)]), *((3, word) for word in command),
        (11, f"{name}/0.log"), (15, [(2, [(3, options)])]),
    ]  # fmt: skip
