/* SPDX-License-Identifier: GPL-2.0-only */
/* When threads entered the system call that they are in: for the schema magnet. */

/* A row for each value of the lower bits of a thread's number: of two threads with the same ones
 * the later call is known.
 */
#define MAGNET_CALLS 65536

struct magnet_call {
    u32 tid;
    u32 end; /* behind the bytes that TCP_SEND told of */
    u64 entered;
    u64 sk; /* of the last packet that it sent: what is known of that */
    u64 id;
    u64 flags;
};

BPF_ARRAY(magnet_calls, struct magnet_call, MAGNET_CALLS);

/*
 * Whether a system call may send or receive. The numbers are those of 64-bit programs and those of
 * 32-bit ones (i386, arm): what the other kind of program does under the same number is remembered
 * too, and does no harm, as no event follows.
 */
#define MAGNET_BIT(number) (1ull << (number))

#if defined(__aarch64__)
static __always_inline int magnet_moves_data(u64 number) {
    switch (number) {
    case 63:  /* read */
    case 64:  /* write */
    case 65:  /* readv */
    case 66:  /* writev */
    case 71:  /* sendfile */
    case 76:  /* splice */
    case 206: /* sendto */
    case 207: /* recvfrom */
    case 211: /* sendmsg */
    case 212: /* recvmsg */
    case 243: /* recvmmsg */
    case 269: /* sendmmsg */
    case 286: /* preadv2 */
    case 287: /* pwritev2 */
    case 426: /* io_uring_enter */
    case 3:   /* arm: read */
    case 4:   /* write */
    case 145: /* readv */
    case 146: /* writev */
    case 187: /* sendfile */
    case 239: /* sendfile64 */
    case 289: /* send */
    case 290: /* sendto */
    case 291: /* recv */
    case 292: /* recvfrom */
    case 296: /* sendmsg */
    case 297: /* recvmsg */
    case 340: /* splice */
    case 365: /* recvmmsg */
    case 374: /* sendmmsg */
    case 392: /* preadv2 */
    case 393: /* pwritev2 */
    case 417: /* recvmmsg_time64 */
        return 1;
    }
    return 0;
}
#else
static __always_inline int magnet_moves_data(u64 number) {
    if (number < 64)
        /* read write readv writev sendfile sendto recvfrom sendmsg recvmsg; i386: read write */
        return (MAGNET_BIT(0) | MAGNET_BIT(1) | MAGNET_BIT(19) | MAGNET_BIT(20) | MAGNET_BIT(40) |
                MAGNET_BIT(44) | MAGNET_BIT(45) | MAGNET_BIT(46) | MAGNET_BIT(47) | MAGNET_BIT(3) |
                MAGNET_BIT(4)) >>
                   number &
               1;
    switch (number) {
    case 275: /* splice */
    case 299: /* recvmmsg */
    case 307: /* sendmmsg */
    case 327: /* preadv2 */
    case 328: /* pwritev2 */
    case 426: /* io_uring_enter */
    case 102: /* i386: socketcall */
    case 145: /* readv */
    case 146: /* writev */
    case 187: /* sendfile */
    case 239: /* sendfile64 */
    case 313: /* splice */
    case 337: /* recvmmsg */
    case 345: /* sendmmsg */
    case 369: /* sendto */
    case 370: /* sendmsg */
    case 371: /* recvfrom */
    case 372: /* recvmsg */
    case 417: /* recvmmsg_time64 */
        return 1;
    }
    return 0;
}
#endif

static __always_inline struct magnet_call *magnet_call_of(u32 tid) {
    u32 row = tid % MAGNET_CALLS;

    return magnet_calls.lookup(&row);
}

static __always_inline void magnet_begin_call(void) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    if (!call)
        return;
    call->tid = tid;
    call->end = 0;
    call->sk = 0;
    call->entered = bpf_ktime_get_ns();
}

/* When the current thread entered its call; 0: unknown. */
static __always_inline u64 magnet_entered(void) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    return call && call->tid == tid ? call->entered : 0;
}

/* The current call has sent a packet, which passed the filters. */
static __always_inline void magnet_call_sends(struct sock *sk, u64 id, u16 flags) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    if (!call || call->tid != tid)
        return;
    call->sk = (u64)sk;
    call->id = id;
    call->flags = flags;
}

/* The current call, if it has sent a packet of this socket. */
static __always_inline struct magnet_call *magnet_call_that_sent(struct sock *sk) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    return call && call->tid == tid && call->sk == (u64)sk ? call : 0;
}

/* Whether the current call has not yet told that it sends the bytes below `end`. */
static __always_inline int magnet_is_first(u32 end) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    if (!call || call->tid != tid)
        return 1;
    if (call->end == end && end)
        return 0;
    call->end = end;
    return 1;
}
