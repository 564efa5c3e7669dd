/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fills the columns of the schema tcp, and names the members that they need: for tcp.bpf.c.
 *
 * watched: store only the columns of --when-changed, and in the words of a struct klogger_watch
 * instead of a record. It is a constant wherever SET(), COPY() and HAS() are used.
 */
NEEDS(bytes_acked, "tcp_sock.bytes_acked")
NEEDS(bytes_received, "tcp_sock.bytes_received")
NEEDS(bytes_sent, "tcp_sock.bytes_sent")
NEEDS(bytes_retrans, "tcp_sock.bytes_retrans")
NEEDS(pacing_rate, "sock.sk_pacing_rate")
NEEDS(netns, "net.net_cookie")
NEEDS(cgroup, "sock_cgroup_data.cgroup kernfs_node.id")
NEEDS(uid, "sock.sk_uid")
NEEDS(mptcp_token, "tcp_sock.is_mptcp mptcp_subflow_context.token")
NEEDS(mptcp_sent, "tcp_sock.is_mptcp mptcp_subflow_context.conn mptcp_sock.bytes_sent")
NEEDS(mptcp_received, "tcp_sock.is_mptcp mptcp_subflow_context.conn mptcp_sock.bytes_received")
NEEDS(mptcp_retrans, "tcp_sock.is_mptcp mptcp_subflow_context.conn mptcp_sock.bytes_retrans")
NEEDS(protocols, "inet_connection_sock.icsk_ulp_ops")
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
NEEDS(received_ce, "tcp_sock.received_ce")
NEEDS(total_rto_time, "tcp_sock.total_rto_time")
NEEDS(plb_rehash, "tcp_sock.plb_rehash")
NEEDS(snd_cwnd_clamp, "tcp_sock.snd_cwnd_clamp")
NEEDS(tcp_tx_delay, "tcp_sock.tcp_tx_delay")
NEEDS(undo_retrans, "tcp_sock.undo_retrans")
NEEDS(total_rto, "tcp_sock.total_rto")
NEEDS(total_rto_recoveries, "tcp_sock.total_rto_recoveries")
NEEDS(timeout_rehash, "tcp_sock.timeout_rehash")
NEEDS(gso_segs, "tcp_sock.gso_segs")
NEEDS(compressed_ack, "tcp_sock.compressed_ack")
NEEDS(scaling_ratio, "tcp_sock.scaling_ratio")
NEEDS(accecn_fail_mode, "tcp_sock.accecn_fail_mode")
NEEDS(saw_accecn_opt, "tcp_sock.saw_accecn_opt")
NEEDS(is_sack_reneg, "tcp_sock.is_sack_reneg")
NEEDS(tcp_usec_ts, "tcp_sock.tcp_usec_ts")
NEEDS(syn_data, "tcp_sock.syn_data")
NEEDS(syn_data_acked, "tcp_sock.syn_data_acked")
NEEDS(fastopen_client_fail, "tcp_sock.fastopen_client_fail")
NEEDS(delivered_ce_bytes, "tcp_sock.delivered_ecn_bytes")
NEEDS(received_ce_bytes, "tcp_sock.received_ecn_bytes")
NEEDS(sk_txhash, "sock.sk_txhash")
NEEDS(sk_napi_id, "sock.sk_napi_id")
NEEDS(ack_pending, "inet_connection_sock.icsk_ack.pending")
NEEDS(sk_rx_queue_mapping, "sock_common.skc_rx_queue_mapping")
NEEDS(max_packets_out, "tcp_sock.max_packets_out")
NEEDS(rate_delivered, "tcp_sock.rate_delivered")
NEEDS(rate_interval_us, "tcp_sock.rate_interval_us")
NEEDS(sk_backlog_bytes, "sock.sk_backlog")
NEEDS(sk_tsq_flags, "sock.sk_tsq_flags")
NEEDS(is_cwnd_limited, "tcp_sock.is_cwnd_limited")
NEEDS(rate_app_limited, "tcp_sock.rate_app_limited")
NEEDS(sk_pacing_status, "sock.sk_pacing_status")
NEEDS(sk_nospace, "socket.flags")
NEEDS(chrono_type, "tcp_sock.chrono_type")
NEEDS(bbr_bw, "bbr.bw bbr.lt_use_bw")
NEEDS(bbr_min_rtt_us, "bbr.min_rtt_us")
NEEDS(bbr_pacing_gain, "bbr.pacing_gain")
NEEDS(bbr_cwnd_gain, "bbr.cwnd_gain")
NEEDS(bbr_mode, "bbr.mode")
NEEDS(sb_target_hiwat, "netns_ipv4.sysctl_tcp_wmem")
NEEDS(hiwat_fair_share, "proto.sysctl_mem proto.sockets_allocated")
NEEDS(m_clused, "proto.memory_allocated")

static __always_inline u32 saturate(u64 value) {
    return value > 0xffffffffull ? 0xffffffffu : value;
}

/* TCP's memory, which all sockets share: each CPU reads it once in a jiffy, since its cache lines
 * travel between the CPUs.
 */
struct tcp_memory {
    u64 read_at; /* [jiffies] */
    u32 fair_share;
    u32 pages;
};

BPF_PERCPU_ARRAY(tcp_memory, struct tcp_memory, 1);

static __always_inline void read_memory(const int direct, struct proto *prot,
                                        struct tcp_memory *memory) {
    struct percpu_counter *counter = READ(direct, prot, sockets_allocated);
    /* A pointer to a type without a name, so not by READ(). */
    void *allocated = READ(direct, prot, memory_allocated);
    long pages = 0, pressure = 0, sockets = READ(direct, counter, count);

    bpf_probe_read_kernel(&pages, sizeof(pages), allocated);
    bpf_probe_read_kernel(&pressure, sizeof(pressure), (long *)READ(direct, prot, sysctl_mem) + 1);
    memory->pages = pages < 0 ? 0 : pages;
    memory->fair_share =
        saturate((u64)pressure * KLOGGER_PAGE_SIZE / (u64)(sockets < 1 ? 1 : sockets));
}

static __always_inline void fill_memory(const int direct, const int watched, struct sock *sk,
                                        u8 *entry) {
    u64 now = bpf_jiffies64();
    u32 zero = 0;
    struct tcp_memory *memory = tcp_memory.lookup(&zero);

    if (!memory)
        return;
    if (*(volatile u64 *)&memory->read_at != now) {
        read_memory(direct, GET(sk, __sk_common.skc_prot), memory);
        *(volatile u64 *)&memory->read_at = now;
    }
    SET(m_clused, memory->pages);
    SET(hiwat_fair_share, memory->fair_share);
}

static __always_inline u32 running_chrono(struct tcp_sock *tp) {
#ifdef BITFIELD_tcp_sock_chrono_type
    return BITFIELD_tcp_sock_chrono_type(tp);
#else
    return GET(tp, chrono_type);
#endif
}

/* For how long the connection was limited, as in tcp_get_info_chrono_stats(). */
static __always_inline void fill_times(const int watched, struct tcp_sock *tp, u8 *entry) {
    u32 type = running_chrono(tp);
    u32 running = (u32)bpf_jiffies64() - GET(tp, chrono_start);
    u64 busy = (u64)GET(tp, chrono_stat[0]) + (type == 1 ? running : 0);
    u64 window = (u64)GET(tp, chrono_stat[1]) + (type == 2 ? running : 0);
    u64 buffer = (u64)GET(tp, chrono_stat[2]) + (type == 3 ? running : 0);

    SET(busy_us, (busy + window + buffer) * (1000000 / KLOGGER_HZ));
    SET(rwnd_limited_us, window * (1000000 / KLOGGER_HZ));
    SET(sndbuf_limited_us, buffer * (1000000 / KLOGGER_HZ));
}

/* The send buffer that tcp_sndbuf_expand() would request. Only bbr has its own factor, 3. */
static __always_inline void fill_targets(const int direct, const int watched, struct tcp_sock *tp,
                                         u32 mss, u32 cwnd, u32 reordering, u8 *entry) {
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;
    struct tcp_congestion_ops *ops = GET(icsk, icsk_ca_ops);

    if (HAS(sb_net_target)) {
        u32 per_mss = GET(tp, rx_opt.mss_clamp);
        u32 segments = reordering + 1;
        u32 factor = 2;

        if (per_mss < mss)
            per_mss = mss;
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

        SET(sb_target_hiwat, READ(direct, net, ipv4.sysctl_tcp_wmem[2]));
    }
    if (HAS(ca_name)) {
        if (direct)
            SET(ca_name, (const volatile u64 *)(void *)&ops->name);
        else
            COPY(ca_name, &ops->name);
    }
}

#ifdef HAVE_struct_bbr
/* BBR's state is in the socket, if BBR is what runs: a struct bbr of struct minmax and bits. */
static __always_inline void fill_bbr(const int direct, const int watched,
                                     struct inet_connection_sock *icsk, u32 mss, u8 *entry) {
    struct tcp_congestion_ops *ops = GET(icsk, icsk_ca_ops);
    struct bbr *bbr = (struct bbr *)(void *)&icsk->icsk_ca_priv;
    const u32 bbr_name = 'b' | 'b' << 8 | 'r' << 16;
    u32 name = 0;
    u64 bandwidth = 0;
    int runs;

    if (direct)
        name = *(const volatile u32 *)(void *)&ops->name;
    else
        bpf_probe_read_kernel(&name, sizeof(name), &ops->name);
    runs = name == bbr_name;
    if (HAS(bbr_bw) && runs) {
        bandwidth = BITFIELD_bbr_lt_use_bw(bbr) ? GET(bbr, lt_bw) : GET(bbr, bw.s[0].v);
        bandwidth = bandwidth * mss * 1000000 >> 24;
    }
    SET(bbr_bw, bandwidth);
    /* All ones until a round trip was measured. */
    SET(bbr_min_rtt_us, runs && ~GET(bbr, min_rtt_us) ? GET(bbr, min_rtt_us) : 0);
    SET(bbr_pacing_gain, runs ? BITFIELD_bbr_pacing_gain(bbr) : 0);
    SET(bbr_cwnd_gain, runs ? BITFIELD_bbr_cwnd_gain(bbr) : 0);
    SET(bbr_mode, runs ? BITFIELD_bbr_mode(bbr) + 1 : 0);
}
#endif

static __always_inline u32 highest_sacked(const int direct, struct tcp_sock *tp, u32 una,
                                          u32 next) {
    struct sk_buff *highest;

    if (!GET(tp, sacked_out))
        return una;
    highest = GET(tp, highest_sack);
    if (!highest)
        return next;
    return READ(direct, (struct tcp_skb_cb *)(void *)&highest->cb, seq);
}

#define PROTOCOL_MPTCP      1
#define PROTOCOL_KTLS       2
#define PROTOCOL_MD5        4
#define PROTOCOL_AO         8
#define PROTOCOL_SMC        16
#define PROTOCOL_OTHER      32
#define PROTOCOL_MPTCP_LOST 64
#define PROTOCOL_SMC_LOST   128

#if defined(HAVE_struct_mptcp_subflow_context) && defined(HAVE_tcp_sock_is_mptcp)
#define HAVE_SUBFLOWS 1
#define SUBFLOW_BIT(subflow, name)                                                                 \
    ({                                                                                             \
        u64 raw_ = 0;                                                                              \
        bpf_probe_read_kernel(&raw_, BITS_mptcp_subflow_context_##name##_SIZE,                     \
                              (u8 *)(subflow) + BITS_mptcp_subflow_context_##name##_OFFSET);       \
        BITS_mptcp_subflow_context_##name(raw_);                                                   \
    })

/* A subflow's state; null if this is none. */
static __always_inline struct mptcp_subflow_context *subflow_of(struct tcp_sock *tp) {
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;

    return GET(tp, is_mptcp) ? (struct mptcp_subflow_context *)GET(icsk, icsk_ulp_data) : 0;
}

/* Whether both ends agreed on MPTCP. */
static __always_inline int is_agreed(struct mptcp_subflow_context *subflow) {
    return SUBFLOW_BIT(subflow, mp_capable) || SUBFLOW_BIT(subflow, mp_join);
}

/* The connection above a subflow, and what all of its subflows have sent together. */
static __always_inline void fill_mptcp(const int watched, struct tcp_sock *tp, u8 *entry) {
    struct mptcp_subflow_context *subflow = subflow_of(tp);
    u64 sent = 0, received = 0, again = 0;
    u32 token = 0;

    if (subflow && is_agreed(subflow)) {
        token = READ(0, subflow, token);
#ifdef HAVE_mptcp_sock_bytes_sent
        if (HAS(mptcp_sent) || HAS(mptcp_received) || HAS(mptcp_retrans)) {
            struct mptcp_sock *whole = (struct mptcp_sock *)READ(0, subflow, conn);

            if (whole) {
                sent = READ(0, whole, bytes_sent);
                received = READ(0, whole, bytes_received);
                again = READ(0, whole, bytes_retrans);
            }
        }
#endif
    }
    SET(mptcp_token, token);
    SET(mptcp_sent, sent);
    SET(mptcp_received, received);
    SET(mptcp_retrans, again);
}
#endif

#ifdef HAVE_tcp_sock_syn_smc
/* What is known of SMC. Nothing before the peer has answered: until then a client's bit says that
 * it asks, and a listener's always does. The socket of TCP below SMC has no file: it gets the
 * program's when SMC falls back. */
static __always_inline u32 smc_of(struct tcp_sock *tp) {
    struct sock *sk = (struct sock *)tp;
    struct socket *socket = GET(sk, sk_socket);
    u32 unanswered = 1 << STATE_SYN_SENT | 1 << STATE_CLOSE | 1 << STATE_LISTEN;
    u32 offered;

#ifdef BITFIELD_tcp_sock_syn_smc
    offered = BITFIELD_tcp_sock_syn_smc(tp);
#else
    offered = GET(tp, syn_smc);
#endif
    if (!offered || unanswered >> GET(sk, __sk_common.skc_state) & 1)
        return 0;
    return READ(0, socket, file) ? PROTOCOL_SMC | PROTOCOL_SMC_LOST : PROTOCOL_SMC;
}
#endif

/* What is above TCP, or in its options: PROTOCOL_. */
static __always_inline u32 protocols_of(struct tcp_sock *tp) {
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;
    struct tcp_ulp_ops *ops = (struct tcp_ulp_ops *)GET(icsk, icsk_ulp_ops);
    u32 found = 0, name = 0;

    if (ops) {
        bpf_probe_read_kernel(&name, sizeof(name), (void *)&ops->name);
        if (name == ('t' | 'l' << 8 | 's' << 16))
            found = PROTOCOL_KTLS;
        else if (name != ('m' | 'p' << 8 | 't' << 16 | 'c' << 24))
            found = PROTOCOL_OTHER;
    }
#ifdef HAVE_SUBFLOWS
    struct mptcp_subflow_context *subflow = subflow_of(tp);

    if (subflow && is_agreed(subflow))
        found |= PROTOCOL_MPTCP;
    else if (subflow && GET((struct sock *)tp, __sk_common.skc_state) == STATE_ESTABLISHED)
        found |= PROTOCOL_MPTCP_LOST;
#endif
#ifdef HAVE_tcp_sock_md5sig_info
    if (GET(tp, md5sig_info))
        found |= PROTOCOL_MD5;
#endif
#ifdef HAVE_tcp_sock_ao_info
    if (GET(tp, ao_info))
        found |= PROTOCOL_AO;
#endif
#ifdef HAVE_tcp_sock_syn_smc
    found |= smc_of(tp);
#endif
    return found;
}

/*
 * A socket that was closed, or is not accepted yet, has no struct socket. A plain load by a null
 * pointer would give 0 too. But it is a page fault, in which arm64 lets another task run
 * if the kernel is not preemptible. Where the task goes on on another CPU, the kernel takes the
 * program as running on both for ever, and never runs it there again.
 */
static __always_inline u32 waits_for_room(const int direct, struct sock *sk) {
    struct socket *socket = GET(sk, sk_socket);

    return socket ? READ(direct, socket, flags) >> SOCK_NOSPACE & 1 : 0;
}

/* The id of a socket's control group: its number in the file system of cgroup2. */
static __always_inline u64 cgroup_of(const int direct, struct sock *sk) {
    struct cgroup *group = GET(sk, sk_cgrp_data.cgroup);
    struct kernfs_node *node = READ(direct, group, kn);

    return READ(direct, node, id);
}

/* Fills the columns of a full socket; tp is readable by plain loads. */
static __always_inline void fill_socket(const int direct, const int watched, struct tcp_sock *tp,
                                        u8 *entry) {
    struct sock *sk = (struct sock *)tp;
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;
    u32 mss = GET(tp, mss_cache);
    u32 una = GET(tp, snd_una);
    u32 next = GET(tp, snd_nxt);
    u32 write = GET(tp, write_seq);
    u32 cwnd = GET(tp, snd_cwnd);
    u32 received = GET(tp, rcv_nxt);
    u32 copied = GET(tp, copied_seq);
    u32 reordering = GET(tp, reordering);

    SET(snd_cwnd, cwnd * mss);
    SET(snd_max, next);
    if (HAS(snd_fack))
        SET(snd_fack, highest_sacked(direct, tp, una, next));
    SET(sb_hiwat, GET(sk, sk_sndbuf));
    SET(snd_sb_cc, write - una);
    SET(rcv_sb_cc, received - copied);
    fill_targets(direct, watched, tp, mss, cwnd, reordering, entry);
    if (HAS(m_clused) || HAS(hiwat_fair_share))
        fill_memory(direct, watched, sk, entry);

    SET(bytes_acked, GET(tp, bytes_acked));
    SET(bytes_received, GET(tp, bytes_received));
    SET(bytes_sent, GET(tp, bytes_sent));
    SET(bytes_retrans, GET(tp, bytes_retrans));
    SET(pacing_rate, GET(sk, sk_pacing_rate));
    SET(snd_una, una);
    SET(snd_nxt, next);
    SET(rcv_nxt, received);
    SET(write_seq, write);
    SET(copied_seq, copied);
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
    SET(reordering, reordering);
    SET(delivered, GET(tp, delivered));
    SET(delivered_ce, GET(tp, delivered_ce));
    SET(mss, mss);
    SET(sk_rmem_bytes, GET(sk, sk_backlog.rmem_alloc.counter));
    SET(sk_wmem_bytes, GET(sk, sk_wmem_queued));
    SET(sk_rcvbuf, GET(sk, sk_rcvbuf));
    SET(app_limited, GET(tp, app_limited));
    if (HAS(busy_us) || HAS(rwnd_limited_us) || HAS(sndbuf_limited_us))
        fill_times(watched, tp, entry);
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
    if (HAS(cgroup))
        SET(cgroup, cgroup_of(direct, sk));
    SET(uid, GET(sk, sk_uid.val));
#ifdef HAVE_SUBFLOWS
    if (HAS(mptcp_token) || HAS(mptcp_sent) || HAS(mptcp_received) || HAS(mptcp_retrans))
        fill_mptcp(watched, tp, entry);
#endif
    if (HAS(protocols))
        SET(protocols, protocols_of(tp));
    SET(max_packets_out, GET(tp, max_packets_out));
    SET(rate_delivered, GET(tp, rate_delivered));
    SET(rate_interval_us, GET(tp, rate_interval_us));
    SET(sk_backlog_bytes, GET(sk, sk_backlog.len));
    SET(first_tx_us, GET(tp, first_tx_mstamp));
    if (HAS(next_tx_us))
        SET(next_tx_us, GET(tp, tcp_wstamp_ns) / 1000);
    SET(sk_tsq_flags, GET(sk, sk_tsq_flags));
    SET(is_cwnd_limited, BITFIELD_tcp_sock_is_cwnd_limited(tp));
    SET(rate_app_limited, BITFIELD_tcp_sock_rate_app_limited(tp));
    SET(sk_pacing_status, GET(sk, sk_pacing_status));
    if (HAS(sk_nospace))
        SET(sk_nospace, waits_for_room(direct, sk));
    SET(sk_err, GET(sk, sk_err));
    if (HAS(chrono_type))
        SET(chrono_type, running_chrono(tp));
#ifdef HAVE_struct_bbr
    if (HAS(bbr_bw) || HAS(bbr_min_rtt_us) || HAS(bbr_pacing_gain) || HAS(bbr_cwnd_gain) ||
        HAS(bbr_mode))
        fill_bbr(direct, watched, icsk, mss, entry);
#endif
    SET(snd_wscale, BITFIELD_tcp_options_received_snd_wscale(&tp->rx_opt));
    SET(rcv_wscale, BITFIELD_tcp_options_received_rcv_wscale(&tp->rx_opt));
    SET(advmss, GET(tp, advmss));
    SET(rcv_mss, GET(icsk, icsk_ack.rcv_mss));
    SET(retransmits, GET(icsk, icsk_retransmits));
    SET(backoff, GET(icsk, icsk_backoff));
    SET(probes_out, GET(icsk, icsk_probes_out));
    SET(pending, GET(icsk, icsk_pending));
    SET(ecn_flags, GET(tp, ecn_flags));
    SET(received_ce, GET(tp, received_ce));
    SET(total_rto_time, GET(tp, total_rto_time));
    SET(plb_rehash, GET(tp, plb_rehash));
    SET(snd_cwnd_clamp, GET(tp, snd_cwnd_clamp));
    SET(tcp_tx_delay, GET(tp, tcp_tx_delay));
    SET(undo_retrans, GET(tp, undo_retrans));
    SET(total_rto, GET(tp, total_rto));
    SET(total_rto_recoveries, GET(tp, total_rto_recoveries));
    SET(timeout_rehash, GET(tp, timeout_rehash));
    SET(gso_segs, GET(tp, gso_segs));
    SET(compressed_ack, GET(tp, compressed_ack));
    SET(scaling_ratio, GET(tp, scaling_ratio));
    SET(accecn_fail_mode, BITFIELD_tcp_sock_accecn_fail_mode(tp));
    SET(saw_accecn_opt, BITFIELD_tcp_sock_saw_accecn_opt(tp));
    SET(is_sack_reneg, BITFIELD_tcp_sock_is_sack_reneg(tp));
    SET(tcp_usec_ts, BITFIELD_tcp_sock_tcp_usec_ts(tp));
    SET(syn_data, BITFIELD_tcp_sock_syn_data(tp));
    SET(syn_data_acked, BITFIELD_tcp_sock_syn_data_acked(tp));
    SET(fastopen_client_fail, BITFIELD_tcp_sock_fastopen_client_fail(tp));
    SET(delivered_ce_bytes, GET(tp, delivered_ecn_bytes[2]));
    SET(received_ce_bytes, GET(tp, received_ecn_bytes[2]));
    SET(sk_txhash, GET(sk, sk_txhash));
    SET(sk_napi_id, GET(sk, sk_napi_id));
    SET(ack_pending, GET(icsk, icsk_ack.pending));
    SET(sk_rx_queue_mapping, GET(sk, __sk_common.skc_rx_queue_mapping));
    FILL_OWN(direct, watched, tp, entry);
}

/*
 * FILL(name) { ... }: sets the columns of a user's schema that extends tcp. tp can be read by
 * GET(); what it points to by READ(direct, ...).
 */
#define FILL(name)                                                                                 \
    static __always_inline void name##_fill(const int direct, const int watched,                   \
                                            struct tcp_sock *tp, u8 *entry)

/* Fills the segment's columns; returns the value for callvalue. */
static __always_inline u32 fill_segment(const int direct, const int watched, struct sk_buff *skb,
                                        const struct segment *segment, u8 *entry, u32 callvalue,
                                        const u32 flags) {
    struct tcp_skb_cb copy, *control = &copy;
    u32 seq, payload, bits;

    if ((flags & DROPPED) && segment) {
        SET(seg_seq, segment->seq);
        SET(seg_ack, segment->ack);
        SET(seg_len, segment->len);
        SET(seg_flags, segment->bits);
        return callvalue;
    }
    if (!(flags & SEGMENT) || !skb) {
        SET(seg_seq, 0);
        SET(seg_ack, 0);
        SET(seg_len, 0);
        SET(seg_flags, 0);
        return callvalue;
    }
    if (direct)
        control = (struct tcp_skb_cb *)(void *)&skb->cb;
    else
        bpf_probe_read_kernel(&copy, sizeof(copy), (void *)&skb->cb);
    seq = GET(control, seq);
    bits = GET(control, tcp_flags);
    payload = GET(control, end_seq) - seq;
    if (bits & FLAG_SYN)
        payload--;
    if (bits & FLAG_FIN)
        payload--;
    SET(seg_seq, seq);
    SET(seg_ack, GET(control, ack_seq));
    SET(seg_len, payload);
    SET(seg_flags, bits);
    if (flags & PAYLOAD)
        return payload;
    if (flags & SEQUENCE)
        return seq;
    return callvalue;
}

/* What the handshake acknowledged, or brought, beside the SYN, which has a number itself (TCP Fast
 * Open). state: before it was over.
 */
static __always_inline u32 data_of_syn(struct tcp_sock *tp, u32 state) {
    u32 acked = GET(tp, bytes_acked), received = GET(tp, bytes_received);

    if (state != STATE_SYN_SENT)
        return received;
    return acked ? acked - 1 : 0;
}

static __always_inline void fill_ends(const int watched, struct endpoints *ends, u8 *entry) {
    SET(lport, bpf_htons(ends->lport));
    SET(rport, bpf_htons(ends->rport));
    SET(netns, ends->netns);
    SET(laddr, ends->laddr);
    SET(raddr, ends->raddr);
    SET(state, ends->state);
    SET(family, ends->family);
}

#define AS_ICSK(sk) ((struct inet_connection_sock *)(sk))

/* Whether no further connection fits into the accept queue of a listener. */
static __always_inline int is_accept_full(struct sock *sk) {
    return READ(0, sk, sk_ack_backlog) > READ(0, sk, sk_max_ack_backlog);
}

/* A listener's queues, in columns that have no meaning there: formats/analysis/listeners.py reads
 * them. The first two are where TCP_INFO has them. is_copy: sk is a new connection, of which the
 * kernel has just copied the listener, but not all of it.
 */
static __always_inline void fill_queues(const int watched, struct sock *sk, int is_copy,
                                        u8 *entry) {
    struct inet_connection_sock *icsk = AS_ICSK(sk);
    struct sock_reuseport *group = READ(0, sk, sk_reuseport_cb);
    /* When a cookie was sent, to the second [jiffies]. */
    u32 cookie = group ? READ(0, group, synq_overflow_ts)
                       : READ(0, (struct tcp_sock *)sk, rx_opt.ts_recent_stamp);
    u64 age = (u32)bpf_jiffies64() - cookie;

    SET(packets_out, READ(0, sk, sk_ack_backlog));
    SET(sacked_out, READ(0, sk, sk_max_ack_backlog));
    SET(srtt_us, cookie ? saturate(age * (1000000 / KLOGGER_HZ) + 1) : 0);
    if (is_copy)
        return;
    SET(lost_out, READ(0, sk, sk_drops.counter));
    SET(retrans_out, READ(0, icsk, icsk_accept_queue.qlen.counter));
    SET(snd_cwnd_segs, group ? READ(0, group, num_socks) : 0);
    SET(mss, READ(0, icsk, icsk_accept_queue.rskq_defer_accept));
    SET(snd_wnd, READ(0, icsk, icsk_accept_queue.fastopenq.qlen));
    SET(rcv_wnd, READ(0, icsk, icsk_accept_queue.fastopenq.max_qlen));
    SET(snd_una, number_of((u64)sk) * 0x9e3779b97f4a7c15ull >> 32);
}

/* Fills all columns but those of commit(). tp is null where there is no full socket. */
static __always_inline void fill(const int direct, const int watched, struct sock *sk,
                                 struct tcp_sock *tp, struct sk_buff *skb,
                                 const struct segment *segment, u32 callvalue, const u32 flags,
                                 struct endpoints *ends, struct identity *who,
                                 struct connection *connection, u8 *entry) {
    if (tp) {
        fill_socket(direct, watched, tp, entry);
    } else if (!watched) {
        /* Word by word: clang makes a memset of packed bytes byte by byte. */
#pragma unroll
        for (int i = 0; i < KLOGGER_ENTRY_SIZE / 8; i++)
            ((u64 *)entry)[i] = 0;
        /* As in a socket that is new: there is none of these. */
        SET(pacing_rate, ~0ull);
        SET(snd_ssthresh, 0x7fffffff);
        SET(min_rtt_us, ~0u);
        SET(uid, ~0u);
    }
    if (flags & QUEUES)
        fill_queues(watched, sk, (flags & (FRESH | OWNER)) == FRESH, entry);
    fill_ends(watched, ends, entry);
    callvalue = fill_segment(direct, watched, skb, segment, entry, callvalue, flags);
    if (HAS(seg_len) && (flags & HANDSHAKE) && tp)
        SET(seg_len, data_of_syn(tp, ends->state));
    SET(callvalue, callvalue);
    SET(sk_addr, (u64)sk);
    if (direct) {
        SET(conn_id, who->id);
        SET(pid, who->pid);
    } else {
        SET(conn_id, connection ? connection->id : 0);
        SET(pid, connection ? connection->pid : 0);
    }
    if (HAS(comm)) {
        u64 nobody[2] = {};

        if (direct)
            SET(comm, who->comm);
        else if (connection)
            SET(comm, connection->comm);
        else
            SET(comm, nobody);
    }
}
