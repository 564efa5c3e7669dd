/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The connections of the schema magnet: by socket, and by the ends of a received packet.
 *
 * Their ids are those of tcp_identity.h, so of the schema tcp too. A UDP socket has one in the same
 * map: no tracepoint tells when it is closed, so its inode tells whether it is still the same.
 */
#define MAGNET_NO_PROTOCOL 0 /* the socket is not one of TCP or UDP */
#define PROTOCOL_UDP       17
#define TYPE_DATAGRAM      2
#define MAGNET_NOT_NAMED   (~0ull) /* in `named`, with an id of 0: the filters leave it out */

/* Why an event is not logged. */
#define MAGNET_FILTERED 1
#define MAGNET_NO_ROOM  2 /* for its connection in the map */

/* Counts an event that is not logged. */
#define MAGNET_LEFT_OUT(event, why)                                                                \
    do {                                                                                           \
        if ((why) == MAGNET_NO_ROOM)                                                               \
            klogger_left_out(event, table_full);                                                   \
        else                                                                                       \
            klogger_left_out(event, filtered);                                                     \
    } while (0)

/* Where received packets find their connection: by its ends, as MAGNET_KEY() makes them of struct
 * endpoints; of a UDP socket without a peer only the port, and the address that it is bound to.
 */
struct magnet_place {
    u64 id;
    u64 sk;
};

BPF_TABLE("hash", struct endpoints, struct magnet_place, magnet_places, KLOGGER_CONNECTIONS);
/* Connections without their socket: in TIME_WAIT. */
BPF_TABLE("lru_hash", struct endpoints, u64, magnet_closed, 16384);

/* IPv6 sockets can have IPv4 packets. */
#define MAGNET_KEY(ends, protocol)                                                                 \
    do {                                                                                           \
        (ends)->family = protocol;                                                                 \
        (ends)->state = 0;                                                                         \
    } while (0)

/* What is known of an event's connection. */
struct magnet_who {
    u64 id;       /* 0: unknown */
    u32 protocol; /* of the socket */
    u32 left_out; /* MAGNET_FILTERED, MAGNET_NO_ROOM */
};

static __always_inline void magnet_ends(const int direct, struct sock *sk, struct endpoints *ends) {
    ends->family = READ(direct, sk, __sk_common.skc_family);
    ends->lport = READ(direct, sk, __sk_common.skc_num);
    ends->rport = bpf_ntohs(READ(direct, sk, __sk_common.skc_dport));
    ends->netns = cookie_of(direct, READ(direct, sk, __sk_common.skc_net.net));
#ifdef HAVE_sock_common_skc_v6_daddr
    if (ends->family == FAMILY_V6) {
        bpf_probe_read_kernel(ends->laddr, 16, (void *)&sk->__sk_common.skc_v6_rcv_saddr);
        bpf_probe_read_kernel(ends->raddr, 16, (void *)&sk->__sk_common.skc_v6_daddr);
        return;
    }
#endif
    map_v4(ends->laddr, READ(direct, sk, __sk_common.skc_rcv_saddr));
    map_v4(ends->raddr, READ(direct, sk, __sk_common.skc_daddr));
}

/* The protocol of a socket that is a struct tcp_sock or a UDP socket; else MAGNET_NO_PROTOCOL. */
static __always_inline u32 magnet_protocol(const int direct, struct sock *sk) {
    u32 family = READ(direct, sk, __sk_common.skc_family);
    u32 state = READ(direct, sk, __sk_common.skc_state);
    u32 protocol, type;

    if ((family != FAMILY_V4 && family != FAMILY_V6) || state == STATE_TIME_WAIT ||
        state == STATE_NEW_SYN_RECV || state == STATE_LISTEN)
        return MAGNET_NO_PROTOCOL;
    protocol = READ(direct, sk, sk_protocol);
    type = READ(direct, sk, sk_type);
    return (protocol == PROTOCOL_TCP && type == TYPE_STREAM) ||
                   (protocol == PROTOCOL_UDP && type == TYPE_DATAGRAM)
               ? protocol
               : MAGNET_NO_PROTOCOL;
}

/* The inode of a socket; 0: closed. */
static __always_inline u32 magnet_inode(const int direct, struct sock *sk) {
    struct socket *socket = READ(direct, sk, sk_socket);

    return socket ? READ(0, (struct socket_alloc *)socket, vfs_inode.i_ino) : 0;
}

static __always_inline int magnet_shares_port(struct sock *sk) {
    u8 bits = 0;

    bpf_probe_read_kernel(&bits, 1, (u8 *)sk + BITS_sock_common_skc_reuseport_OFFSET);
    return BITS_sock_common_skc_reuseport(bits);
}

/* Stores the ends of a connection, so that received packets find it; ends becomes the key. */
static __always_inline void magnet_store(struct sock *sk, u32 protocol, u64 id,
                                         struct endpoints *ends) {
    struct magnet_place place = {.id = id, .sk = (u64)sk};

    if (!ends->rport) {
        /* Of several sockets at a port, any could be the receiver. */
        if (magnet_shares_port(sk))
            return;
        ends->raddr[0] = ends->raddr[1] = 0;
        if (ends->laddr[1] == MAPPED_PREFIX)
            ends->laddr[1] = 0; /* 0.0.0.0 */
    }
    MAGNET_KEY(ends, protocol);
    magnet_places.update(ends, &place);
}

/* Logs MAGNET_CONNECTION. tp is null for UDP. */
static __always_inline void magnet_name(void *ctx, struct klogger_cpu *cpu, const int direct,
                                        struct sock *sk, u32 protocol,
                                        struct connection *connection, struct endpoints *ends) {
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    int is_tcp = protocol == PROTOCOL_TCP;

    klogger(MAGNET_CONNECTION, connection->id, ends->laddr, ends->raddr, ends->netns,
            connection->pid, connection->comm, protocol, ends->lport, ends->rport,
            is_tcp ? READ(0, tp, snd_una) : 0, is_tcp ? READ(0, tp, snd_nxt) : 0,
            is_tcp ? READ(0, tp, rcv_nxt) : 0, is_tcp ? READ(0, tp, copied_seq) : 0);
}

/* Whether the filters leave a connection out. followed: its owner is a process of --pid. */
static __always_inline int magnet_leaves_out(const struct filter_settings *settings, u32 filters,
                                             struct sock *sk, struct endpoints *ends,
                                             int followed) {
    if (!filter_ports_of(filters, ends))
        return 1;
    if (!(filters & ~FILTER_ANY_PORTS))
        return 0;
    return !filter_addresses_of(filters, ends) || ((filters & FILTER_PIDS) && !followed) ||
           ((filters & FILTER_CGROUPS) && (!sk || !in_cgroup(sk, settings->cgroup_level))) ||
           ((filters & FILTER_USERS) && (!sk || !has_user(sk)));
}

/* What the identity cache knows of a socket; returns 0 if that is nothing. */
static __always_inline int magnet_recall(struct sock *sk, struct magnet_who *who) {
    u64 number = number_of((u64)sk), before, id, named;
    const struct known *row = known_row(number);

    if (!row)
        return 0;
    before = *(const volatile u64 *)&row->sk;
    row = row_after(row, before);
    if (before != number)
        return 0;
    id = *(const volatile u64 *)&row->id;
    named = *(const volatile u64 *)&row->named;
    row = row_after(row, id | named);
    if (named != (id ? id : MAGNET_NOT_NAMED) || *(const volatile u64 *)&row->sk != number)
        return 0;
    who->protocol = PROTOCOL_TCP;
    who->id = id;
    who->left_out = !id;
    return 1;
}

/*
 * Finds a socket's connection, or begins it, as identify() of tcp_snapshot.h does: by the identity
 * cache, where tcp_known.h keeps what is known of TCP sockets. owner: the current process is the
 * owner. packet: a packet of the socket, whose ends the filters compare; null: the socket's.
 */
static __always_inline void magnet_identify(void *ctx, struct klogger_cpu *cpu, const int direct,
                                            struct sock *sk, const int owner,
                                            struct endpoints *packet, struct magnet_who *who) {
    u64 key = (u64)sk, number = number_of(key);
    struct filter_settings *settings;
    struct connection *connection;
    struct endpoints ends = {};
    u32 zero = 0, filters, inode = 0, pid, ports;
    struct known *row;
    int followed;
    u64 named;

    who->id = 0;
    who->left_out = 0;
    if (magnet_recall(sk, who))
        return;
    row = known_row(number);
    if (!row)
        return;
    who->protocol = magnet_protocol(direct, sk);
    settings = filter_settings.lookup(&zero);
    if (who->protocol == MAGNET_NO_PROTOCOL || !settings)
        return;
    filters = settings->flags;
    magnet_ends(direct, sk, &ends);
    connection = connections.lookup(&key);
    if (who->protocol == PROTOCOL_UDP) {
        inode = magnet_inode(direct, sk);
        if (connection && inode && connection->inode != inode)
            connection = new_identity(key, connection);
    }
    /* A connection has an owner only if that is followed: it may have ended meanwhile. */
    pid = owner ? bpf_get_current_pid_tgid() >> 32 : 0;
    followed = owner ? filter_pid(pid) : connection && connection->pid;
    if (filters && magnet_leaves_out(settings, filters, sk, packet ? packet : &ends, followed)) {
        who->left_out = MAGNET_FILTERED;
        if (who->protocol == PROTOCOL_TCP && !(filters & FILTER_PIDS) && ends.rport &&
            acquire_row(row, number)) {
            row->id = 0;
            row->named = MAGNET_NOT_NAMED;
            release_row(row, number);
        }
        return;
    }
    if (!connection) {
        u32 state = READ(direct, sk, __sk_common.skc_state);

        if (who->protocol == PROTOCOL_TCP && state == STATE_CLOSE)
            return;
        connection = new_identity(key, 0);
        if (!connection) {
            who->left_out = MAGNET_NO_ROOM;
            return;
        }
    }
    number_connection(connection);
    who->id = connection->id;
    if (inode)
        connection->inode = inode;
    if (owner && connection->pid != pid)
        note_owner(0, connection);
    if (!ends.lport || (who->protocol == PROTOCOL_TCP && !ends.rport))
        return;
    ports = (u32)ends.lport << 16 | ends.rport;
    named = *(volatile u64 *)&connection->named;
    if (named != who->id || (who->protocol == PROTOCOL_UDP && connection->udp_ports != ports)) {
        connection->udp_ports = ports;
        remember_ends(connection, &ends);
        if (named != who->id &&
            __sync_val_compare_and_swap(&connection->named, named, who->id) == named)
            magnet_name(ctx, cpu, direct, sk, who->protocol, connection, &ends);
        magnet_store(sk, who->protocol, who->id, &ends);
    }
    if (who->protocol == PROTOCOL_TCP && !(filters & FILTER_PIDS)) {
        cache_identity(row, number, key, ports, owner, connection);
        row->dequeued = row->started = 0;
        row->named = who->id;
    }
}

/* The connection's socket goes away; its ends stay known until they begin another connection. */
static __always_inline void magnet_close(const int direct, struct sock *sk) {
    u64 key = (u64)sk;
    struct connection *connection = connections.lookup(&key);
    struct endpoints ends = {};
    struct magnet_place *place;
    u64 id;

    if (!connection)
        return;
    ends.lport = connection->lport;
    ends.rport = connection->rport;
    __builtin_memcpy(ends.laddr, connection->laddr, 16);
    __builtin_memcpy(ends.raddr, connection->raddr, 16);
    ends.netns = cookie_of(direct, READ(direct, sk, __sk_common.skc_net.net));
    MAGNET_KEY(&ends, PROTOCOL_TCP);
    id = connection->id;
    place = magnet_places.lookup(&ends);
    if (!place || place->id != id)
        return;
    magnet_places.delete(&ends);
    magnet_closed.update(&ends, &id);
}

/*
 * The connection of a packet's ends, which are a key. begins: it is a SYN without ACK, so what had
 * these ends before is over.
 */
static __always_inline u64 magnet_find(struct endpoints *ends, int begins) {
    struct magnet_place *place = magnet_places.lookup(ends);
    u64 *closed;

    if (place)
        return place->id;
    closed = magnet_closed.lookup(ends);
    if (!closed)
        return 0;
    if (!begins)
        return *closed;
    magnet_closed.delete(ends);
    return 0;
}

/* The UDP socket of received packets: one that is connected, or at that address, or at that port.
 * A place keeps what was there: ask the socket. 0: unknown. It changes the key.
 */
static __always_inline u64 magnet_find_udp(struct endpoints *ends) {
    struct magnet_place *place = magnet_places.lookup(ends);
    struct connection *connection;
    struct sock *sk;
    u64 key;

    if (!place) {
        ends->raddr[0] = ends->raddr[1] = 0;
        ends->rport = 0;
        place = magnet_places.lookup(ends);
    }
    if (!place) {
        ends->laddr[0] = ends->laddr[1] = 0;
        place = magnet_places.lookup(ends);
    }
    if (!place)
        return 0;
    key = place->sk;
    sk = (struct sock *)key;
    connection = connections.lookup(&key);
    if (!connection || connection->id != place->id ||
        READ(0, sk, __sk_common.skc_num) != ends->lport || magnet_inode(0, sk) != connection->inode)
        return 0;
    return place->id;
}
