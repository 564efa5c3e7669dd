/* SPDX-License-Identifier: GPL-2.0-only */
/* Functions that log events, for the probes of network.bpf.c for IPv4 and IPv6. */

/* So many descriptors are examined when a process ends. */
#define NETWORK_DESCRIPTORS 128

/* After a connect() that succeeded or is in progress; with AF_UNSPEC it removes the target. */
static __always_inline void network_log_connect(void *ctx, struct klogger_cpu *cpu, struct sock *sk,
                                                const struct network_ends *ends, int result,
                                                u32 pid) {
    if (!ends->rport && READ(0, sk, __sk_common.skc_state) == NETWORK_CLOSE) {
        if (network_is_udp(ends))
            klogger(UDP_DISCONNECT, (u64)sk, pid, ends->lport);
        return;
    }
    klogger(SOCKET_ASSIGNADDR, (u64)sk, ends->laddr, ends->raddr, ends->protocol, pid, ends->lport,
            ends->rport);
    klogger(SOCKET_CONNECT, (u64)sk, ends->laddr, ends->raddr, ends->protocol, result, pid,
            ends->lport, ends->rport);
    if (network_is_udp(ends))
        klogger(UDP_CONNECT, (u64)sk, ends->laddr, ends->raddr, pid, ends->lport, ends->rport);
}

/* Sockets of the kernel are not logged: no system call creates them. */
static __always_inline void network_log_close(void *ctx, struct klogger_cpu *cpu, struct sock *sk) {
    struct network_ends ends = {};

    if (!sk || !network_kind_of(0, sk, &ends))
        return;
#ifdef HAVE_sock_sk_kern_sock
    u64 bits = 0;

    bpf_probe_read_kernel(&bits, BITS_sock_sk_kern_sock_SIZE,
                          (u8 *)sk + BITS_sock_sk_kern_sock_OFFSET);
    if (BITS_sock_sk_kern_sock(bits))
        return;
#endif
    klogger(SOCKET_CLOSE, (u64)sk, ends.family, ends.type, ends.protocol, network_pid());
}

/* bytes: the result of the call, or, where a probe is at its begin, the requested size. */
static __always_inline void network_log_send_call(void *ctx, struct klogger_cpu *cpu,
                                                  const int direct, struct sock *sk, int bytes) {
    struct network_ends ends = {};
    u32 pid = network_pid();

    if (bytes < 0 || !network_kind_of(direct, sk, &ends))
        return;
    klogger(SOCKET_WRITE, (u64)sk, ends.protocol, bytes, pid, ends.lport, ends.rport);
    if (network_is_tcp(&ends))
        klogger(TCP_SEND, (u64)sk, bytes, pid, ends.lport, ends.rport);
    else if (network_is_udp(&ends))
        klogger(UDP_SEND, (u64)sk, bytes, pid, ends.lport, ends.rport);
}

/* On a stream no bytes are the end of file; a datagram may be empty. */
static __always_inline void network_log_receive_call(void *ctx, struct klogger_cpu *cpu,
                                                     const int direct, struct sock *sk, int bytes,
                                                     u32 flags) {
    struct network_ends ends = {};
    u32 pid = network_pid();

    if (bytes < 0 || (flags & NETWORK_MSG_PEEK) || !network_kind_of(direct, sk, &ends))
        return;
    if (!bytes && ends.type == NETWORK_STREAM)
        return;
    if (network_is_tcp(&ends)) {
        if (flags & NETWORK_MSG_OOB)
            klogger(TCP_RECV_URGENTDATA, (u64)sk, bytes, pid, ends.lport, ends.rport);
        else
            klogger(TCP_RECEIVE, (u64)sk, bytes, pid, ends.lport, ends.rport);
    } else if (network_is_udp(&ends)) {
        klogger(UDP_RECEIVE, (u64)sk, bytes, pid, ends.lport, ends.rport);
    }
    klogger(SOCKET_RECEIVE, (u64)sk, ends.protocol, bytes, pid, ends.lport, ends.rport);
}

/* The kind of a segment: the first of these that holds, else data. */
#define NETWORK_IS_SYN(tcp)    (((tcp).flags & (NETWORK_SYN | NETWORK_ACK)) == NETWORK_SYN)
#define NETWORK_IS_SYNACK(tcp) ((tcp).flags & NETWORK_SYN)
#define NETWORK_IS_ACK(tcp, packet)                                                                \
    (!(packet)->payload && !((tcp).flags & (NETWORK_FIN | NETWORK_RST)))

static __always_inline void network_log_sent(void *ctx, struct klogger_cpu *cpu, const int direct,
                                             struct sk_buff *skb, struct network_packet *packet) {
    struct net_device *device = READ(direct, skb, dev);
    struct sock *sk = READ(direct, skb, sk);
    struct network_tcp tcp;
    u32 state = sk ? READ(0, sk, __sk_common.skc_state) : NETWORK_CLOSE;
    u64 owner = sk ? network_owner(sk, state) : 0;
    u32 protocol = packet->protocol;
    u32 payload = packet->payload;

    if (network_tcp_of(packet, &tcp)) {
        struct network_tuple tuple = {};
        u32 seq, ack, window;

        tuple.laddr[0] = packet->saddr[0];
        tuple.laddr[1] = packet->saddr[1];
        tuple.raddr[0] = packet->daddr[0];
        tuple.raddr[1] = packet->daddr[1];
        tuple.lport = bpf_ntohs(tcp.source);
        tuple.rport = bpf_ntohs(tcp.target);
        if (state != NETWORK_CLOSE && state != NETWORK_TIME_WAIT && state != NETWORK_LISTEN &&
            state != NETWORK_NEW_SYN_RECV) {
            tuple.net = (u64)READ(0, device, nd_net.net);
            network_store(&tuple, owner);
        }
        seq = bpf_ntohl(tcp.seq);
        ack = bpf_ntohl(tcp.ack);
        window = bpf_ntohs(tcp.window);
        if (NETWORK_IS_SYN(tcp))
            klogger(TCP_SENDSYN, owner, (u64)skb, packet->saddr, packet->daddr, seq, ack,
                    packet->payload, tuple.lport, tuple.rport, window, tcp.flags);
        else if (NETWORK_IS_SYNACK(tcp))
            klogger(TCP_SENDSYNACK, owner, (u64)skb, packet->saddr, packet->daddr, seq, ack,
                    packet->payload, tuple.lport, tuple.rport, window, tcp.flags);
        else if (NETWORK_IS_ACK(tcp, packet))
            klogger(TCP_SENDACK, owner, (u64)skb, packet->saddr, packet->daddr, seq, ack,
                    packet->payload, tuple.lport, tuple.rport, window, tcp.flags);
        else
            klogger(TCP_SENDPACKET, owner, (u64)skb, packet->saddr, packet->daddr, seq, ack,
                    packet->payload, tuple.lport, tuple.rport, window, tcp.flags);
    } else if ((protocol == NETWORK_ICMP || protocol == NETWORK_ICMPV6) && packet->transport) {
        u8 head[2];
        u32 type, code;

        bpf_probe_read_kernel(head, sizeof(head), packet->transport);
        type = network_icmp_type(packet, head[0]);
        code = network_icmp_code(type, head[1]);
        if (network_is_reply(type))
            klogger(ICMP_REPLY, (u64)skb, packet->saddr, packet->daddr, type, code, payload,
                    network_pid());
        else
            klogger(ICMP_SEND, (u64)skb, packet->saddr, packet->daddr, type, code, payload,
                    network_pid());
    }
    klogger(IP_SENDPACKET, owner, (u64)skb, packet->saddr, packet->daddr, protocol, packet->id,
            packet->fragment, packet->offset, packet->size, packet->total, READ(0, device, mtu),
            network_pid());
}

static __always_inline void network_log_received(void *ctx, struct klogger_cpu *cpu,
                                                 const int direct, struct sk_buff *skb,
                                                 struct network_packet *packet) {
    struct net_device *device = READ(direct, skb, dev);
    struct network_tcp tcp;
    u32 protocol = packet->protocol;

    klogger(IP_RECEIVEPACKET, (u64)skb, packet->saddr, packet->daddr, protocol, packet->id,
            packet->fragment, packet->offset, packet->size, packet->total, READ(0, device, mtu),
            network_pid());
    if (network_tcp_of(packet, &tcp)) {
        struct network_tuple tuple = {};
        u32 seq, ack, window;
        u16 lport = bpf_ntohs(tcp.target), rport = bpf_ntohs(tcp.source);
        u64 owner;

        tuple.laddr[0] = packet->daddr[0];
        tuple.laddr[1] = packet->daddr[1];
        tuple.raddr[0] = packet->saddr[0];
        tuple.raddr[1] = packet->saddr[1];
        tuple.net = (u64)READ(0, device, nd_net.net);
        tuple.lport = lport;
        tuple.rport = rport;
        owner = network_find(&tuple);
        seq = bpf_ntohl(tcp.seq);
        ack = bpf_ntohl(tcp.ack);
        window = bpf_ntohs(tcp.window);
        if (NETWORK_IS_SYN(tcp))
            klogger(TCP_RECVSYN, owner, (u64)skb, packet->daddr, packet->saddr, seq, ack,
                    packet->payload, lport, rport, window, tcp.flags);
        else if (NETWORK_IS_SYNACK(tcp))
            klogger(TCP_RECVSYNACK, owner, (u64)skb, packet->daddr, packet->saddr, seq, ack,
                    packet->payload, lport, rport, window, tcp.flags);
        else if (NETWORK_IS_ACK(tcp, packet))
            klogger(TCP_RECVACK, owner, (u64)skb, packet->daddr, packet->saddr, seq, ack,
                    packet->payload, lport, rport, window, tcp.flags);
        else
            klogger(TCP_RECEIVEPACKET, owner, (u64)skb, packet->daddr, packet->saddr, seq, ack,
                    packet->payload, lport, rport, window, tcp.flags);
    } else if ((protocol == NETWORK_ICMP || protocol == NETWORK_ICMPV6) && packet->transport) {
        u8 head[2];
        u32 type;

        bpf_probe_read_kernel(head, sizeof(head), packet->transport);
        type = network_icmp_type(packet, head[0]);
        klogger(ICMP_RECEIVE, (u64)skb, packet->saddr, packet->daddr, type,
                network_icmp_code(type, head[1]), packet->payload);
    }
}

/* queue: that of the socket if frames were pending; its first buffer becomes the packet. */
static __always_inline void network_log_push(void *ctx, struct klogger_cpu *cpu, struct sock *sk,
                                             u64 queue) {
    struct network_ends ends = {};
    struct sk_buff *skb;
    u32 length, pid = network_pid();

    if (queue != (u64)&sk->sk_write_queue || !network_kind_of(0, sk, &ends))
        return;
    skb = READ(0, sk, sk_write_queue.next);
    if ((u64)skb == queue)
        return;
    length = READ(0, (struct inet_sock *)sk, cork.base.length);
    if (network_is_udp(&ends))
        klogger(UDP_PUSHPENDINGFRAMES, (u64)sk, (u64)skb, length, pid, ends.lport, ends.rport);
    else if (ends.protocol == NETWORK_ICMP || ends.protocol == NETWORK_ICMPV6)
        klogger(ICMP_PUSHPENDINGFRAMES, (u64)sk, (u64)skb, length, pid);
    klogger(IP_PUSHPENDINGFRAMES, (u64)sk, (u64)skb, ends.protocol, length, pid);
}

static __always_inline void network_log_flush(void *ctx, struct klogger_cpu *cpu, struct sock *sk) {
    struct network_ends ends = {};
    u32 length, pid = network_pid();

    if (!network_kind_of(0, sk, &ends))
        return;
    length = READ(0, (struct inet_sock *)sk, cork.base.length);
    if (network_is_udp(&ends))
        klogger(UDP_FLUSHPENDINGFRAMES, (u64)sk, length, pid, ends.lport, ends.rport);
    klogger(IP_FLUSHPENDINGFRAMES, (u64)sk, ends.protocol, length, pid);
}
