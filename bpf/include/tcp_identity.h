/* SPDX-License-Identifier: GPL-2.0-only */
/* The identity of a socket's connection, and its ends: for tcp.bpf.c and magnet.bpf.c. */
#define STATE_ESTABLISHED  1
#define STATE_SYN_SENT     2
#define STATE_SYN_RECV     3
#define STATE_FIN_WAIT1    4
#define STATE_FIN_WAIT2    5
#define STATE_TIME_WAIT    6
#define STATE_CLOSE        7
#define STATE_CLOSE_WAIT   8
#define STATE_LAST_ACK     9
#define STATE_LISTEN       10
#define STATE_CLOSING      11
#define STATE_NEW_SYN_RECV 12
#define PROTOCOL_TCP       6
#define TYPE_STREAM        1

#ifndef KLOGGER_CONNECTIONS
/* Without the schema tcp (collector/plan/tcp_codegen.py). */
#define KLOGGER_CONNECTIONS 131072
#define KLOGGER_INODES      16384
#endif

#ifndef KLOGGER_LISTENERS
#define KLOGGER_LISTENERS 1
#endif

struct connection {
    u64 id;
    u64 named; /* the id that MAGNET_CONNECTION has named */
    u32 pid;
    u32 inode; /* of a UDP socket: whether it is still the same */
    u64 comm[2];
    /* The last complete ends: the kernel clears them in the socket when a connect fails, and when
     * the owner resets the connection.
     */
    u64 laddr[2];
    u64 raddr[2];
    u16 lport;
    u16 rport;
    u32 udp_ports; /* those that the map magnet_places has */
#if KLOGGER_WATCHING
    struct klogger_watch watch;
#endif
};

BPF_TABLE("hash", u64, struct connection, connections, KLOGGER_CONNECTIONS);
BPF_ARRAY(next_connection, u64, 1);
/* Always zero; it is too large for the stack. */
BPF_ARRAY(blank_connection, struct connection, 1);
/* Open sockets of the processes of --pid: inode -> pid. collector/loader/following.py fills it. */
#define SHARED_INODE 0x80000000u /* a process that is not followed has it too */
BPF_HASH(existing_inodes, u64, u32, KLOGGER_INODES);

/*
 * bpf_skc_to_tcp_sock(): a struct sock as the struct tcp_sock that it is, or null. Where the kernel
 * has bpf_rdonly_cast(), collector/loader/bytecode.py replaces the call by that one, which the
 * verifier makes a move. It checks nothing, and needs the second argument.
 */
static struct tcp_sock *(*as_tcp_sock)(struct sock *sk, u32 type) = (void *)137;
#define AS_TCP(sk) as_tcp_sock(sk, 0x74637073)

/*
 * The same socket, of any kind, as the verifier need not trust it: for each pointer that is read
 * from a trusted one, Linux 6.4 and later look up names among all types. Without
 * bpf_rdonly_cast() a move takes the place of the call.
 */
static struct sock_common *(*as_untrusted)(struct sock_common *skc, u32 type) = (void *)0x6b6c6200;
#define AS_UNTRUSTED(skc) as_untrusted(skc, 0x74637073)

/* Where processes of --pid listen: the handshake and the first data of a connection come before
 * anybody accepts it. The value counts the listeners: with SO_REUSEPORT there are several.
 */
struct listener {
    u64 netns;
    u64 laddr[2];
    u64 lport;
};

BPF_HASH(followed_listeners, struct listener, u64, KLOGGER_LISTENERS);

static __always_inline void map_v4(u64 *address, u32 v4) {
    address[0] = 0;
    address[1] = (u64)v4 << 32 | MAPPED_PREFIX;
}

static __always_inline u64 cookie_of(const int direct, struct net *net) {
#ifdef HAVE_net_net_cookie
    if (net)
        return READ(direct, net, net_cookie);
#endif
    return 0;
}

/* Restores the ends that the kernel has cleared in a closed socket. Returns whether it has restored
 * the addresses.
 */
static __always_inline int restore_ends(const int direct, struct sock *sk, int fresh,
                                        struct endpoints *ends) {
    struct connection *known;
    u64 key = (u64)sk;

    /* Requests and time-wait sockets lack this member, but always have their port. */
    if (!ends->lport) {
        struct inet_sock *inet = direct ? (struct inet_sock *)AS_TCP(sk) : (struct inet_sock *)sk;

        if (inet)
            ends->lport = bpf_ntohs(READ(direct, inet, inet_sport));
    }
    if (ends->rport || ends->state != STATE_CLOSE || fresh)
        return 0;
    known = connections.lookup(&key);
    if (!known || !known->rport)
        return 0;
    ends->lport = known->lport;
    ends->rport = known->rport;
    __builtin_memcpy(ends->laddr, known->laddr, 16);
    __builtin_memcpy(ends->raddr, known->raddr, 16);
    return 1;
}

/* Fills in family, addresses and namespace. skc is readable by plain loads. */
static __always_inline void read_ends(const int direct, struct sock_common *skc, int restored,
                                      struct endpoints *ends) {
    ends->family = GET(skc, skc_family);
    ends->netns = cookie_of(direct, GET(direct ? AS_UNTRUSTED(skc) : skc, skc_net.net));
    if (restored)
        return;
    if (ends->family == FAMILY_V6) {
        const volatile u64 *local = (const volatile u64 *)(void *)&skc->skc_v6_rcv_saddr;
        const volatile u64 *remote = (const volatile u64 *)(void *)&skc->skc_v6_daddr;

        ends->laddr[0] = local[0];
        ends->laddr[1] = local[1];
        ends->raddr[0] = remote[0];
        ends->raddr[1] = remote[1];
    } else {
        map_v4(ends->laddr, GET(skc, skc_rcv_saddr));
        map_v4(ends->raddr, GET(skc, skc_daddr));
    }
}

static __always_inline int in_cgroup(struct sock *sk, u32 level) {
#ifdef HAVE_sock_sk_cgrp_data
    struct cgroup *group = READ(0, sk, sk_cgrp_data.cgroup);
    struct kernfs_node *node = 0;
    u64 id = 0;

    if (!group)
        return 0;
    if (level == GROUPS_BY_NAME) {
        node = READ(0, group, kn);
        return filter_group(READ(0, node, id));
    }
    if (level > 15 || READ(0, group, level) < (int)level)
        return 0;
#if defined(HAVE_cgroup_ancestors)
    struct cgroup *ancestor = 0;

    bpf_probe_read_kernel(&ancestor, sizeof(ancestor),
                          (u8 *)group + __builtin_offsetof(struct cgroup, ancestors) + level * 8);
    if (!ancestor)
        return 0;
    node = READ(0, ancestor, kn);
    id = READ(0, node, id);
#elif defined(HAVE_cgroup_ancestor_ids)
    bpf_probe_read_kernel(
        &id, sizeof(id), (u8 *)group + __builtin_offsetof(struct cgroup, ancestor_ids) + level * 8);
#endif
    return filter_cgroup(id);
#else
    return 0;
#endif
}

/* Whether the socket is one of the users of --user. */
static __always_inline int has_user(struct sock *sk) {
    u32 user = READ(0, sk, sk_uid.val);

    return filter_users.lookup(&user) != 0;
}

static __always_inline u64 new_id(void) {
    u32 zero = 0;
    u64 *next = next_connection.lookup(&zero);

    return next ? __sync_fetch_and_add(next, 1) + 1 : 0;
}

/* Begins a new identity for the socket at key. known: the one that it has, or null. */
static __always_inline struct connection *new_identity(u64 key, struct connection *known) {
    u32 zero = 0;
    struct connection *blank;
    struct known *row;

    evict(key);
    if (known) {
        known->id = new_id();
        known->pid = 0;
#if KLOGGER_WATCHING
        known->watch.recorded = 0;
#endif
        known->comm[0] = known->comm[1] = 0;
        known->lport = known->rport = 0;
        /* Once more: another CPU may have cached the old identity since then. */
        evict(key);
        return known;
    }
    blank = blank_connection.lookup(&zero);
    row = known_row(number_of(key));
    if (!blank || !row)
        return 0;
    /* Before the insert, so that `entered` is never too low. */
    __sync_fetch_and_add(&row->entered, 1);
    if (connections.insert(&key, blank))
        __sync_fetch_and_add(&row->entered, -1);
    return connections.lookup(&key);
}

/* Sets the id of a new connection, unless another CPU has done so. */
static __always_inline void number_connection(struct connection *connection) {
    if (!*(volatile u64 *)&connection->id)
        __sync_val_compare_and_swap(&connection->id, 0, new_id());
}

/* Ends the identity of the socket at key, if it has one. */
static __always_inline void end_identity(u64 key) {
    struct known *row = known_row(number_of(key));

    evict(key);
    if (row && *(volatile u32 *)&row->entered && !connections.delete(&key))
        __sync_fetch_and_add(&row->entered, -1);
}

static __always_inline struct listener listener_at(const struct endpoints *ends) {
    return (struct listener){ends->netns, {ends->laddr[0], ends->laddr[1]}, ends->lport};
}

/* A socket of a process of --pid begins to listen. */
static __always_inline void add_listener(const struct endpoints *ends) {
    struct listener at = listener_at(ends);
    u64 none = 0, *count, *lost;
    u32 zero = 0;

    count = followed_listeners.lookup_or_try_init(&at, &none);
    if (count)
        __sync_fetch_and_add(count, 1);
    else if ((lost = unfollowed.lookup(&zero)))
        klogger_count(*lost);
}

static __always_inline void remove_listener(const struct endpoints *ends) {
    struct listener at = listener_at(ends);
    u64 *count = followed_listeners.lookup(&at);

    if (count && __sync_fetch_and_add(count, -1) == 1)
        followed_listeners.delete(&at);
}

/* Whether the listener of a new connection is one of these: at its address, or at any. */
static __always_inline int has_listener(const struct endpoints *ends) {
    struct listener at = listener_at(ends);

    if (followed_listeners.lookup(&at))
        return 1;
    at.laddr[0] = 0;
    at.laddr[1] = MAPPED_PREFIX; /* 0.0.0.0 */
    if (followed_listeners.lookup(&at))
        return 1;
    at.laddr[1] = 0; /* :: */
    return followed_listeners.lookup(&at) != 0;
}

static __always_inline void remember_ends(struct connection *connection, struct endpoints *ends) {
    u32 now = (u32)ends->lport << 16 | ends->rport;
    u32 before = (u32)connection->lport << 16 | connection->rport;

    /* One branch for both ports: the verifier checks all later code once for each branch. */
    if (now == before || (u32)ends->lport * ends->rport == 0)
        return;
    connection->lport = ends->lport;
    connection->rport = ends->rport;
    __builtin_memcpy(connection->laddr, ends->laddr, 16);
    __builtin_memcpy(connection->raddr, ends->raddr, 16);
}

/* Stores the current process as the connection's owner. */
static __always_inline void note_owner(const int direct, struct connection *connection) {
    struct caller caller;

    read_caller(direct, &caller);
    connection->pid = caller.pid;
    connection->comm[0] = caller.comm[0];
    connection->comm[1] = caller.comm[1];
}

/* Stores the identity of the socket at key in the cache, where the next event reads it without a
 * call. looked: the caller is compared already; else watch_owner() does so at the next call.
 */
static __always_inline void cache_identity(struct known *row, u64 number, u64 key, u32 ports,
                                           int looked, struct connection *connection) {
    u64 id = connection->id;
    u64 differs = (row->sk ^ number) | (row->id ^ id) | (row->ports ^ ports) |
                  (row->pid ^ connection->pid) | (row->comm[0] ^ connection->comm[0]) |
                  (row->comm[1] ^ connection->comm[1]);

    if (!differs)
        return;
    if (!acquire_row(row, number))
        return;
    row->id = id;
    row->pid = connection->pid;
    row->comm[0] = connection->comm[0];
    row->comm[1] = connection->comm[1];
    row->ports = ports;
    row->compared_at = bpf_jiffies64() - !looked;
    release_row(row, number);
    /* Another CPU may have begun a new identity before this row was visible to it. */
    if (*(volatile u64 *)&connection->id != id)
        evict(key);
}

#if KLOGGER_WATCHING
/*
 * Where the last values of a connection's watched columns are stored: in its row of the map
 * `connections`, or, while the identity cache has its socket, in the row there. An id is never used
 * again, so the values belong to the connection whose id is beside them. If another socket got the
 * row meanwhile, they are gone: then the next event is recorded.
 */
static __always_inline struct klogger_watch *watch_of(const int direct, u64 key,
                                                      struct connection *connection) {
    struct known *row = known_row(number_of(key));

    if (!row)
        return &connection->watch;
    if (row->watch.id != connection->id) {
        if (!direct || row->sk != number_of(key) || row->id != connection->id)
            return &connection->watch;
        row->watch = connection->watch;
        row->watch.id = connection->id;
        connection->watch.recorded = 0;
    }
    return &row->watch;
}
#endif

/* The identity in a record. */
struct identity {
    u64 id;
    u64 comm[2];
    u32 pid;
};

/* Reads it from the cache; 0 where the row has another socket, or other ports. */
static __always_inline int read_cached(const struct known *row, u64 number, u32 ports,
                                       struct identity *who) {
    u64 before = *(const volatile u64 *)&row->sk;
    u32 at;

    row = row_after(row, before);
    if (before != number)
        return 0;
    at = *(const volatile u32 *)&row->ports;
    who->id = *(const volatile u64 *)&row->id;
    who->comm[0] = *(const volatile u64 *)&row->comm[0];
    who->comm[1] = *(const volatile u64 *)&row->comm[1];
    who->pid = *(const volatile u32 *)&row->pid;
    row = row_after(row, at | who->id | who->comm[0] | who->comm[1] | who->pid);
    return who->id && at == ports && *(const volatile u64 *)&row->sk == number;
}
