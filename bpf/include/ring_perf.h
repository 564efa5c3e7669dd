/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ring transport `perf`: the ring buffer of a perf event, one for each CPU. A program builds a
 * record in a slot of its CPU's memory, and the kernel copies it into the ring.
 * collector/ring/perf_ring.py is the other side.
 */
#define KLOGGER_ENOENT 2
#define KLOGGER_ENOSPC 28

/* The head of a CPU's ring. While begun and done differ, a program has reserved a record that is
 * not in the ring yet.
 */
struct klogger_ring {
    u64 begun; /* records: by programs */
    u64 done;
    u64 full; /* records that found no room */
    u64 unused[5];
};

/* A count that the collector compares with others, so other CPUs must see it in its order: an
 * atomic operation whose result is used is a full barrier, on arm64 too.
 */
static __always_inline void klogger_count_in_order(u64 *counter) {
    u64 before = __sync_fetch_and_add(counter, 1);

    asm volatile("" : : "r"(before));
}

BPF_PERF_OUTPUT(klogger_records);
/* The collector makes this one, to map it. */
BPF_ARRAY(klogger_heads, struct klogger_ring, 1);

static __always_inline u8 *klogger_reserve(struct klogger_cpu *cpu, const u32 row,
                                           struct klogger_place *place) {
    u32 number = bpf_get_smp_processor_id();
    struct klogger_ring *head = klogger_heads.lookup(&number);
    struct klogger_slot *slot = head ? klogger_acquire_slot(cpu) : 0;

    if (!slot) {
        klogger_count(cpu->accounts[row].no_slot);
        return 0;
    }
    klogger_count_in_order(&head->begun);
    place->ring = head;
    place->row = slot->record;
    return place->row;
}

static __always_inline void klogger_commit(void *ctx, struct klogger_account *account,
                                           struct klogger_place *place) {
    int error = klogger_records.perf_submit(ctx, place->row, KLOGGER_RECORD_SIZE);

    if (!error) {
        klogger_count(account->written);
    } else if (error == -KLOGGER_ENOSPC) {
        klogger_count(account->ring_full);
        klogger_count(place->ring->full);
    } else if (error == -KLOGGER_ENOENT) {
        klogger_count(account->no_ring);
    } else {
        klogger_count(account->other);
    }
    klogger_release_slot((struct klogger_slot *)(place->row - sizeof(u64)));
    klogger_count_in_order(&place->ring->done);
}
