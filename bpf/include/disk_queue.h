/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads the queue of mq-deadline: the sectors of each class and direction, in the order in which
 * they came. For disk.bpf.c; the kernel holds the scheduler's lock.
 */
struct elevator_queue;
struct elevator_type;
struct deadline_data;
struct dd_per_prio;
struct io_stats_per_prio;
struct list_head;

#define DISK_CHUNK     16   /* positions in an event, see disk.conf */
#define DISK_POSITIONS 1000 /* as in HP-UX */
#define DISK_CHUNKS    ((DISK_POSITIONS + DISK_CHUNK - 1) / DISK_CHUNK)
#define DISK_LISTS     6 /* three classes, each with reads and writes */

/* A walk through the lists. In memory: so the verifier does not follow each value. */
struct disk_walk {
    u64 busy;
    u64 list;
    u64 node;
    u64 count;
    s64 positions[DISK_CHUNKS * DISK_CHUNK];
};

BPF_PERCPU_ARRAY(disk_walks, struct disk_walk, 1);

#if defined(HAVE_struct_deadline_data) && defined(HAVE_struct_dd_per_prio)
#define DISK_READS_QUEUE 1

/* The scheduler's data if the queue's scheduler is mq-deadline; or null. */
static __always_inline u8 *disk_deadline_of(const int direct, struct request *rq) {
    struct request_queue *queue = READ(direct, rq, q);
    struct elevator_queue *elevator = READ(direct, queue, elevator);
    struct elevator_type *type;
    char wanted[] = "mq-deadline", name[sizeof(wanted)] = {};

    if (!elevator)
        return 0;
    type = READ(direct, elevator, type);
    bpf_probe_read_kernel(name, sizeof(name), (void *)READ(direct, type, elevator_name));
#pragma unroll
    for (int i = 0; i < sizeof(wanted); i++)
        if (name[i] != wanted[i])
            return 0;
    return (u8 *)READ(direct, elevator, elevator_data);
}

static __always_inline u8 *disk_class_of(u8 *deadline, u64 list) {
    return deadline + __builtin_offsetof(struct deadline_data, per_prio) +
           list / 2 * sizeof(struct dd_per_prio);
}

/* How many requests the scheduler has, by its own counts, in which the new one is already. */
static __always_inline int disk_queue_length(u8 *deadline) {
    int length = -1;

#pragma unroll
    for (int list = 0; list < DISK_LISTS; list += 2) {
        struct dd_per_prio *class = (struct dd_per_prio *)disk_class_of(deadline, list);

        length += READ(0, class, stats.inserted) - READ(0, class, stats.merged) -
                  READ(0, class, stats.dispatched);
    }
    return length;
}

static __always_inline u64 disk_list_of(u8 *deadline, u64 list) {
    return (u64)disk_class_of(deadline, list) + __builtin_offsetof(struct dd_per_prio, fifo_list) +
           (list & 1) * sizeof(struct list_head);
}

/* One step of a walk: to the next request, or to the next list; 0 at the end. Sectors of realtime
 * requests, the first two lists, are -1 - sector.
 */
static __always_inline int disk_step(struct disk_walk *walk, u8 *deadline) {
    u64 next = (u64)READ(0, (struct list_head *)walk->node, next), at = walk->count;
    struct request *rq = (struct request *)(next - __builtin_offsetof(struct request, queuelist));

    if (next == disk_list_of(deadline, walk->list)) {
        if (++walk->list >= DISK_LISTS)
            return 0;
        walk->node = disk_list_of(deadline, walk->list);
        return 1;
    }
    if (at >= DISK_POSITIONS)
        return 0;
    walk->positions[at] = READ(0, rq, __sector) ^ -(u64)(walk->list < 2);
    walk->count = at + 1;
    walk->node = next;
    return 1;
}

/* Logs the queue into which a request is inserted. */
static __always_inline void disk_log_queue(void *ctx, struct klogger_cpu *cpu, const int direct,
                                           struct request *rq, struct disk_request what) {
    u32 zero = 0;
    struct disk_walk *walk = disk_walks.lookup(&zero);
    u8 *deadline = disk_deadline_of(direct, rq);
    int length;

    /* The lock is that of one queue: an interrupt may insert into another. */
    if (!walk || !deadline || __sync_lock_test_and_set(&walk->busy, 1)) {
        klogger(DISK_QUEUE, DISK_REQUEST(what), -1, 0, 0, 0);
        return;
    }
    walk->list = walk->count = 0;
    walk->node = disk_list_of(deadline, 0);
#pragma nounroll
    for (int step = 0; step < DISK_POSITIONS + DISK_LISTS; step++)
        if (!disk_step(walk, deadline))
            break;
    length = disk_queue_length(deadline);
#pragma nounroll
    for (int chunk = 0; chunk < DISK_CHUNKS; chunk++) {
        int left = (int)walk->count - chunk * DISK_CHUNK;

        if (chunk && left <= 0)
            break;
        klogger(DISK_QUEUE, DISK_REQUEST(what), length, chunk,
                left < DISK_CHUNK ? left : DISK_CHUNK,
                left > 0 ? walk->positions + chunk * DISK_CHUNK : 0);
    }
    *(volatile u64 *)&walk->busy = 0;
}
#endif
