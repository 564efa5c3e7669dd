/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema tcp: each calls snapshot() of tcp_snapshot.h at its location. */
#include "klogger.h"
#include "sock_filter.h"

/* collector/plan/kernel_types.py declares the kernel types that this text names. These are types
 * of members.
 */
struct fastopen_queue;
struct in6_addr;
struct inode;
struct kernfs_node;
struct minmax;
struct minmax_sample;
struct net_device;
struct netns_ipv4;
struct percpu_counter;
struct proto_accept_arg;
struct rb_root;
struct request_sock_queue;
struct sock_cgroup_data;
struct socket_alloc;
struct task_struct;
struct tcp_options_received;
enum skb_drop_reason;

#define FLAG_FIN 1
#define FLAG_SYN 2

/* icsk_pending: ICSK_TIME_... of include/net/inet_connection_sock.h. */
#define TIME_RETRANS     1
#define TIME_PROBE0      3
#define TIME_LOSS_PROBE  5
#define TIME_REO_TIMEOUT 6

/* A bit of the flags of struct socket: include/linux/net.h. */
#define SOCK_NOSPACE 2

/* Flags of snapshot(). */
#define SEGMENT   1    /* skb is a segment whose control block the kernel has filled in */
#define PAYLOAD   2    /* callvalue is the segment's payload */
#define SEQUENCE  4    /* callvalue is the segment's sequence number */
#define OWNER     8    /* the current process is the connection's owner */
#define FRESH     16   /* a connection begins: it gets a new identity, even if the socket has one */
#define LAST      32   /* the connection ends: so does its identity */
#define CHANGES   64   /* --when-changed applies */
#define PACKET    128  /* the connection has no socket: its ends are in the packet */
#define NO_RECORD 256  /* updates identity and owner, and records nothing */
#define HANDSHAKE 512  /* seg_len is the data that the SYN carried */
#define LISTENS   1024 /* the socket begins to listen */
#define DROPPED   2048 /* the packet was dropped: its segment is recorded */
#define QUEUES    4096 /* the socket is a listener: its queues are recorded */

#include "network_packet.h"
#include "tcp_known.h"
#include "tcp_identity.h"
#include "tcp_dropped.h"
#include "tcp_columns.h"
#include "tcp_snapshot.h"

#if USE_segment_received && USE_dropped && ARGUMENTS_kfree_skb < 4
/* Before 6.11 the tracepoint lacks the socket of a dropped segment. It is that of the last segment
 * that arrived on this CPU.
 */
#define FIND_RECEIVER 1
struct receiving {
    u64 sk;
    u64 skb;
};

BPF_PERCPU_ARRAY(receiving, struct receiving, 1);

static __always_inline struct sock *receiver_of(struct sk_buff *skb) {
    u32 zero = 0;
    struct receiving *last = receiving.lookup(&zero);
    struct sock *sk;
    u16 ports[2];

    if (!last || last->skb != (u64)skb)
        return 0;
    sk = (struct sock *)last->sk;
    /* The kernel reuses buffers, so compare the ports. */
    bpf_probe_read_kernel(ports, sizeof(ports),
                          READ(0, skb, head) + READ(0, skb, transport_header));
    if (ports[0] != READ(0, sk, __sk_common.skc_dport) ||
        bpf_ntohs(ports[1]) != READ(0, sk, __sk_common.skc_num))
        return 0;
    return sk;
}
#endif

#if USE_segment_received
PROBE(segment_received, "SEGMENT_RECEIVED", "btf:tcp_probe raw:tcp_probe")
{
#ifdef FIND_RECEIVER
    u32 zero = 0;
    struct receiving *last = receiving.lookup(&zero);

    if (last) {
        last->sk = ARG(0);
        last->skb = ARG(1);
    }
#endif
    snapshot(ctx, cpu, DIRECT, LOCATION_SEGMENT_RECEIVED, (struct sock *)ARG(0),
             (struct sk_buff *)ARG(1), 0, SEGMENT | PAYLOAD | CHANGES);
}
#endif

/* tcp_probe reports the segments of established connections alone. The function also gets those of
 * listeners and of handshakes.
 */
#if USE_segment_closing
PROBE(segment_closing, "SEGMENT_CLOSING",
      "fentry:tcp_rcv_state_process kprobe:tcp_rcv_state_process")
{
    struct sock *sk = (struct sock *)ARG(0);
    u8 state = READ(DIRECT, sk, __sk_common.skc_state);

    if (state != STATE_FIN_WAIT1 && state != STATE_FIN_WAIT2 && state != STATE_CLOSE_WAIT &&
        state != STATE_LAST_ACK && state != STATE_CLOSING)
        return;
    snapshot(ctx, cpu, DIRECT, LOCATION_SEGMENT_CLOSING, sk, (struct sk_buff *)ARG(1), 0,
             SEGMENT | PAYLOAD | CHANGES);
}
#endif

#if USE_retransmit
PROBE(retransmit, "RETRANSMIT", "btf:tcp_retransmit_skb raw:tcp_retransmit_skb")
{
#if ARGUMENTS_tcp_retransmit_skb > 2
    /* Since 6.18 (argument err) the tracepoint also reports segments that could not be sent. */
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

/* Attached even if STATE_CHANGE is not recorded: identities begin here. */
#if USE_state_change
PROBE(state_change, "STATE_CHANGE", "btf:inet_sock_set_state raw:inet_sock_set_state")
{
    struct sock *sk = (struct sock *)ARG(0);
    u32 old = ARG(1), new = ARG(2);
    u32 flags = KLOGGER_ENABLED_STATE_CHANGE ? 0 : NO_RECORD;

    if (new == STATE_SYN_SENT || new == STATE_LISTEN)
        flags |= FRESH | OWNER | (new == STATE_LISTEN ? LISTENS | QUEUES : 0);
    else if (new == STATE_SYN_RECV && old == STATE_LISTEN)
        flags |= FRESH | QUEUES; /* the kernel has just copied the listener */
    else if (new == STATE_ESTABLISHED)
        flags |= HANDSHAKE;
    else if (old == STATE_LISTEN)
        flags |= QUEUES;
    if (KLOGGER_BY_INODE && old == STATE_LISTEN && new == STATE_CLOSE)
        end_listener(DIRECT, sk);
    flags =
        klogger_unknown(cpu, flags) & (NO_RECORD | FRESH | OWNER | LISTENS | HANDSHAKE | QUEUES);
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
    struct tcp_sock *tp = DIRECT ? AS_TCP(sk) : (struct tcp_sock *)sk;
    u32 space = tp ? READ(DIRECT, tp, rcvq_space.space) : 0;

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
    /* A listener sends a reset where there is no connection: the ends are in the packet. */
    if (sk && !(skb && READ(0, sk, __sk_common.skc_state) == STATE_LISTEN)) {
        snapshot(ctx, cpu, DIRECT, LOCATION_RESET_SENT, sk, 0, reason, 0);
    } else if (skb) {
        struct segment segment = {};

        if (segment_of(skb, 0, &segment))
            record(ctx, cpu, 0, LOCATION_RESET_SENT, sk, skb, &segment, reason, PACKET);
    }
}
#endif

#if USE_reset_received
PROBE(reset_received, "RESET_RECEIVED", "btf:tcp_receive_reset raw:tcp_receive_reset")
{ snapshot(ctx, cpu, DIRECT, LOCATION_RESET_RECEIVED, (struct sock *)ARG(0), 0, 0, 0); }
#endif

/* Attached even if ACCEPTED is not recorded: it finds the owner of an accepted connection. */
#if USE_accepted
PROBE(accepted, "ACCEPTED", "fexit:inet_csk_accept")
{
#ifdef HAVE_struct_proto_accept_arg
    /* Linux 6.10: (sk, arg) */
    struct sock *sk = (struct sock *)ARG(2);
#else
    /* (sk, flags, err, kern) */
    struct sock *sk = (struct sock *)ARG(4);
#endif

    if (sk)
        snapshot(ctx, cpu, 0, LOCATION_ACCEPTED, sk, 0,
                 READ(0, (struct sock *)ARG(0), sk_ack_backlog), OWNER);
}
#endif

/* Records a listener's queues. skb: the SYN or ACK that arrived there. */
static __always_inline void record_listener(void *ctx, struct klogger_cpu *cpu, struct sock *sk,
                                            struct sk_buff *skb) {
    struct segment segment = {};

    if (READ(0, sk, __sk_common.skc_state) == STATE_LISTEN && segment_of(skb, 1, &segment))
        record(ctx, cpu, 0, LOCATION_LISTENER, sk, skb, &segment, READ(0, sk, sk_ack_backlog),
               DROPPED | PACKET | QUEUES);
}

/* A handshake's ACK finds the accept queue full, or is set aside until data comes. */
#if USE_request_answered
PROBE(request_answered, "LISTENER", "fentry:tcp_check_req kprobe:tcp_check_req")
{
    struct sock *sk = (struct sock *)ARG(0);

    if (is_accept_full(sk) || READ(0, AS_ICSK(sk), icsk_accept_queue.rskq_defer_accept))
        record_listener(ctx, cpu, sk, (struct sk_buff *)ARG(1));
}
#endif

/* A SYN finds a queue full. In a flood, a listener is recorded sixteen times a second. */
#if USE_syn_arrived
BPF_TABLE("lru_hash", u64, u64, full_listeners, 1024);

PROBE(syn_arrived, "LISTENER", "fentry:tcp_conn_request kprobe:tcp_conn_request")
{
    struct sock *sk = (struct sock *)ARG(2);
    u64 key = (u64)sk, now = bpf_jiffies64(), *last;
    u32 requests = READ(0, AS_ICSK(sk), icsk_accept_queue.qlen.counter);

    if (!is_accept_full(sk) && requests < READ(0, sk, sk_max_ack_backlog))
        return;
    last = full_listeners.lookup(&key);
    if (last && now - *last < KLOGGER_HZ / 16)
        return;
    full_listeners.update(&key, &now);
    record_listener(ctx, cpu, sk, (struct sk_buff *)ARG(3));
}
#endif

/* These two are attached even if they are not recorded: they find the owner. */
#if USE_send_call && KLOGGER_ENABLED_SEND_CALL
PROBE(send_call, "SEND_CALL",
      "btf:sock_send_length raw:sock_send_length fexit:tcp_sendmsg kprobe:tcp_sendmsg")
{
    /* fexit: (sk, msg, size) and the result; kprobe: the requested size */
    u32 result = kind == KLOGGER_FEXIT ? ARG(3) : kind == KLOGGER_KPROBE ? ARG(2) : ARG(1);

    snapshot(ctx, cpu, DIRECT, LOCATION_SEND_CALL, (struct sock *)ARG(0), 0, result, OWNER);
}
#elif USE_send_call
int send_call(void *ctx) {
    watch_owner(ctx, KIND_send_call);
    return 0;
}
#endif

#if USE_receive_call && KLOGGER_ENABLED_RECEIVE_CALL
PROBE(receive_call, "RECEIVE_CALL",
      "btf:sock_recv_length raw:sock_recv_length fexit:tcp_recvmsg kprobe:tcp_recvmsg")
{
    /* fexit: (sk, msg, len, flags, addr_len) and the result; kprobe: the buffer's size */
    u32 result = kind == KLOGGER_FEXIT ? ARG(5) : kind == KLOGGER_KPROBE ? ARG(2) : ARG(1);

    snapshot(ctx, cpu, DIRECT, LOCATION_RECEIVE_CALL, (struct sock *)ARG(0), 0, result, OWNER);
}
#elif USE_receive_call
int receive_call(void *ctx) {
    watch_owner(ctx, KIND_receive_call);
    return 0;
}
#endif

/* Attached even if DESTROY is not recorded: identities end here. */
#if USE_destroy
PROBE(destroy, "DESTROY", "btf:tcp_destroy_sock raw:tcp_destroy_sock")
{
    u64 key = ARG(0);

    if (KLOGGER_ENABLED_DESTROY)
        snapshot(ctx, cpu, DIRECT, LOCATION_DESTROY, (struct sock *)ARG(0), 0, 0, LAST);
    else
        end_identity(key);
}
#endif

/* Whether a packet is dropped for lack of receive memory. */
static __always_inline int is_for_memory(u32 reason) {
    return 0
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
        ;
}

/*
 * Whether a packet is not dropped, but used up, or was in the receive queue of a socket that is
 * destroyed: most often a FIN. Before 6.6 that has no reason of its own.
 */
static __always_inline int is_used_up(u32 reason, u32 state) {
    return 0
#ifdef HAVE_SKB_CONSUMED
           || reason == SKB_CONSUMED
#endif
#ifdef HAVE_SKB_DROP_REASON_QUEUE_PURGE
           || reason == SKB_DROP_REASON_QUEUE_PURGE
#elif defined(HAVE_SKB_DROP_REASON_NOT_SPECIFIED)
           || (reason == SKB_DROP_REASON_NOT_SPECIFIED && state == STATE_CLOSE)
#else
           || state == STATE_CLOSE
#endif
        ;
}

#if USE_dropped
PROBE(dropped, "RCVQ_FULL DROPPED", "btf:kfree_skb raw:kfree_skb")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct segment segment = {};
    struct sock *sk = 0;
    u32 reason = 0, callvalue, location = LOCATION_DROPPED, state = 0;
    int found;

#if ARGUMENTS_kfree_skb > 2
    reason = ARG(2);
#endif
#if ARGUMENTS_kfree_skb > 3
    sk = (struct sock *)ARG(3);
#endif
    if (!sk)
        sk = READ(0, skb, sk);
#ifdef FIND_RECEIVER
    if (!sk)
        sk = receiver_of(skb);
#endif
    if (sk) {
        state = READ(0, sk, __sk_common.skc_state);
        /* A reset of no socket is sent by one of the kernel's own, which is a raw socket. */
        if (!is_mini(state) &&
            (READ(0, sk, sk_protocol) != PROTOCOL_TCP || READ(0, sk, sk_type) != TYPE_STREAM))
            sk = 0;
    }
    if (is_used_up(reason, state))
        return;
    found = segment_of(skb, !!sk, &segment);
    if (!found && (!sk || state == STATE_LISTEN))
        return;
    segment.sent = !READ(0, skb, skb_iif);
#ifdef HAVE_SKB_DROP_REASON_CPU_BACKLOG
    if (reason == SKB_DROP_REASON_CPU_BACKLOG)
        segment.sent = 0;
#endif
    if (sk && found) {
        u16 lport = READ(0, sk, __sk_common.skc_num);
        u16 rport = bpf_ntohs(READ(0, sk, __sk_common.skc_dport));

        /* A connection to itself has one port. */
        if (segment.source == lport && segment.target == rport && lport != rport)
            segment.sent = 1;
        else if (segment.source == rport && segment.target == lport && lport != rport)
            segment.sent = 0;
    }
    if (is_for_memory(reason)) {
        location = LOCATION_RCVQ_FULL;
        callvalue = reason;
    } else {
        /* formats/base/drops.py reads it. */
        callvalue = (reason & 0xfff) | (reason >> 16 & 15) << 12;
        if (klogger_enabled(LOCATION_DROPPED))
            callvalue |= place_of(ARG(1)) << 16;
        callvalue |= (u32)segment.sent << 31;
    }
    location = klogger_unknown(cpu, location) % LOCATION_ROWS;
    if (sk && state != STATE_LISTEN)
        record(ctx, cpu, 0, location, sk, skb, &segment, callvalue, DROPPED);
    else
        record(ctx, cpu, 0, location, sk, skb, &segment, callvalue,
               DROPPED | PACKET | (sk ? QUEUES : 0));
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
 * The four timers of a connection share one timer_list; icsk_pending says which of them expires. If
 * the socket's deadline is still in the future, the kernel only starts the timer again.
 */
#if USE_timer
PROBE(timer, "RTO LOSS_PROBE ZERO_WINDOW_PROBE REO_TIMEOUT",
      "btf:timer_expire_entry raw:timer_expire_entry")
{
    struct timer_list *expired = (struct timer_list *)ARG(0);
    struct inet_connection_sock *icsk;
    struct sk_buff *skb = 0;
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
    if (KLOGGER_ENABLED_RTO && pending == TIME_RETRANS) {
        location = LOCATION_RTO;
    } else if (KLOGGER_ENABLED_ZERO_WINDOW_PROBE && pending == TIME_PROBE0) {
        location = LOCATION_ZERO_WINDOW_PROBE;
        callvalue = READ(0, icsk, icsk_probes_out);
    } else if (KLOGGER_ENABLED_LOSS_PROBE && pending == TIME_LOSS_PROBE) {
        location = LOCATION_LOSS_PROBE;
    } else if (KLOGGER_ENABLED_REO_TIMEOUT && pending == TIME_REO_TIMEOUT) {
        location = LOCATION_REO_TIMEOUT;
    } else {
        return;
    }
    location = klogger_unknown(cpu, location) % LOCATION_ROWS;
    /* The SYN that was not answered is the first in the queue. */
    if (state == STATE_SYN_SENT)
        skb = (struct sk_buff *)READ(0, sk, tcp_rtx_queue.rb_node);
    snapshot(ctx, cpu, 0, location, sk, skb, callvalue, SEGMENT);
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

/* Walks the sockets that were open before the capture: one call for each, none for requests. */
#if USE_existing
PROBE(existing, "EXISTING", "iter:tcp")
{
    /* struct bpf_iter_meta begins with its seq_file. */
    struct seq_file *volatile *meta = (struct seq_file *volatile *)ARG(0);
    struct sock *sk = (struct sock *)ARG(1);
    u8 state, step = 0;

    if (!sk)
        return;
    /* One byte for each socket: a read of n bytes walks n sockets. */
    bpf_seq_write(*meta, &step, 1);
    state = GET(sk, __sk_common.skc_state);
    if (state == STATE_TIME_WAIT || state == STATE_NEW_SYN_RECV || state == STATE_CLOSE ||
        (!KLOGGER_BY_INODE && state == STATE_LISTEN))
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
        /* A listener that others have too is not followed: without an identity its end is passed
         * over, which else would take the count of a followed one at its port (SO_REUSEPORT).
         */
        if (!pid || (state == STATE_LISTEN && *pid & SHARED_INODE))
            return;
        connection = connections.lookup(&key);
        if (!connection)
            connection = new_identity(key, 0);
        if (connection)
            connection->pid = *pid & ~SHARED_INODE;
        if (state == STATE_LISTEN) {
            if (connection)
                begin_listener(sk);
            return;
        }
    }
    snapshot(ctx, cpu, 1, LOCATION_EXISTING, sk, 0, 0, 0);
}
#endif
