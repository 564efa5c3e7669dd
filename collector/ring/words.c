/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words that the kernel and this process share of a ring, in their order: for words.py. On
 * x86-64 these are plain loads and stores; arm64 shows in any other order what another CPU has
 * stored.
 */
#include <stdatomic.h>
#include <stdint.h>

#define VERSION 1
#define BUSY    (UINT32_C(1) << 31) /* BPF_RINGBUF_BUSY_BIT of linux/bpf.h */

#define EXPORT __attribute__((visibility("default")))

EXPORT int ring_version(void) {
    return VERSION;
}

/* What others stored before this word is visible afterwards. */
EXPORT uint64_t ring_load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

/* After all that was read before, and before all that is read afterwards. */
EXPORT void ring_store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Moves the position, in bytes, behind the committed records of a BPF ring: these are visible
 * afterwards. Returns whether it stops at a record that a program builds.
 */
EXPORT int ring_advance(const _Atomic uint64_t *producer, const unsigned char *rows, uint64_t size,
                        uint64_t row, uint64_t *position) {
    uint64_t end = ring_load(producer), at = *position;

    for (; at < end; at += row) {
        const _Atomic uint32_t *length = (const _Atomic uint32_t *)(rows + (at & (size - 1)));

        if (atomic_load_explicit(length, memory_order_relaxed) & BUSY)
            break;
    }
    atomic_thread_fence(memory_order_acquire);
    *position = at;
    return at < end;
}
