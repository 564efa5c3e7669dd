/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs that log the schema magnet. */
#include "klogger.h"
#include "network_names.h"
#include "network_packet.h"
#include "sock_filter.h"

/* Types of members, besides those of network_names.h. */
struct cgroup;
struct dst_entry;
struct inet_connection_sock;
struct inode;
struct iov_iter;
struct kernfs_node;
struct msghdr;
struct net;
struct skb_shared_info;
struct sock_cgroup_data;
struct socket_alloc;
struct task_struct;

#include "tcp_known.h"
#include "tcp_identity.h"
#include "magnet_socket.h"
#include "magnet_call.h"
#include "magnet_log.h"

/* At the begin of each system call. */
#if USE_magnet_enter
PROBE(magnet_enter, "+SOCK_SEND +SOCK_RECV +TCP_SEND", "btf:sys_enter raw:sys_enter")
{
    if (magnet_moves_data(ARG(1)))
        magnet_begin_call();
}
#endif

/* Before 6.6 each family has its own function; magnet_sent6 logs nothing where magnet_sent is at
 * the tracepoint for both. So it is with magnet_received6.
 */
#if USE_magnet_sent
PROBE(magnet_sent, "SOCK_SEND", "btf:sock_send_length raw:sock_send_length fexit:inet_sendmsg")
{
    if (kind == KLOGGER_FEXIT)
        magnet_log_sent(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk), ARG(3));
    else
        magnet_log_sent(ctx, cpu, DIRECT, (struct sock *)ARG(0), ARG(1));
}
#endif

#if USE_magnet_sent6
PROBE(magnet_sent6, "SOCK_SEND", "fexit:inet6_sendmsg")
{
    if (KIND_magnet_sent == KLOGGER_FEXIT)
        magnet_log_sent(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk), ARG(3));
}
#endif

/* The tracepoint tells of each new buffer, with what is left of the call then; the first tells of
 * the whole call, as the function does.
 */
#if USE_magnet_taken
/* clang-format off */
PROBE(magnet_taken, "TCP_SEND",
      "fentry:tcp_sendmsg_locked kprobe:tcp_sendmsg_locked btf:tcp_sendmsg_locked raw:tcp_sendmsg_locked")
/* clang-format on */
{
    struct sock *sk = (struct sock *)ARG(0);
    struct tcp_sock *tp = MAGNET_TP(DIRECT, sk);
    struct magnet_event e = {};
    struct magnet_who who = {};

    magnet_identify(ctx, cpu, DIRECT, sk, 1, 0, &who);
    if (who.left_out) {
        MAGNET_LEFT_OUT(TCP_SEND, who.left_out);
        return;
    }
    if (!tp)
        return;
    e.connection = who.id;
    e.size = READ(DIRECT, (struct msghdr *)ARG(1), msg_iter.count);
    e.seq_lo = READ(DIRECT, tp, write_seq);
    e.seq_hi = e.seq_lo + e.size;
    e.flags = magnet_newest_flags(&sk->sk_write_queue);
    if (magnet_is_first(e.seq_hi))
        klogger(TCP_SEND, MAGNET_SOCKET(DIRECT, e, tp));
}
#endif

/* UDP over IPv6 hands datagrams to IPv4 addresses on to udp_sendmsg(). */
#if USE_magnet_datagram
PROBE(magnet_datagram, "TCP_SEND", "fentry:udp_sendmsg kprobe:udp_sendmsg")
{
    struct sock *sk = (struct sock *)ARG(0);

    if (READ(0, sk, __sk_common.skc_family) == FAMILY_V4)
        magnet_log_datagram(ctx, cpu, sk, ARG(2));
}
#endif

#if USE_magnet_datagram6
PROBE(magnet_datagram6, "TCP_SEND", "fentry:udpv6_sendmsg kprobe:udpv6_sendmsg")
{ magnet_log_datagram(ctx, cpu, (struct sock *)ARG(0), ARG(2)); }
#endif

#if USE_magnet_out
PROBE(magnet_out, "IP_SEND", "fentry:ip_output kprobe:ip_output nf:LOCAL_OUT")
{
    if (!KLOGGER_ENABLED(IP_SEND))
        return;
    if (kind == KLOGGER_NF) {
        struct nf_hook_state *state = (struct nf_hook_state *)ARG(0);
        struct sk_buff *skb = (struct sk_buff *)ARG(1);
        struct network_packet packet;
        struct magnet_event e = {};
        int found = magnet_packet(ctx, cpu, DIRECT, 0, skb, MAGNET_HEADER(DIRECT, skb),
                                  READ(DIRECT, state, out), READ(DIRECT, state, net), &packet, &e);

        if (MAGNET_ADMIT(IP_SEND, found))
            klogger(IP_SEND, MAGNET_PACKET(e, packet));
    } else {
        magnet_log_output(ctx, cpu, (struct net *)ARG(0), (struct sk_buff *)ARG(2));
    }
}
#endif

#if USE_magnet_out6
PROBE(magnet_out6, "IP_SEND", "fentry:ip6_output kprobe:ip6_output")
{ magnet_log_output(ctx, cpu, (struct net *)ARG(0), (struct sk_buff *)ARG(2)); }
#endif

#if USE_magnet_queue
PROBE(magnet_queue, "DEV_SEND", "btf:net_dev_queue raw:net_dev_queue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct network_packet packet;
    struct magnet_event e = {};
    int found;

    if (!KLOGGER_ENABLED(DEV_SEND))
        return;
    found = magnet_sent_packet(ctx, cpu, DIRECT, 0, skb, &packet, &e);
    if (MAGNET_ADMIT(DEV_SEND, found))
        klogger(DEV_SEND, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_arrival
PROBE(magnet_arrival, "DEV_RECV", "btf:netif_receive_skb raw:netif_receive_skb")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct net_device *device = READ(DIRECT, skb, dev);
    struct network_packet packet;
    struct magnet_event e = {};
    int found;

    if (!KLOGGER_ENABLED(DEV_RECV) || !network_is_ip(READ(DIRECT, skb, protocol)) ||
        magnet_is_foreign(DIRECT, skb))
        return;
    found = magnet_packet(ctx, cpu, DIRECT, MAGNET_RECEIVED | MAGNET_FAST, skb,
                          (u8 *)READ(DIRECT, skb, data), device, READ(DIRECT, device, nd_net.net),
                          &packet, &e);
    if (MAGNET_ADMIT(DEV_RECV, found))
        klogger(DEV_RECV, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_delivery
/* clang-format off */
PROBE(magnet_delivery, "IP_RECV",
      "fentry:ip_protocol_deliver_rcu kprobe:ip_protocol_deliver_rcu nf:LOCAL_IN btf:tcp_probe raw:tcp_probe")
/* clang-format on */
{
    struct network_packet packet;
    struct magnet_event e = {};
    struct net_device *device;
    struct sk_buff *skb;
    struct net *net;
    int found;

    if (!KLOGGER_ENABLED(IP_RECV))
        return;
    if (kind == KLOGGER_NF) {
        struct nf_hook_state *state = (struct nf_hook_state *)ARG(0);

        skb = (struct sk_buff *)ARG(1);
        device = READ(DIRECT, state, in);
        net = READ(DIRECT, state, net);
    } else {
        skb = (struct sk_buff *)ARG(1);
        device = READ(DIRECT, skb, dev);
        net = device ? READ(DIRECT, device, nd_net.net) : 0;
    }
    found = magnet_packet(ctx, cpu, DIRECT, MAGNET_RECEIVED, skb, MAGNET_HEADER(DIRECT, skb),
                          device, net, &packet, &e);
    if (MAGNET_ADMIT(IP_RECV, found))
        klogger(IP_RECV, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_delivery6
PROBE(magnet_delivery6, "IP_RECV",
      "fentry:ip6_protocol_deliver_rcu kprobe:ip6_protocol_deliver_rcu")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(1);
    struct net_device *device = READ(DIRECT, skb, dev);
    struct network_packet packet;
    struct magnet_event e = {};
    int found;

    if (!KLOGGER_ENABLED(IP_RECV))
        return;
    found = magnet_packet(ctx, cpu, DIRECT, MAGNET_RECEIVED, skb, MAGNET_HEADER(DIRECT, skb),
                          device, READ(DIRECT, device, nd_net.net), &packet, &e);
    if (MAGNET_ADMIT(IP_RECV, found))
        klogger(IP_RECV, MAGNET_PACKET(e, packet));
}
#endif

#if USE_magnet_ready
PROBE(magnet_ready, "TCP_RECV",
      "btf:sk_data_ready raw:sk_data_ready fentry:sock_def_readable kprobe:sock_def_readable")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct magnet_event e = {};
    struct magnet_who who = {};

    if (!KLOGGER_ENABLED(TCP_RECV))
        return;
    magnet_identify(ctx, cpu, DIRECT, sk, 0, 0, &who);
    if (who.left_out) {
        MAGNET_LEFT_OUT(TCP_RECV, who.left_out);
    } else if (who.protocol == PROTOCOL_TCP) {
        struct tcp_sock *tp = MAGNET_TP(DIRECT, sk);

        if (!tp)
            return;
        e.connection = who.id;
        e.seq_lo = e.ack = magnet_copied(DIRECT, tp);
        e.seq_hi = magnet_in_order(DIRECT, tp);
        e.size = e.seq_hi - e.seq_lo;
        e.flags = magnet_newest_flags(&sk->sk_receive_queue);
        klogger(TCP_RECV, MAGNET_SOCKET(DIRECT, e, tp));
    } else if (who.protocol == PROTOCOL_UDP) {
        /* The newest datagram; the queue itself where its reader was faster. */
        struct sk_buff *skb = READ(0, sk, sk_receive_queue.prev);

        e.connection = who.id;
        e.flags = MAGNET_UDP;
        e.size = (u64)skb == (u64)&sk->sk_receive_queue ? 0 : READ(0, skb, len);
        klogger(TCP_RECV, MAGNET_NO_STATE(e));
    }
}
#endif

#if USE_magnet_received
PROBE(magnet_received, "SOCK_RECV", "btf:sock_recv_length raw:sock_recv_length fexit:inet_recvmsg")
{
    if (kind == KLOGGER_FEXIT)
        magnet_log_received(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk), ARG(4), ARG(3));
    else
        magnet_log_received(ctx, cpu, DIRECT, (struct sock *)ARG(0), ARG(1), ARG(2));
}
#endif

#if USE_magnet_received6
PROBE(magnet_received6, "SOCK_RECV", "fexit:inet6_recvmsg")
{
    if (KIND_magnet_received == KLOGGER_FEXIT)
        magnet_log_received(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk), ARG(4), ARG(3));
}
#endif

#if USE_magnet_enqueue
PROBE(magnet_enqueue, "QDISC_ENQUEUE", "btf:qdisc_enqueue raw:qdisc_enqueue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(2);
    struct network_packet packet;
    struct magnet_event e = {};
    int found;

    if (!KLOGGER_ENABLED(QDISC_ENQUEUE))
        return;
    found = magnet_sent_packet(ctx, cpu, DIRECT, MAGNET_FAST, skb, &packet, &e);
    if (MAGNET_ADMIT(QDISC_ENQUEUE, found))
        klogger(QDISC_ENQUEUE, MAGNET_PACKET(e, packet));
}
#endif

/* The skb is null where the queue has none to give; several come as a list. */
#if USE_magnet_dequeue
PROBE(magnet_dequeue, "QDISC_DEQUEUE", "btf:qdisc_dequeue raw:qdisc_dequeue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(3);

#pragma nounroll
    for (u32 i = 0; i < MAGNET_BULK && skb; i++) {
        struct network_packet packet;
        struct magnet_event e = {};
        int found = magnet_sent_packet(ctx, cpu, DIRECT, MAGNET_FAST, skb, &packet, &e);

        if (found == MAGNET_FOUND)
            magnet_mark_again(DIRECT, skb, 0, &e);
        if (MAGNET_ADMIT(QDISC_DEQUEUE, found))
            klogger(QDISC_DEQUEUE, MAGNET_PACKET(e, packet));
        skb = READ(DIRECT, skb, next);
    }
}
#endif

#if USE_magnet_start
PROBE(magnet_start, "DRIVER_START +DRIVER_RESULT", "btf:net_dev_start_xmit raw:net_dev_start_xmit")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct magnet_driver *driver = magnet_driver_of((u64)skb, ARG(1));

    if (!driver)
        return;
    __builtin_memset(&driver->event, 0, sizeof(driver->event));
    driver->skb = (u64)skb;
    driver->device = ARG(1);
    driver->found =
        magnet_sent_packet(ctx, cpu, DIRECT, MAGNET_FAST, skb, &driver->packet, &driver->event);
    if (driver->found == MAGNET_FOUND)
        magnet_mark_again(DIRECT, skb, 1, &driver->event);
    if (MAGNET_ADMIT(DRIVER_START, driver->found))
        klogger(DRIVER_START, MAGNET_PACKET(driver->event, driver->packet));
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
    if (MAGNET_ADMIT(DRIVER_RESULT, driver->found))
        klogger(DRIVER_RESULT, MAGNET_PACKET(driver->event, driver->packet));
}
#endif

/*
 * Identities begin and end as in the schema tcp (tcp.bpf.c), whose programs do it where that is
 * recorded too. An established connection is named here, so that its packets find it.
 */
#if USE_magnet_state
/* clang-format off */
PROBE(magnet_state,
      "MAGNET_CONNECTION +SOCK_SEND +TCP_SEND +IP_SEND +DEV_SEND +DEV_RECV +IP_RECV +TCP_RECV +SOCK_RECV +QDISC_ENQUEUE +QDISC_DEQUEUE +DRIVER_START +DRIVER_RESULT",
      "btf:inet_sock_set_state raw:inet_sock_set_state")
/* clang-format on */
{
    struct sock *sk = (struct sock *)ARG(0);
    u32 old = ARG(1), new = ARG(2);
    struct magnet_who who = {};

    if (new == STATE_CLOSE)
        magnet_close(DIRECT, sk);
#ifndef INDEX_state_change
    if (new == STATE_SYN_SENT || (new == STATE_SYN_RECV &&old == STATE_LISTEN))
        end_identity((u64)sk);
#endif
    if (new == STATE_SYN_SENT)
        magnet_identify(ctx, cpu, DIRECT, sk, 1, 0, &who);
    else if (new == STATE_ESTABLISHED)
        magnet_identify(ctx, cpu, DIRECT, sk, 0, 0, &who);
    if (new == STATE_ESTABLISHED && who.left_out == MAGNET_NO_ROOM)
        MAGNET_LEFT_OUT(MAGNET_CONNECTION, who.left_out);
}
#endif

#if USE_magnet_end
/* clang-format off */
PROBE(magnet_end,
      "+MAGNET_CONNECTION +SOCK_SEND +TCP_SEND +IP_SEND +DEV_SEND +DEV_RECV +IP_RECV +TCP_RECV +SOCK_RECV +QDISC_ENQUEUE +QDISC_DEQUEUE +DRIVER_START +DRIVER_RESULT",
      "btf:tcp_destroy_sock raw:tcp_destroy_sock")
/* clang-format on */
{
#ifndef INDEX_destroy
    end_identity((u64)ARG(0));
#endif
}
#endif
