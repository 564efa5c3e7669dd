# SPDX-License-Identifier: Apache-2.0
"""What is closed at the end of a `with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """Its close() is called at the end of a `with`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
