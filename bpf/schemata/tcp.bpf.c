/* SPDX-License-Identifier: GPL-2.0-only */
/* How the schema tcp is recorded: one snapshot function and the places that call it. */
#include "klogger.h"
#include "sock_filter.h"

/* The header generator declares the kernel types that this text names; these stand inside others.
 */
struct in6_addr;
struct inode;
struct kernfs_node;
struct minmax;
struct minmax_sample;
struct net_device;
struct netns_ipv4;
struct percpu_counter;
struct proto_accept_arg;
struct sock_cgroup_data;
struct socket_alloc;
struct tcp_options_received;
enum skb_drop_reason;

#define STATE_SYN_SENT     2
#define STATE_SYN_RECV     3
#define STATE_TIME_WAIT    6
#define STATE_CLOSE        7
#define STATE_LISTEN       10
#define STATE_NEW_SYN_RECV 12
#define PROTOCOL_TCP       6
#define TYPE_STREAM        1
#define FLAG_FIN           1
#define FLAG_SYN           2

/* How a snapshot is taken. */
#define SEGMENT  1   /* the buffer's control block is filled in */
#define PAYLOAD  2   /* callvalue is the segment's payload */
#define SEQUENCE 4   /* callvalue is the segment's sequence number */
#define OWNER    8   /* runs in the owner's context */
#define FRESH    16  /* a connection begins: a new identity whatever was there */
#define LAST     32  /* the connection's last entry */
#define CHANGES  64  /* --when-changed applies */
#define PACKET   128 /* there is no socket of the connection: the packet tells the ends */
#define UNASKED  256 /* nothing is recorded: it is for the identity and the owner alone */

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

NEEDS(bytes_acked, "tcp_sock.bytes_acked")
NEEDS(bytes_received, "tcp_sock.bytes_received")
NEEDS(bytes_sent, "tcp_sock.bytes_sent")
NEEDS(bytes_retrans, "tcp_sock.bytes_retrans")
NEEDS(pacing_rate, "sock.sk_pacing_rate")
NEEDS(netns, "net.net_cookie")
NEEDS(snd_ssthresh, "tcp_sock.snd_ssthresh")
NEEDS(min_rtt_us, "tcp_sock.rtt_min")
NEEDS(reordering, "tcp_sock.reordering")
NEEDS(delivered, "tcp_sock.delivered")
NEEDS(delivered_ce, "tcp_sock.delivered_ce")
NEEDS(sk_rmem_bytes, "sock.sk_backlog.rmem_alloc")
NEEDS(sk_wmem_bytes, "sock.sk_wmem_queued")
NEEDS(app_limited, "tcp_sock.app_limited")
NEEDS(busy_us, "tcp_sock.chrono_stat")
NEEDS(rwnd_limited_us, "tcp_sock.chrono_stat")
NEEDS(sndbuf_limited_us, "tcp_sock.chrono_stat")
NEEDS(snd_up, "tcp_sock.snd_up")
NEEDS(prior_ssthresh, "tcp_sock.prior_ssthresh")
NEEDS(high_seq, "tcp_sock.high_seq")
NEEDS(undo_marker, "tcp_sock.undo_marker")
NEEDS(tlp_high_seq, "tcp_sock.tlp_high_seq")
NEEDS(prr_delivered, "tcp_sock.prr_delivered")
NEEDS(prr_out, "tcp_sock.prr_out")
NEEDS(prior_cwnd, "tcp_sock.prior_cwnd")
NEEDS(lost, "tcp_sock.lost")
NEEDS(segs_in, "tcp_sock.segs_in")
NEEDS(segs_out, "tcp_sock.segs_out")
NEEDS(data_segs_in, "tcp_sock.data_segs_in")
NEEDS(data_segs_out, "tcp_sock.data_segs_out")
NEEDS(dsack_dups, "tcp_sock.dsack_dups")
NEEDS(reord_seen, "tcp_sock.reord_seen")
NEEDS(rcv_ooopack, "tcp_sock.rcv_ooopack")
NEEDS(rcv_ssthresh, "tcp_sock.rcv_ssthresh")
NEEDS(window_clamp, "tcp_sock.window_clamp")
NEEDS(rcv_rtt_us, "tcp_sock.rcv_rtt_est.rtt_us")
NEEDS(rcv_space, "tcp_sock.rcvq_space.space")
NEEDS(max_window, "tcp_sock.max_window")
NEEDS(sk_wmem_alloc, "sock.sk_wmem_alloc")
NEEDS(sk_forward_alloc, "sock.sk_forward_alloc")
NEEDS(sk_mark, "sock.sk_mark")
NEEDS(advmss, "tcp_sock.advmss")
NEEDS(rcv_mss, "inet_connection_sock.icsk_ack.rcv_mss")
NEEDS(probes_out, "inet_connection_sock.icsk_probes_out")
NEEDS(ecn_flags, "tcp_sock.ecn_flags")
NEEDS(sb_target_hiwat, "netns_ipv4.sysctl_tcp_wmem")
NEEDS(hiwat_fair_share, "proto.sysctl_mem proto.sockets_allocated")
NEEDS(m_clused, "proto.memory_allocated")

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

static __always_inline u32 saturate(u64 value) {
    return value > 0xffffffffull ? 0xffffffffu : value;
}

/* What the whole system shares: TCP's memory. */
static __always_inline void fill_system(const int direct, struct sock *sk, u8 *entry) {
    struct proto *prot = GET(sk, __sk_common.skc_prot);
    long limits[3] = {};
    long pages = 0;

    if (HAS(m_clused)) {
        bpf_probe_read_kernel(&pages, sizeof(pages), (void *)READ(direct, prot, memory_allocated));
        SET(m_clused, pages < 0 ? 0 : pages);
    }
    if (HAS(hiwat_fair_share)) {
        struct percpu_counter *counter = READ(direct, prot, sockets_allocated);
        long sockets = READ(0, counter, count);

        bpf_probe_read_kernel(limits, sizeof(limits), (void *)READ(direct, prot, sysctl_mem));
        if (sockets < 1)
            sockets = 1;
        SET(hiwat_fair_share, saturate((u64)limits[1] * KLOGGER_PAGE_SIZE / (u64)sockets));
    }
}

/* Times the connection spent limited, as tcp_get_info_chrono_stats() gives them. */
static __always_inline void fill_times(struct tcp_sock *tp, u8 *entry) {
#ifdef BITFIELD_tcp_sock_chrono_type
    u32 type = BITFIELD_tcp_sock_chrono_type(tp);
#else
    u32 type = GET(tp, chrono_type);
#endif
    u32 running = (u32)bpf_jiffies64() - GET(tp, chrono_start);
    u64 busy = (u64)GET(tp, chrono_stat[0]) + (type == 1 ? running : 0);
    u64 window = (u64)GET(tp, chrono_stat[1]) + (type == 2 ? running : 0);
    u64 buffer = (u64)GET(tp, chrono_stat[2]) + (type == 3 ? running : 0);

    SET(busy_us, (busy + window + buffer) * (1000000 / KLOGGER_HZ));
    SET(rwnd_limited_us, window * (1000000 / KLOGGER_HZ));
    SET(sndbuf_limited_us, buffer * (1000000 / KLOGGER_HZ));
}

/* What tcp_sndbuf_expand() would ask for; bbr alone brings a factor of its own, three. */
static __always_inline void fill_targets(const int direct, struct tcp_sock *tp, u8 *entry) {
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;
    struct tcp_congestion_ops *ops = GET(icsk, icsk_ca_ops);
    u32 cwnd = GET(tp, snd_cwnd);

    if (HAS(sb_net_target)) {
        u32 per_mss = GET(tp, rx_opt.mss_clamp);
        u32 segments = GET(tp, reordering) + 1;
        u32 factor = 2;

        if (per_mss < GET(tp, mss_cache))
            per_mss = GET(tp, mss_cache);
        per_mss += KLOGGER_MSS_OVERHEAD - 1;
        per_mss |= per_mss >> 1;
        per_mss |= per_mss >> 2;
        per_mss |= per_mss >> 4;
        per_mss |= per_mss >> 8;
        per_mss |= per_mss >> 16;
        per_mss += 1 + KLOGGER_SKB_SIZE;
        if (segments < 10)
            segments = 10;
        if (segments < cwnd)
            segments = cwnd;
        if (READ(direct, ops, sndbuf_expand))
            factor = 3;
        SET(sb_net_target, factor * segments * per_mss);
    }
    if (HAS(sb_target_hiwat)) {
        struct net *net = GET((struct sock *)tp, __sk_common.skc_net.net);
        int limits[3] = {};

        bpf_probe_read_kernel(limits, sizeof(limits), (void *)&net->ipv4.sysctl_tcp_wmem);
        SET(sb_target_hiwat, limits[2]);
    }
    if (HAS(ca_name))
        COPY(ca_name, &ops->name);
}

static __always_inline u32 highest_sacked(const int direct, struct tcp_sock *tp) {
    struct sk_buff *highest;
    u32 seq = 0;

    if (!GET(tp, sacked_out))
        return GET(tp, snd_una);
    highest = GET(tp, highest_sack);
    if (!highest)
        return GET(tp, snd_nxt);
    bpf_probe_read_kernel(&seq, sizeof(seq),
                          (u8 *)highest + __builtin_offsetof(struct sk_buff, cb));
    return seq;
}

/* Every column that the full socket tells; tp is readable, direct or a copy of ours. */
static __always_inline void fill_socket(const int direct, struct tcp_sock *tp, u8 *entry) {
    struct sock *sk = (struct sock *)tp;
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;
    u32 mss = GET(tp, mss_cache);
    u32 una = GET(tp, snd_una);
    u32 next = GET(tp, snd_nxt);
    u32 write = GET(tp, write_seq);
    u32 cwnd = GET(tp, snd_cwnd);

    SET(snd_cwnd, cwnd * mss);
    SET(snd_max, next);
    if (HAS(snd_fack))
        SET(snd_fack, highest_sacked(direct, tp));
    SET(sb_hiwat, GET(sk, sk_sndbuf));
    SET(snd_sb_cc, write - una);
    SET(rcv_sb_cc, GET(tp, rcv_nxt) - GET(tp, copied_seq));
    fill_targets(direct, tp, entry);
    fill_system(direct, sk, entry);

    SET(bytes_acked, GET(tp, bytes_acked));
    SET(bytes_received, GET(tp, bytes_received));
    SET(bytes_sent, GET(tp, bytes_sent));
    SET(bytes_retrans, GET(tp, bytes_retrans));
    SET(pacing_rate, GET(sk, sk_pacing_rate));
    SET(snd_una, una);
    SET(snd_nxt, next);
    SET(rcv_nxt, GET(tp, rcv_nxt));
    SET(write_seq, write);
    SET(copied_seq, GET(tp, copied_seq));
    SET(snd_wnd, GET(tp, snd_wnd));
    SET(rcv_wnd, GET(tp, rcv_wnd));
    SET(snd_ssthresh, GET(tp, snd_ssthresh));
    SET(snd_cwnd_segs, cwnd);
    SET(srtt_us, GET(tp, srtt_us) >> 3);
    SET(rttvar_us, GET(tp, mdev_us) >> 2);
    SET(rto_us, (u64)GET(icsk, icsk_rto) * 1000000 / KLOGGER_HZ);
    SET(min_rtt_us, GET(tp, rtt_min.s[0].v));
    SET(packets_out, GET(tp, packets_out));
    SET(retrans_out, GET(tp, retrans_out));
    SET(sacked_out, GET(tp, sacked_out));
    SET(lost_out, GET(tp, lost_out));
    SET(total_retrans, GET(tp, total_retrans));
    SET(reordering, GET(tp, reordering));
    SET(delivered, GET(tp, delivered));
    SET(delivered_ce, GET(tp, delivered_ce));
    SET(mss, mss);
    SET(sk_rmem_bytes, GET(sk, sk_backlog.rmem_alloc.counter));
    SET(sk_wmem_bytes, GET(sk, sk_wmem_queued));
    SET(sk_rcvbuf, GET(sk, sk_rcvbuf));
    SET(app_limited, GET(tp, app_limited));
    if (HAS(busy_us) || HAS(rwnd_limited_us) || HAS(sndbuf_limited_us))
        fill_times(tp, entry);
    if (HAS(ca_state))
        SET(ca_state, BITFIELD_inet_connection_sock_icsk_ca_state(icsk));

    SET(snd_up, GET(tp, snd_up));
    SET(prior_ssthresh, GET(tp, prior_ssthresh));
    SET(high_seq, GET(tp, high_seq));
    SET(undo_marker, GET(tp, undo_marker));
    SET(tlp_high_seq, GET(tp, tlp_high_seq));
    SET(prr_delivered, GET(tp, prr_delivered));
    SET(prr_out, GET(tp, prr_out));
    SET(prior_cwnd, GET(tp, prior_cwnd));
    SET(lost, GET(tp, lost));
    SET(segs_in, GET(tp, segs_in));
    SET(segs_out, GET(tp, segs_out));
    SET(data_segs_in, GET(tp, data_segs_in));
    SET(data_segs_out, GET(tp, data_segs_out));
    SET(dsack_dups, GET(tp, dsack_dups));
    SET(reord_seen, GET(tp, reord_seen));
    SET(rcv_ooopack, GET(tp, rcv_ooopack));
    SET(rcv_ssthresh, GET(tp, rcv_ssthresh));
    SET(window_clamp, GET(tp, window_clamp));
    SET(rcv_rtt_us, GET(tp, rcv_rtt_est.rtt_us) >> 3);
    SET(rcv_space, GET(tp, rcvq_space.space));
    SET(max_window, GET(tp, max_window));
    SET(notsent_bytes, write - next);
    SET(sk_wmem_alloc, GET(sk, sk_wmem_alloc.refs.counter) - 1);
    SET(sk_forward_alloc, GET(sk, sk_forward_alloc));
    SET(sk_mark, GET(sk, sk_mark));
    SET(advmss, GET(tp, advmss));
    SET(rcv_mss, GET(icsk, icsk_ack.rcv_mss));
    SET(retransmits, GET(icsk, icsk_retransmits));
    SET(backoff, GET(icsk, icsk_backoff));
    SET(probes_out, GET(icsk, icsk_probes_out));
    SET(pending, GET(icsk, icsk_pending));
    SET(ecn_flags, GET(tp, ecn_flags));
}

/* The segment's columns; returns what callvalue shall be. */
static __always_inline u32 fill_segment(struct sk_buff *skb, u8 *entry, u32 callvalue,
                                        const u32 flags) {
    struct tcp_skb_cb control = {};
    u32 seq, payload, bits;

    if (!(flags & SEGMENT) || !skb) {
        SET(seg_seq, 0);
        SET(seg_ack, 0);
        SET(seg_len, 0);
        SET(seg_flags, 0);
        return callvalue;
    }
    bpf_probe_read_kernel(&control, sizeof(control), (void *)&skb->cb);
    seq = GET(&control, seq);
    bits = GET(&control, tcp_flags);
    payload = GET(&control, end_seq) - seq;
    if (bits & FLAG_SYN)
        payload--;
    if (bits & FLAG_FIN)
        payload--;
    SET(seg_seq, seq);
    SET(seg_ack, GET(&control, ack_seq));
    SET(seg_len, payload);
    SET(seg_flags, bits);
    if (flags & PAYLOAD)
        return payload;
    if (flags & SEQUENCE)
        return seq;
    return callvalue;
}

static __always_inline void fill_ends(struct endpoints *ends, u8 *entry) {
    SET(lport, bpf_htons(ends->lport));
    SET(rport, bpf_htons(ends->rport));
    SET(netns, ends->netns);
    if (HAS(laddr)) {
        SET(laddr, ends->laddr);
    }
    if (HAS(raddr)) {
        SET(raddr, ends->raddr);
    }
    SET(state, ends->state);
    SET(family, ends->family);
}

static __always_inline int owner_wanted(u64 key, const u32 flags) {
    struct connection *known;

    if (flags & OWNER)
        return filter_pid(bpf_get_current_pid_tgid() >> 32);
    known = connections.lookup(&key);
    return known && filter_pid(known->pid);
}

/*
 * Takes a snapshot: filters, builds the record, sends it. sk may be a full socket, a request or a
 * time-wait socket; with PACKET it is a listener or null. Otherwise it is not compared with null:
 * the verifier of 6.1 learns nothing from that, and refuses the loads behind it, which then seem to
 * use different kinds of pointers.
 */
static __always_inline void snapshot(void *ctx, struct klogger_cpu *cpu, const int direct,
                                     const u32 location, struct sock *sk, struct sk_buff *skb,
                                     u32 callvalue, const u32 flags) {
    struct klogger_account *account =
        &cpu->accounts[location == LOCATION_EXISTING ? 0 : location % KLOGGER_ROWS];
    u64 common[(sizeof(struct sock_common) + 7) / 8];
    struct sock_common *skc = (struct sock_common *)sk;
    u64 key = (u64)sk;
    struct connection *connection = 0;
    struct endpoints ends = {};
    struct filter_settings *settings;
    struct klogger_slot *slot;
    struct tcp_sock *tp = 0;
    u32 zero = 0;
    const int packet = flags & PACKET;
    int mini = 0;
    u8 *entry;

    if (!packet) {
        if (!direct) {
            if (bpf_probe_read_kernel(common, sizeof(common), sk))
                return;
            skc = (struct sock_common *)common;
        }
        ends.state = GET(skc, skc_state);
        mini = ends.state == STATE_TIME_WAIT || ends.state == STATE_NEW_SYN_RECV;
        if (direct) {
            tp = bpf_skc_to_tcp_sock(sk);
            /* Raw sockets and some of netlink have the protocol's number too. */
            if (tp ? GET((struct sock *)tp, sk_type) != TYPE_STREAM : !mini)
                return;
        } else if (!mini) {
            if (READ(0, sk, sk_protocol) != PROTOCOL_TCP || READ(0, sk, sk_type) != TYPE_STREAM)
                return;
        }
    }
    if (!(flags & UNASKED))
        klogger_count(account->attempts);

    settings = filter_settings.lookup(&zero);
    if (!settings)
        return;
    if (!packet) {
        endpoints_of(direct, skc, sk, !mini, &ends);
        if (ends.state == STATE_CLOSE && !(flags & FRESH))
            recall_ends(key, &ends);
    } else if (!skb || !endpoints_of_packet(skb, &ends)) {
        klogger_count(account->filtered);
        return;
    } else if (sk) {
        ends.netns = cookie_of(0, READ(0, sk, __sk_common.skc_net.net));
    }
    if (settings->flags) {
        int wanted = filter_endpoints(settings, &ends), known = packet ? sk != 0 : 1;

        if (wanted && (settings->flags & FILTER_CGROUPS))
            wanted = known && !mini && in_cgroup(sk, settings->cgroup_level);
        if (wanted && (settings->flags & FILTER_PIDS) && location != LOCATION_EXISTING)
            wanted = known && owner_wanted(key, flags);
        if (!wanted) {
            if (!(flags & UNASKED))
                klogger_count(account->filtered);
            if (flags & (LAST | FRESH))
                connections.delete(&key);
            return;
        }
    }

    if (!packet && !mini && (ends.state != STATE_CLOSE || (flags & (FRESH | OWNER)))) {
        connection = connection_of(key, flags);
        if (!connection) {
            if (!(flags & UNASKED))
                klogger_count(account->table_full);
            return;
        }
    } else if (!packet) {
        connection = connections.lookup(&key);
    }
    if (connection)
        remember_ends(connection, &ends);
    if (connection && (flags & OWNER)) {
        connection->pid = bpf_get_current_pid_tgid() >> 32;
        bpf_get_current_comm(connection->comm, sizeof(connection->comm));
    }
    if (flags & UNASKED)
        return;

    slot = klogger_take(cpu);
    if (!slot) {
        klogger_count(account->no_slot);
        if (flags & LAST)
            connections.delete(&key);
        return;
    }
    entry = slot->record;
    if (direct)
        klogger_forget(tp);
    if (direct ? tp != 0 : !packet && !mini) {
        if (!direct) {
            bpf_probe_read_kernel(slot->copy, sizeof(struct tcp_sock), sk);
            tp = (struct tcp_sock *)slot->copy;
        }
        fill_socket(direct, tp, entry);
    } else {
        __builtin_memset(entry, 0, KLOGGER_ENTRY_SIZE);
    }
    fill_ends(&ends, entry);
    callvalue = fill_segment(skb, entry, callvalue, flags);
    SET(callvalue, callvalue);
    SET(sk_addr, key);
    SET(conn_id, connection ? connection->id : 0);
    SET(pid, connection ? connection->pid : 0);
    if (HAS(comm)) {
        if (connection)
            COPY(comm, connection->comm);
        else
            __builtin_memset(entry + KLOGGER_AT_comm, 0, 16);
    }
    if (KLOGGER_WATCHING && connection) {
        int changed = klogger_watch_changed(entry, &connection->watch);

        if ((flags & CHANGES) && !changed && connection->watching) {
            klogger_count(account->unchanged);
            klogger_give_back(slot);
            return;
        }
        connection->watching = 1;
    }
    /* After a loss the next record has to tell the change. */
    if (klogger_commit(ctx, cpu, account, slot, location) && KLOGGER_WATCHING && connection)
        connection->watching = 0;
    klogger_give_back(slot);
    if (flags & LAST)
        connections.delete(&key);
}

#if USE_segment_received
PROBE(segment_received, "SEGMENT_RECEIVED", "btf:tcp_probe raw:tcp_probe")
{
    snapshot(ctx, cpu, DIRECT, LOCATION_SEGMENT_RECEIVED, (struct sock *)ARG(0),
             (struct sk_buff *)ARG(1), 0, SEGMENT | PAYLOAD | CHANGES);
}
#endif

#if USE_retransmit
PROBE(retransmit, "RETRANSMIT", "btf:tcp_retransmit_skb raw:tcp_retransmit_skb")
{
#if ARGUMENTS_tcp_retransmit_skb > 2
    /* Since 6.18 (the argument err) it tells of those too that could not be sent. */
    if ((int)ARG(2))
        return;
#endif
    snapshot(ctx, cpu, DIRECT, LOCATION_RETRANSMIT, (struct sock *)ARG(0), (struct sk_buff *)ARG(1),
             0, SEGMENT | SEQUENCE);
}
#endif

#if USE_retransmit_synack
PROBE(retransmit_synack, "RETRANSMIT_SYNACK", "btf:tcp_retransmit_synack raw:tcp_retransmit_synack")
{
    struct request_sock *request = (struct request_sock *)ARG(1);

    snapshot(ctx, cpu, 0, LOCATION_RETRANSMIT_SYNACK, (struct sock *)request, 0,
             READ(0, request, num_retrans), 0);
}
#endif

/* Hangs on even where STATE_CHANGE is not asked for: identities begin here. */
#if USE_state_change
PROBE(state_change, "STATE_CHANGE", "btf:inet_sock_set_state raw:inet_sock_set_state")
{
    struct sock *sk = (struct sock *)ARG(0);
    u32 old = ARG(1), new = ARG(2);
    u32 flags = KLOGGER_ENABLED_STATE_CHANGE ? 0 : UNASKED;

    if (new == STATE_SYN_SENT || new == STATE_LISTEN)
        flags |= FRESH | OWNER;
    else if (new == STATE_SYN_RECV && old == STATE_LISTEN)
        flags |= FRESH;
    snapshot(ctx, cpu, DIRECT, LOCATION_STATE_CHANGE, sk, 0, new, flags);
}
#endif

#if USE_cong_state
PROBE(cong_state, "CONG_STATE", "btf:tcp_cong_state_set raw:tcp_cong_state_set")
{ snapshot(ctx, cpu, DIRECT, LOCATION_CONG_STATE, (struct sock *)ARG(0), 0, (u8)ARG(1), 0); }
#endif

#if USE_rcv_space_adjust
PROBE(rcv_space_adjust, "RCV_SPACE_ADJUST", "btf:tcp_rcv_space_adjust raw:tcp_rcv_space_adjust")
{
    struct sock *sk = (struct sock *)ARG(0);
    u32 space = 0;

    bpf_probe_read_kernel(&space, sizeof(space),
                          (void *)&((struct tcp_sock *)sk)->rcvq_space.space);
    snapshot(ctx, cpu, DIRECT, LOCATION_RCV_SPACE_ADJUST, sk, 0, space, 0);
}
#endif

#if USE_reset_sent
PROBE(reset_sent, "RESET_SENT", "btf:tcp_send_reset raw:tcp_send_reset")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct sk_buff *skb = (struct sk_buff *)ARG(1);
    u32 reason = 0;

#if ARGUMENTS_tcp_send_reset > 2
    reason = ARG(2);
#endif
    /* A listener answers for a connection that there is not: the packet knows which. */
    if (sk && !(skb && READ(0, sk, __sk_common.skc_state) == STATE_LISTEN))
        snapshot(ctx, cpu, DIRECT, LOCATION_RESET_SENT, sk, 0, reason, 0);
    else
        snapshot(ctx, cpu, 0, LOCATION_RESET_SENT, sk, skb, reason, PACKET);
}
#endif

#if USE_reset_received
PROBE(reset_received, "RESET_RECEIVED", "btf:tcp_receive_reset raw:tcp_receive_reset")
{ snapshot(ctx, cpu, DIRECT, LOCATION_RESET_RECEIVED, (struct sock *)ARG(0), 0, 0, 0); }
#endif

/* No location: it tells whose an accepted connection is, where the kernel has a way to see that. */
#if USE_accepted
PROBE(accepted, "", "fexit:inet_csk_accept")
{
#ifdef HAVE_struct_proto_accept_arg
    /* Linux 6.10: (sk, arg) */
    struct sock *sk = (struct sock *)ARG(2);
#else
    /* (sk, flags, err, kern) */
    struct sock *sk = (struct sock *)ARG(4);
#endif

    if (sk)
        snapshot(ctx, cpu, 0, LOCATION_STATE_CHANGE, sk, 0, 0, OWNER | UNASKED);
}
#endif

/* These two hang on also where they are not asked for, if --pid is: they tell the owner. */
#if USE_send_call
PROBE(send_call, "SEND_CALL",
      "btf:sock_send_length raw:sock_send_length fexit:tcp_sendmsg kprobe:tcp_sendmsg")
{
    /* fexit: (sk, msg, size) and the result; kprobe: the size that is asked for */
    u32 result = kind == KLOGGER_FEXIT ? ARG(3) : kind == KLOGGER_KPROBE ? ARG(2) : ARG(1);

    snapshot(ctx, cpu, DIRECT, LOCATION_SEND_CALL, (struct sock *)ARG(0), 0, result,
             OWNER | (KLOGGER_ENABLED_SEND_CALL ? 0 : UNASKED));
}
#endif

#if USE_receive_call
PROBE(receive_call, "RECEIVE_CALL",
      "btf:sock_recv_length raw:sock_recv_length fexit:tcp_recvmsg kprobe:tcp_recvmsg")
{
    /* fexit: (sk, msg, len, flags, addr_len) and the result; kprobe: the room that is offered */
    u32 result = kind == KLOGGER_FEXIT ? ARG(5) : kind == KLOGGER_KPROBE ? ARG(2) : ARG(1);

    snapshot(ctx, cpu, DIRECT, LOCATION_RECEIVE_CALL, (struct sock *)ARG(0), 0, result,
             OWNER | (KLOGGER_ENABLED_RECEIVE_CALL ? 0 : UNASKED));
}
#endif

/* Hangs on even where DESTROY is not asked for: identities end here. */
#if USE_destroy
PROBE(destroy, "DESTROY", "btf:tcp_destroy_sock raw:tcp_destroy_sock")
{
    u64 key = ARG(0);

    if (KLOGGER_ENABLED_DESTROY)
        snapshot(ctx, cpu, DIRECT, LOCATION_DESTROY, (struct sock *)ARG(0), 0, 0, LAST);
    else
        connections.delete(&key);
}
#endif

#if USE_rcvq_full
PROBE(rcvq_full, "RCVQ_FULL", "btf:kfree_skb raw:kfree_skb")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct sock *sk = 0;
    u32 reason = ARG(2);

    if (!(0
#ifdef HAVE_SKB_DROP_REASON_SOCKET_RCVBUFF
          || reason == SKB_DROP_REASON_SOCKET_RCVBUFF
#endif
#ifdef HAVE_SKB_DROP_REASON_PROTO_MEM
          || reason == SKB_DROP_REASON_PROTO_MEM
#endif
#ifdef HAVE_SKB_DROP_REASON_SOCKET_BACKLOG
          || reason == SKB_DROP_REASON_SOCKET_BACKLOG
#endif
#ifdef HAVE_SKB_DROP_REASON_TCP_ZEROWINDOW
          || reason == SKB_DROP_REASON_TCP_ZEROWINDOW
#endif
#ifdef HAVE_SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE
          || reason == SKB_DROP_REASON_TCP_OFO_QUEUE_PRUNE
#endif
          ))
        return;
#if ARGUMENTS_kfree_skb > 3
    sk = (struct sock *)ARG(3);
#endif
    if (!sk)
        sk = READ(0, skb, sk);
    if (sk) {
        snapshot(ctx, cpu, 0, LOCATION_RCVQ_FULL, sk, 0, reason, 0);
    } else {
        u8 *head = READ(0, skb, head);
        u16 network = READ(0, skb, network_header);
        u8 version = 0, protocol = 0;

        bpf_probe_read_kernel(&version, 1, head + network);
        bpf_probe_read_kernel(&protocol, 1, head + network + (version >> 4 == 6 ? 6 : 9));
        if (protocol == PROTOCOL_TCP)
            snapshot(ctx, cpu, 0, LOCATION_RCVQ_FULL, 0, skb, reason, PACKET);
    }
}
#endif

#if USE_socket_error
PROBE(socket_error, "SOCKET_ERROR", "btf:inet_sk_error_report raw:inet_sk_error_report")
{
    struct sock *sk = (struct sock *)ARG(0);

    snapshot(ctx, cpu, DIRECT, LOCATION_SOCKET_ERROR, sk, 0, READ(0, sk, sk_err), 0);
}
#endif

/*
 * The four timers of a connection share one timer_list; icsk_pending tells which one expired. The
 * kernel puts the timer off when a socket's deadline moved: only a deadline that has come counts.
 */
#if USE_timer
PROBE(timer, "RTO LOSS_PROBE ZERO_WINDOW_PROBE REO_TIMEOUT",
      "btf:timer_expire_entry raw:timer_expire_entry")
{
    struct timer_list *expired = (struct timer_list *)ARG(0);
    struct inet_connection_sock *icsk;
    struct sock *sk;
    u32 pending, location, callvalue;
    u8 state;

    if ((u64)READ(0, expired, function) != KLOGGER_tcp_write_timer)
        return;
#ifdef HAVE_sock_tcp_retransmit_timer
    sk = (struct sock *)((u8 *)expired - __builtin_offsetof(struct sock, tcp_retransmit_timer));
#else
    sk = (struct sock *)((u8 *)expired -
                         __builtin_offsetof(struct inet_connection_sock, icsk_retransmit_timer));
#endif
    icsk = (struct inet_connection_sock *)sk;
    state = READ(0, sk, __sk_common.skc_state);
    if (state == STATE_CLOSE || state == STATE_LISTEN)
        return;
#ifdef HAVE_inet_connection_sock_icsk_timeout
    if ((s64)(READ(0, icsk, icsk_timeout) - bpf_jiffies64()) > 0)
        return;
#endif
    pending = READ(0, icsk, icsk_pending);
    callvalue = READ(0, icsk, icsk_retransmits);
    if (KLOGGER_ENABLED_RTO && pending == 1) {
        location = LOCATION_RTO;
    } else if (KLOGGER_ENABLED_ZERO_WINDOW_PROBE && pending == 3) {
        location = LOCATION_ZERO_WINDOW_PROBE;
        callvalue = READ(0, icsk, icsk_probes_out);
    } else if (KLOGGER_ENABLED_LOSS_PROBE && pending == 5) {
        location = LOCATION_LOSS_PROBE;
    } else if (KLOGGER_ENABLED_REO_TIMEOUT && pending == 6) {
        location = LOCATION_REO_TIMEOUT;
    } else {
        return;
    }
    snapshot(ctx, cpu, 0, location, sk, 0, callvalue, 0);
}
#endif

#if USE_cwnd_undo
PROBE(cwnd_undo, "CWND_UNDO", "fentry:tcp_undo_cwnd_reduction kprobe:tcp_undo_cwnd_reduction")
{ snapshot(ctx, cpu, DIRECT, LOCATION_CWND_UNDO, (struct sock *)ARG(0), 0, 0, 0); }
#endif

#if USE_ack_processed
PROBE(ack_processed, "ACK_PROCESSED", "fexit:tcp_ack kprobe:tcp_check_space")
{ snapshot(ctx, cpu, DIRECT, LOCATION_ACK_PROCESSED, (struct sock *)ARG(0), 0, 0, CHANGES); }
#endif

#if USE_transmit
PROBE(transmit, "TRANSMIT", "fentry:__tcp_transmit_skb kprobe:__tcp_transmit_skb")
{
    snapshot(ctx, cpu, DIRECT, LOCATION_TRANSMIT, (struct sock *)ARG(0), (struct sk_buff *)ARG(1),
             0, SEGMENT | PAYLOAD | CHANGES);
}
#endif

/* Walks the sockets that were there before the capture: one call a socket, none for a request. */
#if USE_existing
PROBE(existing, "EXISTING", "iter:tcp")
{
    /* struct bpf_iter_meta begins with its seq_file. */
    struct seq_file *volatile *meta = (struct seq_file *volatile *)ARG(0);
    struct sock *sk = (struct sock *)ARG(1);
    u8 state, step = 0;

    if (!sk)
        return;
    /* A byte a socket: who reads n bytes walks n sockets, as fast as the rings are emptied. */
    bpf_seq_write(*meta, &step, 1);
    state = GET(sk, __sk_common.skc_state);
    if (state == STATE_TIME_WAIT || state == STATE_NEW_SYN_RECV || state == STATE_CLOSE ||
        state == STATE_LISTEN)
        return;
    if (KLOGGER_BY_INODE) {
        struct socket *socket = READ(0, sk, sk_socket);
        struct connection *connection;
        u64 key = (u64)sk, inode;
        u32 *pid;

        if (!socket)
            return;
        inode = READ(0, (struct socket_alloc *)socket, vfs_inode.i_ino);
        pid = existing_inodes.lookup(&inode);
        if (!pid)
            return;
        connection = connection_of(key, 0);
        if (connection)
            connection->pid = *pid;
    }
    snapshot(ctx, cpu, 1, LOCATION_EXISTING, sk, 0, 0, 0);
}
#endif
