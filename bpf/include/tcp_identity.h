/* SPDX-License-Identifier: GPL-2.0-only */
/* Which connection a socket is, and its ends: for tcp.bpf.c, whose flags it uses. */
struct connection {
    u64 id;
    u32 pid;
    u32 watching;
    u8 comm[16];
    /* The ends as last seen whole: the kernel wipes them when a connect fails or the owner resets.
     */
    u64 laddr[2];
    u64 raddr[2];
    u16 lport;
    u16 rport;
    u32 unused;
    struct klogger_watch watch;
};

BPF_TABLE("hash", u64, struct connection, connections, KLOGGER_CONNECTIONS);
BPF_ARRAY(next_connection, u64, 1);
/* Existing sockets of the process that --pid names: inode -> pid, filled by collector/existing.py.
 */
BPF_HASH(existing_inodes, u64, u32, KLOGGER_INODES);

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

/* Fills in ends; skc is readable: direct, or a copy of ours of the socket at sk. */
static __always_inline void endpoints_of(const int direct, struct sock_common *skc, struct sock *sk,
                                         const int full, struct endpoints *ends) {
    struct net *net = GET(skc, skc_net.net);

    ends->lport = GET(skc, skc_num);
    ends->rport = bpf_ntohs(GET(skc, skc_dport));
    ends->family = GET(skc, skc_family);
    if (full && !ends->lport)
        ends->lport = bpf_ntohs(READ(0, (struct inet_sock *)sk, inet_sport));
    if (ends->family == FAMILY_V6) {
        bpf_probe_read_kernel(ends->laddr, 16,
                              (void *)&((struct sock_common *)sk)->skc_v6_rcv_saddr);
        bpf_probe_read_kernel(ends->raddr, 16, (void *)&((struct sock_common *)sk)->skc_v6_daddr);
    } else {
        map_v4(ends->laddr, GET(skc, skc_rcv_saddr));
        map_v4(ends->raddr, GET(skc, skc_daddr));
    }
    ends->netns = cookie_of(direct, net);
}

/* The dropped or answered packet's ends, seen from here: it came from the remote side. */
static __always_inline int endpoints_of_packet(struct sk_buff *skb, struct endpoints *ends) {
    u8 *head = READ(0, skb, head);
    u16 transport = READ(0, skb, transport_header);
    u16 network = READ(0, skb, network_header);
    u16 ports[2];
    u32 v4[2];
    u8 version = 0;

    if (transport == 0xffff || network == 0xffff)
        return 0;
    bpf_probe_read_kernel(ports, sizeof(ports), head + transport);
    bpf_probe_read_kernel(&version, 1, head + network);
    ends->rport = bpf_ntohs(ports[0]);
    ends->lport = bpf_ntohs(ports[1]);
    if (version >> 4 == 6) {
        ends->family = FAMILY_V6;
        bpf_probe_read_kernel(ends->raddr, 16, head + network + 8);
        bpf_probe_read_kernel(ends->laddr, 16, head + network + 24);
    } else {
        ends->family = FAMILY_V4;
        bpf_probe_read_kernel(v4, sizeof(v4), head + network + 12);
        map_v4(ends->raddr, v4[0]);
        map_v4(ends->laddr, v4[1]);
    }
    ends->state = 0;
    ends->netns = 0;
#ifdef HAVE_net_device_nd_net
    struct net_device *device = READ(0, skb, dev);

    if (device)
        ends->netns = cookie_of(0, READ(0, device, nd_net.net));
#endif
    return 1;
}

static __always_inline int in_cgroup(struct sock *sk, u32 level) {
#ifdef HAVE_sock_sk_cgrp_data
    struct cgroup *group = READ(0, sk, sk_cgrp_data.cgroup);
    struct kernfs_node *node = 0;
    u64 id = 0;

    if (!group || level > 15 || READ(0, group, level) < (int)level)
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

static __always_inline u64 new_id(void) {
    u32 zero = 0;
    u64 *next = next_connection.lookup(&zero);

    return next ? __sync_fetch_and_add(next, 1) + 1 : 0;
}

static __always_inline struct connection *connection_of(u64 key, const u32 flags) {
    struct connection *known = connections.lookup(&key);
    struct connection fresh = {};

    if (known && !(flags & FRESH))
        return known;
    fresh.id = new_id();
    if (flags & FRESH)
        connections.update(&key, &fresh);
    else
        connections.insert(&key, &fresh);
    return connections.lookup(&key);
}

static __always_inline void remember_ends(struct connection *connection, struct endpoints *ends) {
    if (!ends->lport || !ends->rport ||
        (connection->lport == ends->lport && connection->rport == ends->rport))
        return;
    connection->lport = ends->lport;
    connection->rport = ends->rport;
    __builtin_memcpy(connection->laddr, ends->laddr, 16);
    __builtin_memcpy(connection->raddr, ends->raddr, 16);
}

static __always_inline void recall_ends(u64 key, struct endpoints *ends) {
    struct connection *known = ends->rport ? 0 : connections.lookup(&key);

    if (!known || !known->rport)
        return;
    ends->lport = known->lport;
    ends->rport = known->rport;
    __builtin_memcpy(ends->laddr, known->laddr, 16);
    __builtin_memcpy(ends->raddr, known->raddr, 16);
}
