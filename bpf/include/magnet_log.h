/* SPDX-License-Identifier: GPL-2.0-only */
/* The records of the schema magnet. */

#define MAGNET_RETRANSMISSION 256
#define MAGNET_UDP            512
#define MAGNET_ESTABLISHED    1
#define MAGNET_EBUSY          16
#define MAGNET_SOCK_DONE      2 /* 1 << SOCK_DONE: FIN was received */

/* The fields that all events have without @data. */
struct magnet_event {
    u64 connection;
    u64 entered;
    u32 seq_lo;
    u32 seq_hi;
    u32 ack;
    s32 size;
    u32 device;
    u16 flags;
    u16 gso_segs;
};

#define MAGNET_LEAN(e)                                                                             \
    (e).connection, (e).entered, (e).seq_lo, (e).seq_hi, (e).ack, (e).size, (e).device, (e).flags, \
        (e).gso_segs
#define MAGNET_NO_TCP 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
#define MAGNET_NO_IP  0, 0, 0, 0, 0, 0
#define MAGNET_TCP(tp)                                                                             \
    READ(0, (struct sock *)tp, __sk_common.skc_num),                                               \
        bpf_ntohs(READ(0, (struct sock *)tp, __sk_common.skc_dport)), READ(0, tp, snd_wnd),        \
        READ(0, tp, srtt_us),                                                                      \
        (u64)READ(0, (struct inet_connection_sock *)tp, icsk_rto) * 1000000 / KLOGGER_HZ,          \
        READ(0, tp, packets_out), READ(0, tp, retrans_out), READ(0, tp, snd_ssthresh),             \
        READ(0, tp, snd_cwnd), READ(0, tp, rcv_wnd), READ(0, tp, write_seq),                       \
        READ(0, tp, copied_seq)
#define MAGNET_IP(p) (p).version, (p).service, (p).id, (p).fragment_bits, (p).hops, (p).next

/* The values of an event of a socket, and of a packet. */
#define MAGNET_SOCKET(e, tp)     MAGNET_LEAN(e), MAGNET_TCP(tp), MAGNET_NO_IP
#define MAGNET_PACKET(e, packet) MAGNET_LEAN(e), MAGNET_NO_TCP, MAGNET_IP(packet)

/* When threads entered their calls, by the lower bits of their number: of two threads with the same
 * bits the second is remembered.
 */
#define MAGNET_CALLS 65536

struct magnet_call {
    u32 tid;
    u32 zero;
    u64 entered;
};

BPF_ARRAY(magnet_calls, struct magnet_call, MAGNET_CALLS);

static __always_inline struct magnet_call *magnet_call_of(u32 tid) {
    u32 row = tid % MAGNET_CALLS;

    return magnet_calls.lookup(&row);
}

static __always_inline void magnet_enter(void) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    if (!call)
        return;
    call->tid = tid;
    call->entered = bpf_ktime_get_ns();
}

static __always_inline u64 magnet_entered(void) {
    u32 tid = bpf_get_current_pid_tgid();
    struct magnet_call *call = magnet_call_of(tid);

    return call && call->tid == tid ? call->entered : 0;
}

/* Whether FIN was received: rcv_nxt counts it. */
static __always_inline int magnet_has_fin(struct tcp_sock *tp) {
    return !!(READ(0, (struct sock *)tp, __sk_common.skc_flags) & MAGNET_SOCK_DONE);
}

/* The bytes below this number are in order: rcv_nxt without FIN. */
static __always_inline u32 magnet_in_order(struct tcp_sock *tp) {
    return READ(0, tp, rcv_nxt) - magnet_has_fin(tp);
}

/* The bytes below this number are read: copied_seq without FIN. */
static __always_inline u32 magnet_copied(struct tcp_sock *tp) {
    u32 copied = READ(0, tp, copied_seq);

    return copied - (magnet_has_fin(tp) && copied == READ(0, tp, rcv_nxt));
}

/*
 * Parses the packet of an skb whose IP header is at `at`. received: its source is the remote end.
 * Returns 0 if it is not TCP or UDP, or a fragment without their header.
 */
static __always_inline int magnet_parse(void *ctx, struct klogger_cpu *cpu, const int direct,
                                        struct sk_buff *skb, u8 *at, const int received,
                                        struct net_device *device, struct network_packet *packet,
                                        struct magnet_event *e) {
    u32 before = at - (u8 *)READ(direct, skb, data);
    u32 size = READ(direct, skb, len) - before;
    struct magnet_tuple tuple = {};
    struct network_tcp tcp = {};
    struct skb_shared_info *shared;
    struct sock *sk = READ(direct, skb, sk);
    u64 *id;

    if (!network_parse(at, size, size - READ(direct, skb, data_len), packet))
        return 0;
    if (network_tcp_of(packet, &tcp)) {
        e->flags = tcp.flags;
        e->seq_lo = bpf_ntohl(tcp.seq) + !!(tcp.flags & NETWORK_SYN);
        e->ack = bpf_ntohl(tcp.ack);
    } else if (packet->protocol == NETWORK_UDP && packet->transport && packet->payload >= 8) {
        bpf_probe_read_kernel(&tcp, 4, packet->transport);
        e->flags = MAGNET_UDP;
        packet->payload -= 8;
    } else {
        return 0;
    }
    e->size = packet->payload;
    if (e->flags != MAGNET_UDP)
        e->seq_hi = e->seq_lo + packet->payload;
    shared = (struct skb_shared_info *)(READ(direct, skb, head) + READ(direct, skb, end));
    e->gso_segs = READ(0, shared, gso_segs);
    if (!e->gso_segs)
        e->gso_segs = 1;
    if (device)
        e->device = READ(0, device, ifindex);
    if (!received && sk && packet->protocol == NETWORK_TCP && magnet_is_tcp(0, sk)) {
        e->connection = magnet_connection(ctx, cpu, 0, sk);
        if (packet->payload && (s32)(e->seq_lo - READ(0, (struct tcp_sock *)sk, snd_nxt)) < 0)
            e->flags |= MAGNET_RETRANSMISSION;
        return 1;
    }
    if (device)
        tuple.net = (u64)READ(0, device, nd_net.net);
    __builtin_memcpy(tuple.laddr, received ? packet->daddr : packet->saddr, 16);
    __builtin_memcpy(tuple.raddr, received ? packet->saddr : packet->daddr, 16);
    tuple.lport = bpf_ntohs(received ? tcp.target : tcp.source);
    tuple.rport = bpf_ntohs(received ? tcp.source : tcp.target);
    tuple.protocol = packet->protocol;
    id = magnet_tuples.lookup(&tuple);
    if (id)
        e->connection = *id;
    return 1;
}

/*
 * What a driver got to send on this CPU: when it has returned, the skb may be gone. Calls nest, as
 * of a tunnel and the device below it, also with the same skb.
 */
#define MAGNET_DRIVERS 8

struct magnet_driver {
    u64 skb;
    u64 device;
    struct magnet_event event;
    struct network_packet packet;
};

BPF_PERCPU_ARRAY(magnet_drivers, struct magnet_driver, MAGNET_DRIVERS);

static __always_inline struct magnet_driver *magnet_driver_of(u64 skb, u64 device) {
    u32 row = (number_of(skb) >> 8 ^ number_of(device) >> 6) % MAGNET_DRIVERS;

    return magnet_drivers.lookup(&row);
}
