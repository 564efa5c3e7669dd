/* SPDX-License-Identifier: GPL-2.0-only */
/* The identity cache: rows that are read by plain loads; the map `connections` needs a call. */
#define KNOWN_BITS 14
#define KNOWN_BUSY 1

struct caller {
    u64 comm[2];
    u32 pid;
};

/*
 * A row of the identity cache: the identity and the last caller of one socket. A hash of the
 * socket's address selects the row:
 *
 *     address * 0x9e3779b97f4a7c15 = | KNOWN_BITS: the row | lower bits |
 *
 * The first socket with an identity gets the row, until its identity ends or a new one begins.
 * Other sockets with that row are not cached. Programs that read a copy of the socket do not use
 * the cache, for lack of stack. A reader compares sk before and after it reads a row; a writer
 * stores KNOWN_BUSY in sk while it writes.
 */
struct known {
    u64 sk; /* 0: free; KNOWN_BUSY: being written */
    u64 id; /* 0: the filters leave the socket out */
    u64 comm[2];
    u32 pid;
    u32 ports;
    u32 compared_at; /* when the owner was last compared with the caller [jiffies] */
    u32 entered;     /* connections in the map `connections` that have this row, at most */
    u64 named;       /* the id that MAGNET_CONNECTION has named */
    u32 dequeued;    /* QDISC_DEQUEUE and DRIVER_START: behind the highest byte, with `named` */
    u32 started;
#if KLOGGER_WATCHING
    struct klogger_watch watch; /* see watch_of() */
#endif
};

/* Nothing maps it, but a mappable array begins at a page: so each row has its own cache line. */
BPF_F_TABLE("array", u32, struct known, known_sockets, 1 << KNOWN_BITS, BPF_F_MMAPABLE);

/* An address as a number. The verifier refuses to multiply a pointer; after le64, which changes
 * nothing on this machine, it is a number for the verifier.
 */
static __always_inline u64 number_of(u64 key) {
    asm volatile("%0 = le64 %0" : "+r"(key));
    return key;
}

static __always_inline struct known *known_row(u64 number) {
    u32 place = number * 0x9e3779b97f4a7c15ull >> (64 - KNOWN_BITS);

    return known_sockets.lookup(&place);
}

/* The process, by the name of its first thread: others have names of their own. */
static __always_inline void read_caller(const int direct, struct caller *caller) {
    if (direct) {
        struct task_struct *task = bpf_get_current_task_btf();
        struct task_struct *leader = GET(task, group_leader);
        const volatile u64 *comm = (const volatile u64 *)(void *)&leader->comm;

        caller->pid = GET(task, tgid);
        caller->comm[0] = comm[0];
        caller->comm[1] = comm[1];
    } else {
        struct task_struct *task = (struct task_struct *)bpf_get_current_task();
        struct task_struct *leader = 0;

        caller->pid = bpf_get_current_pid_tgid() >> 32;
        caller->comm[0] = caller->comm[1] = 0;
        bpf_probe_read_kernel(&leader, sizeof(leader), (void *)&task->group_leader);
        bpf_probe_read_kernel(caller->comm, sizeof(caller->comm), (void *)&leader->comm);
    }
}

static __always_inline int is_caller(const struct known *row, const struct caller *caller) {
    return !((row->comm[0] ^ caller->comm[0]) | (row->comm[1] ^ caller->comm[1]) |
             (row->pid ^ caller->pid));
}

/*
 * The row, for loads that must come after the one that loaded `value`. x86-64 keeps the order of
 * loads; arm64 keeps it where an address depends on the value that was loaded before.
 */
static __always_inline const struct known *row_after(const struct known *row, u64 value) {
#if defined(__aarch64__)
    asm volatile("%1 &= 0; %0 += %1" : "+r"(row), "+r"(value));
#endif
    return row;
}

/* Acquires the row for this socket; 0 where it belongs to another. release_row() must follow. */
static __always_inline int acquire_row(struct known *row, u64 number) {
    u64 before = *(volatile u64 *)&row->sk;

    if (before == KNOWN_BUSY || (before && before != number && row->id))
        return 0;
    return __sync_val_compare_and_swap(&row->sk, before, KNOWN_BUSY) == before;
}

/* An exchange is ordered after the stores before it. */
static __always_inline void release_row(struct known *row, u64 number) {
    __sync_lock_test_and_set(&row->sk, number);
}

/* Evicts a socket whose identity ends or begins. */
static __always_inline void evict(u64 key) {
    u64 number = number_of(key);
    struct known *row = known_row(number);

    if (row && *(volatile u64 *)&row->sk == number)
        __sync_val_compare_and_swap(&row->sk, number, 0);
}

/* Caches a socket that the filters leave out, so that watch_owner() returns at its next call. */
static __always_inline void cache_left_out(struct known *row, u64 number,
                                           const struct caller *caller) {
    if (*(volatile u64 *)&row->sk == number || !acquire_row(row, number))
        return;
    row->id = 0;
    row->pid = caller->pid;
    row->comm[0] = caller->comm[0];
    row->comm[1] = caller->comm[1];
    row->compared_at = bpf_jiffies64();
    release_row(row, number);
}
