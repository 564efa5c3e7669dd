/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ring transport `bpf`: BPF's own ring buffer, one for each CPU. collector/ring/bpf_ring.py is
 * the other side.
 */
/* The head of a CPU's ring: what the kernel's ring buffer does not have. */
struct klogger_ring {
    u64 committed; /* records: by programs */
    u64 wake_at;   /* the collector wants to be woken at so many committed records */
    u64 full;      /* records that found no room */
    u64 unused[5];
};

/* The collector makes these two: the heads for it to map, and an array of ring buffers. */
BPF_ARRAY(klogger_heads, struct klogger_ring, 1);
BPF_ARRAY(klogger_rings, u64, 1);

#define KLOGGER_NO_WAKEUP    1 /* BPF_RB_NO_WAKEUP */
#define KLOGGER_FORCE_WAKEUP 2 /* BPF_RB_FORCE_WAKEUP */

/* bpf_ringbuf_reserve() and bpf_ringbuf_submit(), which BCC offers only for maps that have a name.
 */
static void *(*klogger_ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*klogger_ring_submit)(void *record, u64 flags) = (void *)132;

static __always_inline u8 *klogger_reserve(struct klogger_cpu *cpu, const u32 row,
                                           struct klogger_place *place) {
    struct klogger_account *account = &cpu->accounts[row];
    u32 number = bpf_get_smp_processor_id();
    void *ring = klogger_rings.lookup(&number);
    struct klogger_ring *head = klogger_heads.lookup(&number);

    if (!ring || !head) {
        klogger_count(account->no_ring);
        klogger_number(cpu);
        return 0;
    }
    place->ring = head;
    place->row = klogger_ring_reserve(ring, KLOGGER_RECORD_SIZE, 0);
    if (!place->row) {
        klogger_count(account->ring_full);
        klogger_count(head->full);
        klogger_number(cpu);
        return 0;
    }
    return place->row;
}

static __always_inline void klogger_commit(void *ctx, struct klogger_account *account,
                                           struct klogger_place *place) {
    u64 committed = __sync_fetch_and_add(&place->ring->committed, 1) + 1;
    int wake = committed == *(volatile u64 *)&place->ring->wake_at;

    klogger_ring_submit(place->row, wake ? KLOGGER_FORCE_WAKEUP : KLOGGER_NO_WAKEUP);
    klogger_count(account->written);
}
