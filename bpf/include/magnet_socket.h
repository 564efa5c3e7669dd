/* SPDX-License-Identifier: GPL-2.0-only */
/* Sockets of the schema magnet: their connections' ids, and the connections of packets. */

/* The key of a connection, to find it by a packet. */
struct magnet_tuple {
    u64 laddr[2];
    u64 raddr[2];
    u64 net;
    u16 lport;
    u16 rport;
    u32 protocol;
};

/* Ids by ends, and the ids of connections that MAGNET_CONNECTION has named. */
BPF_TABLE("lru_hash", struct magnet_tuple, u64, magnet_tuples, KLOGGER_CONNECTIONS);
BPF_TABLE("lru_hash", u64, u8, magnet_named, KLOGGER_CONNECTIONS);

/* Logs MAGNET_CONNECTION, and stores the connection's ends. */
static __always_inline void magnet_name(void *ctx, struct klogger_cpu *cpu, const int direct,
                                        struct sock *sk, u64 id) {
    struct network_ends ends = {};
    struct magnet_tuple tuple = {};
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    u64 comm[2] = {};
    u8 one = 1;

    if (!network_ends_of(direct, sk, &ends) || !ends.rport)
        return;
    if (magnet_named.insert(&id, &one))
        return;
    tuple.net = (u64)READ(direct, sk, __sk_common.skc_net.net);
    __builtin_memcpy(tuple.laddr, ends.laddr, 16);
    __builtin_memcpy(tuple.raddr, ends.raddr, 16);
    tuple.lport = ends.lport;
    tuple.rport = ends.rport;
    tuple.protocol = ends.protocol;
    magnet_tuples.update(&tuple, &id);
    bpf_get_current_comm(comm, sizeof(comm));
    klogger(MAGNET_CONNECTION, id, ends.laddr, ends.raddr,
            cookie_of(direct, READ(direct, sk, __sk_common.skc_net.net)), network_pid(), comm,
            ends.protocol, ends.lport, ends.rport, READ(0, tp, snd_una), READ(0, tp, snd_nxt),
            READ(0, tp, rcv_nxt), READ(0, tp, copied_seq));
}

/* The id of a full TCP socket's connection; 0: it has none. */
static __always_inline u64 magnet_connection(void *ctx, struct klogger_cpu *cpu, const int direct,
                                             struct sock *sk) {
    u64 key = (u64)sk, id;
    struct connection *connection = connections.lookup(&key);
    u32 state = READ(direct, sk, __sk_common.skc_state);

    if (!connection && state != STATE_CLOSE && state != STATE_LISTEN)
        connection = new_identity(key, 0);
    if (!connection)
        return 0;
    number_connection(connection);
    id = connection->id;
    if (!magnet_named.lookup(&id))
        magnet_name(ctx, cpu, direct, sk, id);
    return id;
}

/* Whether a socket is a full TCP socket, so a struct tcp_sock. */
static __always_inline int magnet_is_tcp(const int direct, struct sock *sk) {
    u32 family = READ(direct, sk, __sk_common.skc_family);
    u32 state = READ(direct, sk, __sk_common.skc_state);

    if (family != FAMILY_V4 && family != FAMILY_V6)
        return 0;
    if (state == STATE_TIME_WAIT || state == STATE_NEW_SYN_RECV || state == STATE_LISTEN)
        return 0;
    return READ(direct, sk, sk_protocol) == PROTOCOL_TCP &&
           READ(direct, sk, sk_type) == TYPE_STREAM;
}
