/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs that log the schema magnet. */
#include "klogger.h"

/* Types of members. */
struct inet_connection_sock;
struct iov_iter;
struct kernfs_node;
struct msghdr;
struct proto_accept_arg;
struct skb_shared_info;
struct sock_cgroup_data;
struct task_struct;
struct cgroup;
struct dst_entry;

#include "network_names.h"
#include "network_packet.h"
#include "network_socket.h"
#include "sock_filter.h"
#include "tcp_known.h"
#include "tcp_identity.h"
#include "magnet_socket.h"
#include "magnet_log.h"

/* The system calls that send or receive, of 64-bit and of 32-bit programs: other calls of these
 * numbers do no harm.
 */
#define MAGNET_BIT(number) (1ull << (number))
#define MAGNET_FIRST_CALLS                                                                         \
    (MAGNET_BIT(0) | MAGNET_BIT(1) | MAGNET_BIT(3) | MAGNET_BIT(4) | MAGNET_BIT(19) |              \
     MAGNET_BIT(20) | MAGNET_BIT(40) | MAGNET_BIT(44) | MAGNET_BIT(45) | MAGNET_BIT(46) |          \
     MAGNET_BIT(47))

#if USE_magnet_calls_begin
PROBE(magnet_calls_begin, "SOCK_SEND SOCK_RECV", "btf:sys_enter raw:sys_enter")
{
    u64 number = ARG(1);

    if (number < 64 ? MAGNET_FIRST_CALLS >> number & 1
                    : number == 275 || number == 299 || number == 307 || number == 426)
        magnet_enter();
}
#endif

#if USE_magnet_sent
PROBE(magnet_sent, "SOCK_SEND MAGNET_CONNECTION", "btf:sock_send_length raw:sock_send_length")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct magnet_event e = {};

    if (!magnet_is_tcp(DIRECT, sk))
        return;
    e.connection = magnet_connection(ctx, cpu, DIRECT, sk);
    e.entered = magnet_entered();
    e.size = ARG(1);
    e.seq_hi = READ(0, tp, write_seq);
    e.seq_lo = e.seq_hi - (e.size > 0 ? e.size : 0);
    klogger(SOCK_SEND, MAGNET_SOCKET(e, tp));
}
#endif

#if USE_magnet_take
PROBE(magnet_take, "TCP_SEND MAGNET_CONNECTION", "btf:tcp_sendmsg_locked raw:tcp_sendmsg_locked")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct magnet_event e = {};

    e.connection = magnet_connection(ctx, cpu, DIRECT, sk);
    e.size = READ(0, (struct msghdr *)ARG(1), msg_iter.count);
    e.seq_lo = READ(0, tp, write_seq);
    e.seq_hi = e.seq_lo + e.size;
    klogger(TCP_SEND, MAGNET_SOCKET(e, tp));
}
#endif

/* The two families have a function each; both have (net, sk, skb). */
static __always_inline void magnet_output(void *ctx, struct klogger_cpu *cpu, struct sk_buff *skb) {
    struct dst_entry *dst = (struct dst_entry *)(READ(0, skb, _skb_refdst) & ~1ul);
    struct network_packet packet;
    struct magnet_event e = {};

    if (!READ(0, skb, skb_iif) &&
        magnet_parse(ctx, cpu, 0, skb, (u8 *)READ(0, skb, head) + READ(0, skb, network_header), 0,
                     READ(0, dst, dev), &packet, &e))
        klogger(IP_SEND, MAGNET_PACKET(e, packet));
}

#if USE_magnet_out
PROBE(magnet_out, "IP_SEND", "fentry:ip_output kprobe:ip_output")
{ magnet_output(ctx, cpu, (struct sk_buff *)ARG(2)); }
#endif

#if USE_magnet_out6
PROBE(magnet_out6, "IP_SEND", "fentry:ip6_output kprobe:ip6_output")
{ magnet_output(ctx, cpu, (struct sk_buff *)ARG(2)); }
#endif

#if USE_magnet_queue
PROBE(magnet_queue, "DEV_SEND MAGNET_CONNECTION", "btf:net_dev_queue raw:net_dev_queue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct network_packet packet;
    struct magnet_event e = {};

    if (network_is_ip(READ(DIRECT, skb, protocol)) && !READ(DIRECT, skb, skb_iif) &&
        magnet_parse(ctx, cpu, DIRECT, skb,
                     (u8 *)READ(DIRECT, skb, head) + READ(DIRECT, skb, network_header), 0,
                     READ(DIRECT, skb, dev), &packet, &e))
        klogger(DEV_SEND, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_arrive
PROBE(magnet_arrive, "DEV_RECV", "btf:netif_receive_skb raw:netif_receive_skb")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct network_packet packet;
    struct magnet_event e = {};

    if (network_is_ip(READ(DIRECT, skb, protocol)) &&
        magnet_parse(ctx, cpu, DIRECT, skb, (u8 *)READ(DIRECT, skb, data), 1,
                     READ(DIRECT, skb, dev), &packet, &e))
        klogger(DEV_RECV, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_deliver
PROBE(magnet_deliver, "IP_RECV", "btf:tcp_probe raw:tcp_probe")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(1);
    struct network_packet packet;
    struct magnet_event e = {};

    if (magnet_parse(ctx, cpu, 0, skb, (u8 *)READ(0, skb, head) + READ(0, skb, network_header), 1,
                     0, &packet, &e)) {
        e.connection = magnet_connection(ctx, cpu, DIRECT, (struct sock *)ARG(0));
        e.device = READ(0, skb, skb_iif);
        klogger(IP_RECV, MAGNET_PACKET(e, packet));
    }
}
#endif

#if USE_magnet_ready
PROBE(magnet_ready, "TCP_RECV MAGNET_CONNECTION", "btf:sk_data_ready raw:sk_data_ready")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct magnet_event e = {};

    if (!magnet_is_tcp(DIRECT, sk))
        return;
    e.connection = magnet_connection(ctx, cpu, DIRECT, sk);
    e.seq_lo = e.ack = magnet_copied(tp);
    e.seq_hi = magnet_in_order(tp);
    e.size = e.seq_hi - e.seq_lo;
    klogger(TCP_RECV, MAGNET_SOCKET(e, tp));
}
#endif

#if USE_magnet_received
PROBE(magnet_received, "SOCK_RECV MAGNET_CONNECTION", "btf:sock_recv_length raw:sock_recv_length")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct tcp_sock *tp = (struct tcp_sock *)sk;
    struct magnet_event e = {};

    if (!magnet_is_tcp(DIRECT, sk))
        return;
    e.connection = magnet_connection(ctx, cpu, DIRECT, sk);
    e.entered = magnet_entered();
    e.size = (u32)ARG(2) & NETWORK_MSG_PEEK ? 0 : ARG(1);
    e.seq_hi = magnet_copied(tp);
    e.seq_lo = e.seq_hi - (e.size > 0 ? e.size : 0);
    klogger(SOCK_RECV, MAGNET_SOCKET(e, tp));
}
#endif

#if USE_magnet_enqueue
PROBE(magnet_enqueue, "QDISC_ENQUEUE", "btf:qdisc_enqueue raw:qdisc_enqueue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(2);
    struct network_packet packet;
    struct magnet_event e = {};

    if (network_is_ip(READ(DIRECT, skb, protocol)) && !READ(DIRECT, skb, skb_iif) &&
        magnet_parse(ctx, cpu, DIRECT, skb,
                     (u8 *)READ(DIRECT, skb, head) + READ(DIRECT, skb, network_header), 0,
                     READ(DIRECT, skb, dev), &packet, &e))
        klogger(QDISC_ENQUEUE, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_dequeue
PROBE(magnet_dequeue, "QDISC_DEQUEUE", "raw:qdisc_dequeue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(3);
    struct network_packet packet;
    struct magnet_event e = {};

    if (skb && network_is_ip(READ(0, skb, protocol)) && !READ(0, skb, skb_iif) &&
        magnet_parse(ctx, cpu, 0, skb, (u8 *)READ(0, skb, head) + READ(0, skb, network_header), 0,
                     READ(0, skb, dev), &packet, &e))
        klogger(QDISC_DEQUEUE, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_start
PROBE(magnet_start, "DRIVER_START DRIVER_RESULT", "btf:net_dev_start_xmit raw:net_dev_start_xmit")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct magnet_driver *driver = magnet_driver_of((u64)skb, ARG(1));

    if (!driver)
        return;
    driver->skb = 0;
    __builtin_memset(&driver->event, 0, sizeof(driver->event));
    if (network_is_ip(READ(DIRECT, skb, protocol)) && !READ(DIRECT, skb, skb_iif) &&
        magnet_parse(ctx, cpu, DIRECT, skb,
                     (u8 *)READ(DIRECT, skb, head) + READ(DIRECT, skb, network_header), 0,
                     READ(DIRECT, skb, dev), &driver->packet, &driver->event)) {
        driver->skb = (u64)skb;
        driver->device = ARG(1);
        klogger(DRIVER_START, MAGNET_PACKET(driver->event, driver->packet));
    }
}
#endif

#if USE_magnet_result
PROBE(magnet_result, "DRIVER_RESULT", "btf:net_dev_xmit raw:net_dev_xmit")
{
    u64 skb = ARG(0), device = ARG(2);
    struct magnet_driver *driver = magnet_driver_of(skb, device);
    s32 result = ARG(1);

    if (!driver || driver->skb != skb || driver->device != device)
        return;
    driver->skb = 0;
    if (result)
        driver->event.size = result < 0 ? result : -MAGNET_EBUSY;
    klogger(DRIVER_RESULT, MAGNET_PACKET(driver->event, driver->packet));
}
#endif

/*
 * Identities begin and end as in the schema tcp (tcp.bpf.c), whose programs do it where that is
 * recorded too. A connection is named here, so that its packets find it.
 */
#if USE_magnet_state
PROBE(magnet_state, "MAGNET_CONNECTION", "btf:inet_sock_set_state raw:inet_sock_set_state")
{
    struct sock *sk = (struct sock *)ARG(0);
    u32 old = ARG(1), new = ARG(2);
    u64 key = (u64)sk;

#ifndef INDEX_state_change
    if (new == STATE_SYN_SENT || (new == STATE_SYN_RECV &&old == STATE_LISTEN))
        new_identity(key, connections.lookup(&key));
#endif
    if (new == MAGNET_ESTABLISHED && magnet_is_tcp(DIRECT, sk))
        magnet_connection(ctx, cpu, DIRECT, sk);
}
#endif

#if USE_magnet_end
PROBE(magnet_end, "MAGNET_CONNECTION", "btf:tcp_destroy_sock raw:tcp_destroy_sock")
{
#ifndef INDEX_destroy
    u64 key = ARG(0);

    end_identity(key);
#endif
}
#endif
