/* SPDX-License-Identifier: GPL-2.0-only */
/* The kernel's types and constants that network.bpf.c needs. */

/* collector/plan/kernel_types.py declares the kernel types that this text names. These are types
 * of members.
 */
struct files_struct;
struct in6_addr;
struct inet_cork;
struct inet_cork_full;
struct net_device;
struct sk_buff_head;
struct sock_common;

#define NETWORK_AF_INET      2
#define NETWORK_AF_INET6     10
#define NETWORK_STREAM       1
#define NETWORK_DGRAM        2
#define NETWORK_ESTABLISHED  1
#define NETWORK_SYN_SENT     2
#define NETWORK_SYN_RECV     3
#define NETWORK_FIN_WAIT1    4
#define NETWORK_TIME_WAIT    6
#define NETWORK_CLOSE        7
#define NETWORK_CLOSE_WAIT   8
#define NETWORK_LAST_ACK     9
#define NETWORK_LISTEN       10
#define NETWORK_NEW_SYN_RECV 12
#define NETWORK_MSG_OOB      1
#define NETWORK_MSG_PEEK     2
#define NETWORK_EINPROGRESS  115
#define NETWORK_FIN          1
#define NETWORK_SYN          2
#define NETWORK_RST          4
#define NETWORK_ACK          16
/* pkt_type of packets for other hosts (in promiscuous mode); higher ones: sent by this host. */
#define NETWORK_OTHERHOST 3
