# SPDX-License-Identifier: Apache-2.0
"""Writes lines by the best writer that there is here, several pages at the same time."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol, TypeVar

from formats.lines.cells import Plan, Rows
from formats.lines.native import NativeWriter, find_library
from formats.lines.plain import PlainWriter

_THREADS = min(os.cpu_count() or 1, 4)

Texts = Sequence["bytes | memoryview"]
Page = TypeVar("Page")
Worker = TypeVar("Worker", bound=Callable[[Any], Texts])


class Writer(Protocol):
    """Makes lines of rows; for one thread at a time."""

    def write(self, rows: Rows) -> Texts:
        """The lines of the rows, in pieces; they are valid until the next call."""


def make_writer(plans: Sequence[Plan]) -> Writer:
    """A writer of rows of these plans."""
    library = find_library()
    return PlainWriter(plans) if library is None else NativeWriter(plans, library)


def write_pages(
    pages: Iterable[Page],
    make_worker: Callable[[], Worker],
    out: BinaryIO,
    written: Callable[[Worker], None] | None = None,
) -> None:
    """Write the texts of pages in their order, made by several threads.

    make_worker gives what makes the text of a page. There are a few of them, each used again once
    its text is written: what it gave need not stay valid longer. `written` is called with it then,
    in the order of the pages.
    """
    idle = [make_worker() for _ in range(_THREADS + 1)]
    waiting: collections.deque[tuple[Worker, Future[Texts]]] = collections.deque()

    def write_first() -> None:
        worker, future = waiting.popleft()
        out.writelines(future.result())
        if written is not None:
            written(worker)
        idle.append(worker)

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for page in pages:
                if not idle:
                    write_first()
                worker = idle.pop()
                waiting.append((worker, pool.submit(worker, page)))
            while waiting:
                write_first()
        finally:
            for _, future in waiting:
                future.cancel()
