# SPDX-License-Identifier: Apache-2.0
"""Writes pages with several threads."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar

_THREADS = min(os.cpu_count() or 1, 4)

Texts = Sequence["bytes | memoryview"]
Page = TypeVar("Page")
Worker = TypeVar("Worker", bound=Callable[[Any], Texts])


def write_pages(
    pages: Iterable[Page],
    make_worker: Callable[[], Worker],
    out: BinaryIO,
    written: Callable[[Worker], None] | None = None,
) -> None:
    """Write the texts of pages in their order; several threads make the texts.

    make_worker returns a function from a page to its text. A few of them are made and used again
    and again: a text must be valid until it is written. Then `written` is called with its worker,
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
