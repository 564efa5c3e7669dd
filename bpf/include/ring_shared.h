/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ring transport `shared`: rows of memory that the collector maps and reads in place.
 * collector/ring/shared_ring.py is the collector's side, and has a drawing. The generated text
 * defines KLOGGER_ROW_SIZE, KLOGGER_PARTS and KLOGGER_PART_SHIFT.
 *
 *     position p -> row r = p % rows
 *                   | part: r >> KLOGGER_PART_SHIFT | row in the part: the lower bits |
 *     part n of CPU c is the array klogger_rings[c * KLOGGER_PARTS + n]
 */
#define KLOGGER_TRIES 4

/* The head of a CPU's ring. */
struct klogger_ring {
    u64 reserved; /* positions that programs have reserved */
    u64 limit;    /* of the collector: the first position that is not free; 0: there is no ring */
    u64 rows;
    u64 wake_at; /* a wake-up is due when so many positions are reserved */
    u64 full;    /* records that found no room */
    u64 unused[3];
};

struct klogger_row {
    u8 bytes[KLOGGER_ROW_SIZE];
};

/* An entry in it wakes the collector. It contains no records. */
BPF_PERF_OUTPUT(klogger_wakeups);

/* The collector makes these two maps: the heads, which it maps, and an array of arrays of rows. All
 * those arrays have one size, so that a lookup needs no call.
 */
BPF_ARRAY(klogger_heads, struct klogger_ring, 1);
BPF_ARRAY(klogger_rings, struct klogger_row, 1);

/* bpf_map_lookup_elem(): BCC has it only for maps with a name. */
static void *(*klogger_find_row)(void *rows, const u32 *index) = (void *)1;

static __always_inline u8 *klogger_reserve(struct klogger_cpu *cpu, const u32 row,
                                           struct klogger_place *place) {
    struct klogger_account *account = &cpu->accounts[row];
    u32 number = bpf_get_smp_processor_id(), index;
    struct klogger_ring *ring = klogger_heads.lookup(&number);
    u64 position, limit, at;
    void *rows;

    if (!ring)
        return 0;
        /* Another try follows only where an interrupt has reserved this position. */
#pragma unroll
    for (int i = 0; i < KLOGGER_TRIES; i++) {
        position = *(volatile u64 *)&ring->reserved;
        limit = *(volatile u64 *)&ring->limit;
        if (position >= limit) {
            if (limit) {
                klogger_count(account->ring_full);
                klogger_count(ring->full);
            } else {
                klogger_count(account->no_ring);
            }
            klogger_number(cpu);
            return 0;
        }
        if (__sync_val_compare_and_swap(&ring->reserved, position, position + 1) == position)
            goto reserved;
    }
    klogger_count(account->other);
    klogger_number(cpu);
    return 0;
reserved:
    at = position % *(volatile u64 *)&ring->rows;
    index = number * KLOGGER_PARTS + (at >> KLOGGER_PART_SHIFT);
    rows = klogger_rings.lookup(&index);
    if (!rows) {
        /* The collector has retired the ring, and could not wait for this program. */
        klogger_count(account->no_ring);
        klogger_number(cpu);
        return 0;
    }
    index = at & ((1 << KLOGGER_PART_SHIFT) - 1);
    place->ring = ring;
    place->position = position;
    place->row = klogger_find_row(rows, &index);
    return place->row;
}

static __always_inline void klogger_commit(void *ctx, struct klogger_account *account,
                                           struct klogger_place *place) {
    u64 mark = place->position + 1;

#if defined(__TARGET_ARCH_arm64)
    /* An exchange is ordered after the stores before it. */
    __sync_lock_test_and_set((u64 *)(place->row + KLOGGER_ROW_SIZE - 8), mark);
#else
    asm volatile("" ::: "memory");
    *(volatile u64 *)(place->row + KLOGGER_ROW_SIZE - 8) = mark;
#endif
    klogger_count(account->written);
    if (mark == *(volatile u64 *)&place->ring->wake_at)
        klogger_wakeups.perf_submit(ctx, &mark, sizeof(mark));
}
