/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs that log the schema network. */
#include "klogger.h"
#include "system_call.h"

#include "network_names.h"
#include "network_packet.h"
#include "network_socket.h"
#include "network_log.h"

/* Each packet that is sent: after fragmentation, and before a device splits large segments. */
#if USE_net_out
PROBE(net_out,
      "TCP_SENDSYN TCP_SENDSYNACK TCP_SENDACK TCP_SENDPACKET ICMP_SEND ICMP_REPLY IP_SENDPACKET",
      "btf:net_dev_queue raw:net_dev_queue")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct network_packet packet;
    u32 before, size;
    u8 *at;

    /* A packet that came from a device is forwarded: no socket of this host sent it. */
    if (!network_is_ip(READ(DIRECT, skb, protocol)) || READ(DIRECT, skb, skb_iif))
        return;
    at = (u8 *)READ(DIRECT, skb, head) + READ(DIRECT, skb, network_header);
    before = at - (u8 *)READ(DIRECT, skb, data);
    size = READ(DIRECT, skb, len) - before;
    if (network_parse(at, size, size - READ(DIRECT, skb, data_len), &packet))
        network_log_sent(ctx, cpu, DIRECT, skb, &packet);
}
#endif

/* Each packet that arrives; devices may have merged several. */
#if USE_net_in
PROBE(net_in,
      "TCP_RECVSYN TCP_RECVSYNACK TCP_RECVACK TCP_RECEIVEPACKET ICMP_RECEIVE IP_RECEIVEPACKET",
      "btf:netif_receive_skb raw:netif_receive_skb")
{
    struct sk_buff *skb = (struct sk_buff *)ARG(0);
    struct network_packet packet;
    u8 bits = 0;
    u32 size;

    if (!network_is_ip(READ(DIRECT, skb, protocol)))
        return;
    bpf_probe_read_kernel(&bits, 1, (u8 *)skb + BITS_sk_buff_pkt_type_OFFSET);
    if (BITS_sk_buff_pkt_type(bits) >= NETWORK_OTHERHOST)
        return;
    size = READ(DIRECT, skb, len);
    if (network_parse((u8 *)READ(DIRECT, skb, data), size, size - READ(DIRECT, skb, data_len),
                      &packet))
        network_log_received(ctx, cpu, DIRECT, skb, &packet);
}
#endif

/* System calls are logged when they return: only then does the socket have its ends. */
#if USE_net_calls
/* clang-format off */
PROBE(net_calls,
      "SOCKET_CREATE SOCKET_ACCEPT SOCKET_ASSIGNADDR SOCKET_BIND SOCKET_CONNECT UDP_CONNECT UDP_DISCONNECT",
      "btf:sys_exit raw:sys_exit")
/* clang-format on */
{
    struct pt_regs *regs = (struct pt_regs *)ARG(0);
    u32 number = CALL_NUMBER(DIRECT, regs);
    s64 result = ARG(1);
    struct network_ends ends = {};
    struct sock *sk, *listener;
    u32 pid, descriptor;

    if (number == CALL_SOCKET || number == CALL_ACCEPT || number == CALL_ACCEPT4) {
        descriptor = result;
        if (result < 0)
            return;
    } else if (number == CALL_CONNECT || number == CALL_BIND) {
        descriptor = CALL_ARGUMENT(DIRECT, regs, 0);
        if (result && (number == CALL_BIND || result != -NETWORK_EINPROGRESS))
            return;
    } else {
        return;
    }
    if (call_is_compat())
        return;
    sk = network_socket_in(network_file_of(descriptor));
    if (!sk || !network_ends_of(0, sk, &ends))
        return;
    pid = network_pid();
    if (number == CALL_SOCKET) {
        klogger(SOCKET_CREATE, (u64)sk, ends.family, ends.type, ends.protocol, pid);
    } else if (number == CALL_BIND) {
        klogger(SOCKET_ASSIGNADDR, (u64)sk, ends.laddr, ends.raddr, ends.protocol, pid, ends.lport,
                ends.rport);
        klogger(SOCKET_BIND, (u64)sk, ends.laddr, ends.protocol, pid, ends.lport);
    } else if (number == CALL_CONNECT) {
        network_log_connect(ctx, cpu, sk, &ends, result, pid);
    } else {
        listener = network_socket_in(network_file_of(CALL_ARGUMENT(DIRECT, regs, 0)));
        klogger(SOCKET_ACCEPT, (u64)sk, (u64)listener, ends.laddr, ends.raddr, ends.protocol, pid,
                ends.lport, ends.rport);
    }
}
#endif

/* inet_release() closes IPv6 sockets too. Without it: close() of the last descriptor. */
#if USE_net_close
PROBE(net_close, "SOCKET_CLOSE",
      "fentry:inet_release kprobe:inet_release btf:sys_enter raw:sys_enter")
{
    if (kind == KLOGGER_BTF || kind == KLOGGER_RAW) {
        struct pt_regs *regs;
        struct file *file;
        struct sock *sk;

        if ((u32)ARG(1) != CALL_CLOSE || call_is_compat())
            return;
        regs = (struct pt_regs *)ARG(0);
        file = network_file_of(CALL_ARGUMENT(DIRECT, regs, 0));
        sk = network_socket_in(file);
        if (sk && network_is_last(file))
            network_log_close(ctx, cpu, sk);
    } else {
        network_log_close(ctx, cpu, READ(0, (struct socket *)ARG(0), sk));
    }
}
#endif

/* Without inet_release(): a process that ends closes the sockets that no other process has. */
#if USE_net_exit
PROBE(net_exit, "SOCKET_CLOSE", "btf:sched_process_exit raw:sched_process_exit")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
    struct files_struct *files;
    struct fdtable *table;
    u32 descriptors;
    u8 *array;

    if (KIND_net_close == KLOGGER_FENTRY || KIND_net_close == KLOGGER_KPROBE)
        return;
    files = READ(0, task, files);
    if (!files)
        return;
#if ARGUMENTS_sched_process_exit > 1
    /* Since 6.18 the tracepoint says whether this is the last thread. */
    if (!(u8)ARG(1))
        return;
#else
    if (READ(0, files, count.counter) != 1)
        return;
#endif
    table = READ(0, files, fdt);
    descriptors = READ(0, table, max_fds);
    array = (u8 *)READ(0, table, fd);
#pragma nounroll
    for (u32 descriptor = 0; descriptor < NETWORK_DESCRIPTORS; descriptor++) {
        struct file *file = 0;
        struct sock *sk;

        if (descriptor >= descriptors)
            break;
        bpf_probe_read_kernel(&file, sizeof(file), array + descriptor * sizeof(file));
        sk = network_socket_in(file);
        if (sk && network_is_last(file))
            network_log_close(ctx, cpu, sk);
    }
}
#endif

/* The states of TCP, which DCCP, SCTP and MPTCP use too. It also stores sockets, so that net_in
 * finds the socket of a packet. Before 6.18 an accepted connection gets its ends only when it
 * leaves SYN_RECV, which it does at once.
 */
#if USE_net_state
/* clang-format off */
PROBE(net_state,
      "SOCKET_LISTEN CONNECTION_HANDSHAKE CONNECTION_CLOSE TCP_DISCONNECT TCP_RECVSYN TCP_RECVSYNACK TCP_RECVACK TCP_RECEIVEPACKET",
      "btf:inet_sock_set_state raw:inet_sock_set_state")
/* clang-format on */
{
    struct sock *sk = (struct sock *)ARG(0);
    u32 from = ARG(1), to = ARG(2);
    struct network_ends ends = {};
    int connected = from != NETWORK_CLOSE && from != NETWORK_LISTEN && from != NETWORK_SYN_SENT;
    int breaks = to == NETWORK_CLOSE && (from == NETWORK_ESTABLISHED || from == NETWORK_SYN_RECV ||
                                         from == NETWORK_CLOSE_WAIT);

    if (!network_ends_of(DIRECT, sk, &ends))
        return;
    if (to == NETWORK_LISTEN || to == NETWORK_ESTABLISHED || to == NETWORK_CLOSE)
        network_track(DIRECT, sk, &ends, to == NETWORK_LISTEN || from == NETWORK_LISTEN,
                      to == NETWORK_CLOSE);
    if (to == NETWORK_LISTEN) {
        klogger(SOCKET_LISTEN, (u64)sk, ends.laddr, ends.protocol,
                READ(DIRECT, sk, sk_max_ack_backlog), network_pid(), ends.lport);
    } else if (to == NETWORK_SYN_RECV && from == NETWORK_LISTEN && !ends.rport) {
        network_mark(sk);
    } else if (to == NETWORK_SYN_SENT || (to == NETWORK_SYN_RECV && from == NETWORK_LISTEN) ||
               (to == NETWORK_ESTABLISHED && from == NETWORK_SYN_RECV && network_unmark(sk))) {
        klogger(CONNECTION_HANDSHAKE, (u64)sk, ends.laddr, ends.raddr, ends.protocol,
                to == NETWORK_SYN_SENT ? NETWORK_SYN_SENT : NETWORK_SYN_RECV, ends.lport,
                ends.rport);
    } else if (to == NETWORK_FIN_WAIT1 || to == NETWORK_LAST_ACK || breaks) {
        klogger(CONNECTION_CLOSE, (u64)sk, ends.laddr, ends.raddr, ends.protocol, from, to,
                ends.lport, ends.rport);
    }
    if (to == NETWORK_CLOSE && connected && network_is_tcp(&ends))
        klogger(TCP_DISCONNECT, (u64)sk, ends.laddr, ends.raddr, from, ends.lport, ends.rport);
}
#endif

/* Before 6.12 each family has its own function; net_send6 logs nothing where net_send is attached
 * to a tracepoint for both.
 */
#if USE_net_send
PROBE(net_send, "SOCKET_WRITE TCP_SEND UDP_SEND",
      "btf:sock_send_length raw:sock_send_length fexit:inet_sendmsg kprobe:inet_sendmsg")
{
    if (kind == KLOGGER_BTF || kind == KLOGGER_RAW)
        network_log_send_call(ctx, cpu, DIRECT, (struct sock *)ARG(0), ARG(1));
    else
        network_log_send_call(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk),
                              kind == KLOGGER_FEXIT ? ARG(3) : ARG(2));
}
#endif

#if USE_net_send6
PROBE(net_send6, "SOCKET_WRITE TCP_SEND UDP_SEND", "fexit:inet6_sendmsg kprobe:inet6_sendmsg")
{
    if (KIND_net_send == KLOGGER_FEXIT || KIND_net_send == KLOGGER_KPROBE)
        network_log_send_call(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk),
                              kind == KLOGGER_FEXIT ? ARG(3) : ARG(2));
}
#endif

#if USE_net_receive
PROBE(net_receive, "SOCKET_RECEIVE TCP_RECEIVE TCP_RECV_URGENTDATA UDP_RECEIVE",
      "btf:sock_recv_length raw:sock_recv_length fexit:inet_recvmsg kprobe:inet_recvmsg")
{
    if (kind == KLOGGER_BTF || kind == KLOGGER_RAW)
        network_log_receive_call(ctx, cpu, DIRECT, (struct sock *)ARG(0), ARG(1), ARG(2));
    else
        network_log_receive_call(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk),
                                 kind == KLOGGER_FEXIT ? ARG(4) : ARG(2), ARG(3));
}
#endif

#if USE_net_receive6
PROBE(net_receive6, "SOCKET_RECEIVE TCP_RECEIVE TCP_RECV_URGENTDATA UDP_RECEIVE",
      "fexit:inet6_recvmsg kprobe:inet6_recvmsg")
{
    if (KIND_net_receive == KLOGGER_FEXIT || KIND_net_receive == KLOGGER_KPROBE)
        network_log_receive_call(ctx, cpu, 0, READ(0, (struct socket *)ARG(0), sk),
                                 kind == KLOGGER_FEXIT ? ARG(4) : ARG(2), ARG(3));
}
#endif

/* The function is for both families; the tracepoint has only the socket. */
#if USE_net_queue
PROBE(net_queue, "UDP_QUEUESOCKETBUFFER",
      "fexit:__udp_enqueue_schedule_skb kprobe:__udp_enqueue_schedule_skb raw:sk_data_ready")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct network_ends ends = {};
    struct sk_buff *skb;

    if (kind == KLOGGER_FEXIT && (int)ARG(2))
        return;
    if (!network_kind_of(0, sk, &ends) || !network_is_udp(&ends))
        return;
    if (kind == KLOGGER_FEXIT || kind == KLOGGER_KPROBE) {
        skb = (struct sk_buff *)ARG(1);
    } else {
        /* The newest buffer; the queue itself where its reader was faster. */
        skb = READ(0, sk, sk_receive_queue.prev);
        if ((u64)skb == (u64)&sk->sk_receive_queue)
            skb = 0;
    }
    klogger(UDP_QUEUESOCKETBUFFER, (u64)sk, (u64)skb, skb ? READ(0, skb, len) : 0, ends.lport,
            ends.rport);
}
#endif

/* Here all protocols make one packet of the pending frames of a socket. They also call it for
 * frames that were never pending, with a queue of the caller.
 */
#if USE_net_push
PROBE(net_push, "UDP_PUSHPENDINGFRAMES ICMP_PUSHPENDINGFRAMES IP_PUSHPENDINGFRAMES",
      "fentry:__ip_make_skb kprobe:__ip_make_skb")
{ network_log_push(ctx, cpu, (struct sock *)ARG(0), ARG(2)); }
#endif

#if USE_net_push6
PROBE(net_push6, "UDP_PUSHPENDINGFRAMES ICMP_PUSHPENDINGFRAMES IP_PUSHPENDINGFRAMES",
      "fentry:__ip6_make_skb kprobe:__ip6_make_skb")
{ network_log_push(ctx, cpu, (struct sock *)ARG(0), ARG(1)); }
#endif

#if USE_net_flush
PROBE(net_flush, "UDP_FLUSHPENDINGFRAMES IP_FLUSHPENDINGFRAMES",
      "fentry:ip_flush_pending_frames kprobe:ip_flush_pending_frames")
{ network_log_flush(ctx, cpu, (struct sock *)ARG(0)); }
#endif

#if USE_net_flush6
PROBE(net_flush6, "UDP_FLUSHPENDINGFRAMES IP_FLUSHPENDINGFRAMES",
      "fentry:ip6_flush_pending_frames kprobe:ip6_flush_pending_frames")
{ network_log_flush(ctx, cpu, (struct sock *)ARG(0)); }
#endif
