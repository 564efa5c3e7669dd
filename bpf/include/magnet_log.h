/* SPDX-License-Identifier: GPL-2.0-only */
/* The records of the schema magnet. */

#define MAGNET_RETRANSMISSION 256
#define MAGNET_UDP            512
#define MAGNET_EBUSY          16
#define MAGNET_BULK           8 /* at most so many packets of one dequeue are logged */
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
#define MAGNET_TCP(direct, tp)                                                                     \
    READ(direct, (struct sock *)tp, __sk_common.skc_num),                                          \
        bpf_ntohs(READ(direct, (struct sock *)tp, __sk_common.skc_dport)),                         \
        READ(direct, tp, snd_wnd), READ(direct, tp, srtt_us),                                      \
        (u64)READ(direct, (struct inet_connection_sock *)tp, icsk_rto) * 1000000 / KLOGGER_HZ,     \
        READ(direct, tp, packets_out), READ(direct, tp, retrans_out),                              \
        READ(direct, tp, snd_ssthresh), READ(direct, tp, snd_cwnd), READ(direct, tp, rcv_wnd),     \
        READ(direct, tp, write_seq), READ(direct, tp, copied_seq)
#define MAGNET_IP(p) (p).version, (p).service, (p).id, (p).fragment_bits, (p).hops, (p).next

/* The values of an event of a TCP socket, of a UDP socket, and of a packet. */
#define MAGNET_SOCKET(direct, e, tp) MAGNET_LEAN(e), MAGNET_TCP(direct, tp), MAGNET_NO_IP
#define MAGNET_NO_STATE(e)           MAGNET_LEAN(e), MAGNET_NO_TCP, MAGNET_NO_IP
#define MAGNET_PACKET(e, packet)     MAGNET_LEAN(e), MAGNET_NO_TCP, MAGNET_IP(packet)

/* A socket as the struct tcp_sock that it is; null for other sockets. */
#define MAGNET_TP(direct, sk) (direct ? AS_TCP(sk) : (struct tcp_sock *)sk)

/* Whether FIN was received: rcv_nxt counts it. */
static __always_inline int magnet_has_fin(const int direct, struct tcp_sock *tp) {
    return !!(READ(direct, (struct sock *)tp, __sk_common.skc_flags) & MAGNET_SOCK_DONE);
}

/* The bytes below this number are in order: rcv_nxt without FIN. */
static __always_inline u32 magnet_in_order(const int direct, struct tcp_sock *tp) {
    return READ(direct, tp, rcv_nxt) - magnet_has_fin(direct, tp);
}

/* The bytes below this number are read: copied_seq without FIN. */
static __always_inline u32 magnet_copied(const int direct, struct tcp_sock *tp) {
    u32 copied = READ(direct, tp, copied_seq);

    return copied - (magnet_has_fin(direct, tp) && copied == READ(direct, tp, rcv_nxt));
}

/* The flags of the newest segment of a queue: of the one that waits for its reader, with those that
 * were merged into it; of the one that waits to be sent. 0: none waits.
 */
static __always_inline u16 magnet_newest_flags(struct sk_buff_head *queue) {
    struct sk_buff *skb = READ(0, queue, prev);

    if ((u64)skb == (u64)queue)
        return 0;
    return READ(0, (struct tcp_skb_cb *)&skb->cb, tcp_flags) & 0xff;
}

/* Flags of magnet_packet(). */
#define MAGNET_RECEIVED 1 /* its source is the remote end */
/* Find the connection only where an earlier event identified it; that of a received packet by its
 * ends: over veth it keeps the sender's socket until it enters IP.
 */
#define MAGNET_FAST 2

/* Results of magnet_packet(). */
#define MAGNET_SKIP  0 /* no packet of TCP or UDP, or one that is forwarded */
#define MAGNET_FOUND 3 /* also MAGNET_FILTERED, MAGNET_NO_ROOM */

/* Whether bytes were at this place before. highest: behind the highest byte that was; 0: unknown.
 */
static __always_inline int magnet_is_again(u32 *highest, const struct magnet_event *e) {
    u32 before = *(volatile u32 *)highest;

    if (!before || (s32)(e->seq_hi - before) > 0)
        *(volatile u32 *)highest = e->seq_hi;
    return before && e->seq_hi != e->seq_lo && (s32)(e->seq_lo - before) < 0;
}

/*
 * Describes the packet of an skb whose IP header is at `at`, and finds its connection. device: null
 * if unknown; net: its network namespace.
 */
static __always_inline int magnet_packet(void *ctx, struct klogger_cpu *cpu, const int direct,
                                         const u32 flags, struct sk_buff *skb, u8 *at,
                                         struct net_device *device, struct net *net,
                                         struct network_packet *packet, struct magnet_event *e) {
    const int received = flags & MAGNET_RECEIVED;
    u32 size = READ(direct, skb, len) - (u32)(at - (u8 *)READ(direct, skb, data));
    struct sock *sk = READ(direct, skb, sk);
    struct skb_shared_info *shared;
    struct endpoints ends = {};
    struct network_tcp tcp = {};
    struct magnet_who who = {};
    u32 syn = 0, seq = 0;

    if (!network_parse(at, size, size - READ(direct, skb, data_len), packet))
        return MAGNET_SKIP;
    if (network_tcp_of(packet, &tcp)) {
        seq = bpf_ntohl(tcp.seq);
        syn = !!(tcp.flags & NETWORK_SYN);
        e->flags = tcp.flags;
        e->seq_lo = seq + syn;
        e->seq_hi = e->seq_lo + packet->payload;
        e->ack = bpf_ntohl(tcp.ack);
    } else if (packet->protocol == PROTOCOL_UDP && packet->transport) {
        bpf_probe_read_kernel(&tcp, 4, packet->transport);
        packet->payload -= 8;
        e->flags = MAGNET_UDP;
    } else {
        return MAGNET_SKIP;
    }
    e->size = packet->payload;
    shared = (struct skb_shared_info *)(READ(direct, skb, head) + READ(direct, skb, end));
    e->gso_segs = READ(0, shared, gso_segs);
    if (!e->gso_segs)
        e->gso_segs = 1;
    if (device)
        e->device = READ(direct, device, ifindex);
    ends.family = packet->version == 4 ? FAMILY_V4 : FAMILY_V6;
    ends.lport = bpf_ntohs(received ? tcp.target : tcp.source);
    ends.rport = bpf_ntohs(received ? tcp.source : tcp.target);
    __builtin_memcpy(ends.laddr, received ? packet->daddr : packet->saddr, 16);
    __builtin_memcpy(ends.raddr, received ? packet->saddr : packet->daddr, 16);
    ends.netns = cookie_of(direct, net);
    if (sk && flags == MAGNET_FAST)
        magnet_recall(sk, &who);
    else if (sk && !(flags & MAGNET_FAST))
        magnet_identify(ctx, cpu, direct, sk, 0, &ends, &who);
    if (who.left_out)
        return who.left_out;
    e->connection = who.id;
    if (!who.id) {
        struct filter_settings *settings;
        u32 zero = 0;

        settings = filter_settings.lookup(&zero);
        who.left_out = settings && settings->flags &&
                       magnet_leaves_out(settings, settings->flags, 0, &ends, 0);
        MAGNET_KEY(&ends, packet->protocol);
        if (packet->protocol == PROTOCOL_TCP)
            e->connection =
                magnet_find(&ends, (tcp.flags & (NETWORK_SYN | NETWORK_ACK)) == NETWORK_SYN);
        else
            e->connection = magnet_find_udp(&ends);
        return e->connection || !who.left_out ? MAGNET_FOUND : MAGNET_FILTERED;
    }
    if (!received && !(flags & MAGNET_FAST))
        magnet_call_sends(sk, who.id, e->flags);
    if (!received && who.protocol == PROTOCOL_TCP &&
        (packet->payload || (tcp.flags & (NETWORK_SYN | NETWORK_FIN)))) {
        struct tcp_sock *tp = MAGNET_TP(direct, sk);

        if (tp && (s32)(seq - READ(direct, tp, snd_nxt)) < 0)
            e->flags |= MAGNET_RETRANSMISSION;
    }
    return MAGNET_FOUND;
}

/* Whether an event of a packet is to be logged; counts what is left out. */
#define MAGNET_ADMIT(event, found)                                                                 \
    ({                                                                                             \
        if (found == MAGNET_FILTERED || found == MAGNET_NO_ROOM)                                   \
            MAGNET_LEFT_OUT(event, found);                                                         \
        found == MAGNET_FOUND;                                                                     \
    })

/* The IP header of a packet that is sent or was received by IP. */
#define MAGNET_HEADER(direct, skb)                                                                 \
    ((u8 *)READ(direct, skb, head) + READ(direct, skb, network_header))

/* Whether a device saw it, but it is for another host. */
static __always_inline int magnet_is_foreign(const int direct, struct sk_buff *skb) {
    u8 bits = 0;

    if (direct)
        return BITFIELD_sk_buff_pkt_type(skb) >= NETWORK_OTHERHOST;
    bpf_probe_read_kernel(&bits, 1, (u8 *)skb + BITS_sk_buff_pkt_type_OFFSET);
    return BITS_sk_buff_pkt_type(bits) >= NETWORK_OTHERHOST;
}

/* magnet_packet() of a packet on its way to a device; not of those that came from one. */
static __always_inline int magnet_sent_packet(void *ctx, struct klogger_cpu *cpu, const int direct,
                                              const u32 flags, struct sk_buff *skb,
                                              struct network_packet *packet,
                                              struct magnet_event *e) {
    struct net_device *device = READ(direct, skb, dev);

    if (!network_is_ip(READ(direct, skb, protocol)) || READ(direct, skb, skb_iif))
        return MAGNET_SKIP;
    return magnet_packet(ctx, cpu, direct, flags, skb, MAGNET_HEADER(direct, skb), device,
                         READ(direct, device, nd_net.net), packet, e);
}

/*
 * Below the queue discipline the socket has gone on, so that its numbers do not tell which bytes
 * are sent again. Whether they passed this place before does.
 */
static __always_inline void magnet_mark_again(const int direct, struct sk_buff *skb,
                                              const int driver, struct magnet_event *e) {
    u64 number = number_of((u64)READ(direct, skb, sk));
    struct known *row = known_row(number);

    e->flags &= ~MAGNET_RETRANSMISSION;
    if (e->connection && row && row->sk == number && row->named == e->connection &&
        magnet_is_again(driver ? &row->started : &row->dequeued, e))
        e->flags |= MAGNET_RETRANSMISSION;
}

/* IP hands a packet to a device: (net, sk, skb) in both families. */
static __always_inline void magnet_log_output(void *ctx, struct klogger_cpu *cpu, struct net *net,
                                              struct sk_buff *skb) {
    struct dst_entry *dst = (struct dst_entry *)(READ(0, skb, _skb_refdst) & ~1ul);
    struct network_packet packet;
    struct magnet_event e = {};
    int found;

    if (READ(0, skb, skb_iif))
        return;
    found = magnet_packet(ctx, cpu, 0, 0, skb, MAGNET_HEADER(0, skb), READ(0, dst, dev), net,
                          &packet, &e);
    if (MAGNET_ADMIT(IP_SEND, found))
        klogger(IP_SEND, MAGNET_PACKET(e, packet));
}

/* The call to send returned this. */
static __always_inline void magnet_log_sent(void *ctx, struct klogger_cpu *cpu, const int direct,
                                            struct sock *sk, s32 result) {
    struct magnet_event e = {};
    struct magnet_who who = {};
    struct magnet_call *sent = magnet_call_that_sent(sk);

    magnet_identify(ctx, cpu, direct, sk, 1, 0, &who);
    /* The other end of a socket that is not connected is known of its packets alone. */
    if (sent && who.protocol == PROTOCOL_UDP && who.left_out == MAGNET_FILTERED) {
        who.id = sent->id;
        who.left_out = 0;
    }
    e.connection = who.id;
    e.size = result;
    if (who.left_out) {
        MAGNET_LEFT_OUT(SOCK_SEND, who.left_out);
    } else if (who.protocol == PROTOCOL_TCP) {
        struct tcp_sock *tp = MAGNET_TP(direct, sk);

        if (!tp)
            return;
        e.entered = magnet_entered();
        e.seq_hi = READ(direct, tp, write_seq);
        e.seq_lo = e.seq_hi - (result > 0 ? result : 0);
        e.flags = magnet_newest_flags(&sk->sk_write_queue);
        if (!e.flags && sent)
            e.flags = (u8)sent->flags;
        klogger(SOCK_SEND, MAGNET_SOCKET(direct, e, tp));
    } else if (who.protocol == PROTOCOL_UDP) {
        e.entered = magnet_entered();
        e.flags = MAGNET_UDP;
        klogger(SOCK_SEND, MAGNET_NO_STATE(e));
    }
    if (sent)
        sent->sk = 0;
}

/* UDP takes a datagram of the application. */
static __always_inline void magnet_log_datagram(void *ctx, struct klogger_cpu *cpu, struct sock *sk,
                                                s32 size) {
    struct magnet_event e = {};
    struct magnet_who who = {};

    magnet_identify(ctx, cpu, 0, sk, 1, 0, &who);
    if (who.left_out) {
        MAGNET_LEFT_OUT(TCP_SEND, who.left_out);
    } else if (who.protocol == PROTOCOL_UDP) {
        e.connection = who.id;
        e.size = size;
        e.flags = MAGNET_UDP;
        klogger(TCP_SEND, MAGNET_NO_STATE(e));
    }
}

/* The call to receive returned this; MSG_PEEK moves nothing. */
static __always_inline void magnet_log_received(void *ctx, struct klogger_cpu *cpu,
                                                const int direct, struct sock *sk, s32 result,
                                                u32 flags) {
    struct magnet_event e = {};
    struct magnet_who who = {};

    magnet_identify(ctx, cpu, direct, sk, 1, 0, &who);
    e.connection = who.id;
    e.size = result > 0 && (flags & NETWORK_MSG_PEEK) ? 0 : result;
    if (who.left_out) {
        MAGNET_LEFT_OUT(SOCK_RECV, who.left_out);
    } else if (who.protocol == PROTOCOL_TCP) {
        struct tcp_sock *tp = MAGNET_TP(direct, sk);

        if (!tp)
            return;
        e.entered = magnet_entered();
        e.seq_hi = magnet_copied(direct, tp);
        e.seq_lo = e.seq_hi - (e.size > 0 ? e.size : 0);
        klogger(SOCK_RECV, MAGNET_SOCKET(direct, e, tp));
    } else if (who.protocol == PROTOCOL_UDP) {
        e.entered = magnet_entered();
        e.flags = MAGNET_UDP;
        klogger(SOCK_RECV, MAGNET_NO_STATE(e));
    }
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
    u32 found;
};

BPF_PERCPU_ARRAY(magnet_drivers, struct magnet_driver, MAGNET_DRIVERS);

static __always_inline struct magnet_driver *magnet_driver_of(u64 skb, u64 device) {
    u32 row = (number_of(skb) >> 8 ^ number_of(device) >> 6) % MAGNET_DRIVERS;

    return magnet_drivers.lookup(&row);
}
