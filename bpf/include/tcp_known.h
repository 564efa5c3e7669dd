/* SPDX-License-Identifier: GPL-2.0-only */
/* What is known of a socket, at hand: a table in front of the connections, which cost a call. */
#define KNOWN_BITS 14
#define KNOWN_BUSY 1

struct caller {
    u64 comm[2];
    u32 pid;
};

/*
 * What records tell of a socket's connection, and who called on it last. A row holds one socket, at
 * a place given by its address: the first there with an identity, until that ends or begins anew.
 * Others at that place do without, and so do programs that copy a socket to read it: they have no
 * room on the stack. Who reads a row looks at sk before and afterwards.
 */
struct known {
    u64 sk; /* 0: nobody's; KNOWN_BUSY: being changed */
    u64 id; /* 0: the filters leave the socket out */
    u64 comm[2];
    u32 pid;
    u32 ports;
    u32 looked;  /* when its owner was last compared with who called [jiffies] */
    u32 entered; /* how many of the connections in the table have this place, at most */
    u64 unused[2];
};

/* Mapped by nobody, but such a map begins with a page: each row has a cache line. */
BPF_F_TABLE("array", u32, struct known, known_sockets, 1 << KNOWN_BITS, BPF_F_MMAPABLE);

/* An address as a number: the verifier lets nobody multiply a pointer, but takes one whose bytes
 * were put in order, of which none moves, for a number.
 */
static __always_inline u64 number_of(u64 key) {
    asm volatile("%0 = le64 %0" : "+r"(key));
    return key;
}

static __always_inline struct known *known_row(u64 number) {
    u32 place = number * 0x9e3779b97f4a7c15ull >> (64 - KNOWN_BITS);

    return known_sockets.lookup(&place);
}

static __always_inline void read_caller(const int direct, struct caller *caller) {
    if (direct) {
        struct task_struct *task = bpf_get_current_task_btf();
        const volatile u64 *comm = (const volatile u64 *)(void *)&task->comm;

        caller->pid = GET(task, tgid);
        caller->comm[0] = comm[0];
        caller->comm[1] = comm[1];
    } else {
        caller->pid = bpf_get_current_pid_tgid() >> 32;
        /* Some kernels (6.1) write no further than the name's end. */
        caller->comm[0] = caller->comm[1] = 0;
        bpf_get_current_comm(caller->comm, sizeof(caller->comm));
    }
}

static __always_inline int is_caller(const struct known *row, const struct caller *caller) {
    return !((row->comm[0] ^ caller->comm[0]) | (row->comm[1] ^ caller->comm[1]) |
             (row->pid ^ caller->pid));
}

/* Makes the row this socket's, or nothing where it is another's; who gets 1 has to let go of it. */
static __always_inline int take_row(struct known *row, u64 number) {
    u64 before = *(volatile u64 *)&row->sk;

    if (before == KNOWN_BUSY || (before && before != number && row->id))
        return 0;
    return __sync_val_compare_and_swap(&row->sk, before, KNOWN_BUSY) == before;
}

/* An exchange is ordered behind the stores before it. */
static __always_inline void let_go(struct known *row, u64 number) {
    __sync_lock_test_and_set(&row->sk, number);
}

/* Forgets a socket whose identity ends or begins. */
static __always_inline void forget(u64 key) {
    u64 number = number_of(key);
    struct known *row = known_row(number);

    if (row && *(volatile u64 *)&row->sk == number)
        __sync_val_compare_and_swap(&row->sk, number, 0);
}

/* Enters a socket that the filters leave out, so that its caller's next call is done with. */
static __always_inline void enter_unwanted(struct known *row, u64 number,
                                           const struct caller *caller) {
    if (*(volatile u64 *)&row->sk == number || !take_row(row, number))
        return;
    row->id = 0;
    row->pid = caller->pid;
    row->comm[0] = caller->comm[0];
    row->comm[1] = caller->comm[1];
    row->looked = bpf_jiffies64();
    let_go(row, number);
}
