# SPDX-License-Identifier: Apache-2.0
"""collector/ring/drain.c under the sanitizers of addresses, undefined behaviour and threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "collector/ring/drain.c"
COUNT = 20_000
CASES = """
import sys
from pathlib import Path
from tcpkmon.collector.ring import library
library.PLACE = Path(sys.argv[1]) / "_drain"
from tests.unit.test_drain import run
run(int(sys.argv[2]))
"""
RACE = r"""
#include "SOURCE"
#include <pthread.h>
#include <stdio.h>
enum { ROW = 128, ENTRY = 64, SIZE = 1 << 12, COUNT = 50000 };
static _Atomic uint64_t producer, consumer;
static _Alignas(8) uint8_t rows[SIZE];

/* As the kernel: reserve a row, build it, commit it. Rows fill the memory: none crosses its end. */
static void *program(void *ignored) {
    uint64_t at = 0;
    for (uint32_t serial = 1; serial <= COUNT; serial++, at += ROW) {
        while (at + ROW - ring_load(&consumer) > SIZE / 2)
            ;
        uint8_t *row = rows + (at & (SIZE - 1));
        atomic_store_explicit((_Atomic uint32_t *)row, BUSY | ENTRY, memory_order_relaxed);
        atomic_store_explicit(&producer, at + ROW, memory_order_release);
        store32(row + 8, serial);
        store64(row + 8 + TIME_AT, 1000 + serial);
        store32(row + 8 + 16, 1 + serial % 20);
        atomic_store_explicit((_Atomic uint32_t *)row, ENTRY, memory_order_release);
    }
    return ignored;
}

int main(void) {
    struct order *order = order_new(ENTRY, -1, -1, -1);
    struct cpu *cpu = order_add(order, 0);
    struct place places[POINTS];
    static uint8_t entries[ENTRY * 2 * SIZE];
    static uint16_t cpus[2 * SIZE];
    pthread_t thread;
    int64_t made = 0, seq = 1;
    uint64_t at = 0;

    pthread_create(&thread, NULL, program, NULL);
    while (cpu->decided < COUNT) {
        uint64_t end = at;
        ring_advance(&producer, rows, SIZE, ROW, &end);
        for (; at < end; at += ROW)
            if (order_push(order, cpu, rows + (at & (SIZE - 1)) + 8, 1, ROW))
                return 2;
        struct piece piece = {entries, cpus, places, 2 * SIZE, seq, 0, 0, 0, 0};
        order_up_to(order, cpu->seen % 3 ? INT64_MAX : 1000 + cpu->seen - 2, 1 << 20);
        int64_t count = order_merge(order, &piece);
        if (count < 0 || order_settle(order))
            return 3;
        for (int64_t n = 0; n < count; n++)
            if (load32(entries + n * ENTRY) != (uint32_t)(seq + n))
                return 4;
        made += count;
        seq = piece.seq;
        ring_store(&consumer, at);
    }
    pthread_join(thread, NULL);
    order_free(order);
    printf("%ld\n", (long)made);
    return made != COUNT;
}
"""


def compile_c(source: Path, target: Path, *options: str) -> None:
    command = ("gcc", "-std=c11", "-O1", "-g", "-fno-sanitize-recover=all", *options)
    subprocess.run([*command, "-o", target, source], check=True)


def test_addresses_and_undefined_behaviour(tmp_path: Path) -> None:
    made = tmp_path / "_drain.so"
    compile_c(SOURCE, made, "-fsanitize=address,undefined", "-shared", "-fPIC")
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-c", CASES, str(tmp_path), str(COUNT)]
    done = subprocess.run(command, check=False, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_threads(tmp_path: Path) -> None:
    """A program commits records while they are read: none is seen before it is whole."""
    source = tmp_path / "race.c"
    source.write_text(RACE.replace("SOURCE", str(SOURCE)))
    compile_c(source, tmp_path / "race", "-fsanitize=thread", "-Wno-tsan", "-pthread")
    done = subprocess.run(
        [tmp_path / "race"], check=False, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "50000\n"), done.stderr[-4000:]
