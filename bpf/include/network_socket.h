/* SPDX-License-Identifier: GPL-2.0-only */
/* Sockets: their ends, their descriptors, and the socket of a packet: for network.bpf.c. */

/* The ends of a socket: addresses in network order, IPv4 as v4-mapped, ports in the machine's. */
struct network_ends {
    u64 laddr[2];
    u64 raddr[2];
    u32 protocol;
    u16 lport;
    u16 rport;
    u16 type;
    u16 family;
};

/* The key of a TCP socket, to find it by a packet. A listener has zeros for the remote end and the
 * addresses.
 */
struct network_tuple {
    u64 laddr[2];
    u64 raddr[2];
    u64 net;
    u16 lport;
    u16 rport;
    u32 zero;
};

BPF_TABLE("lru_hash", struct network_tuple, u64, network_sockets, 16384);

static __always_inline u32 network_pid(void) {
    return bpf_get_current_pid_tgid() >> 32;
}

/* Protocol, type and ports of a socket; 0 if it is not one of IPv4 or IPv6. */
static __always_inline int network_kind_of(const int direct, struct sock *sk,
                                           struct network_ends *ends) {
    ends->family = READ(direct, sk, __sk_common.skc_family);
    if (ends->family != NETWORK_AF_INET && ends->family != NETWORK_AF_INET6)
        return 0;
    ends->protocol = READ(direct, sk, sk_protocol);
    ends->type = READ(direct, sk, sk_type);
    ends->lport = READ(direct, sk, __sk_common.skc_num);
    if (!ends->lport)
        ends->lport = bpf_ntohs(READ(0, (struct inet_sock *)sk, inet_sport));
    ends->rport = bpf_ntohs(READ(direct, sk, __sk_common.skc_dport));
    return 1;
}

static __always_inline int network_ends_of(const int direct, struct sock *sk,
                                           struct network_ends *ends) {
    if (!network_kind_of(direct, sk, ends))
        return 0;
#ifdef HAVE_sock_common_skc_v6_daddr
    if (ends->family == NETWORK_AF_INET6) {
        bpf_probe_read_kernel(ends->laddr, 16, (void *)&sk->__sk_common.skc_v6_rcv_saddr);
        bpf_probe_read_kernel(ends->raddr, 16, (void *)&sk->__sk_common.skc_v6_daddr);
        return 1;
    }
#endif
    network_map_v4(ends->laddr, READ(direct, sk, __sk_common.skc_rcv_saddr));
    network_map_v4(ends->raddr, READ(direct, sk, __sk_common.skc_daddr));
    return 1;
}

static __always_inline int network_is_tcp(const struct network_ends *ends) {
    return ends->protocol == NETWORK_TCP && ends->type == NETWORK_STREAM;
}

static __always_inline int network_is_udp(const struct network_ends *ends) {
    return ends->protocol == NETWORK_UDP && ends->type == NETWORK_DGRAM;
}

/* The file of a descriptor in a table; null: none. */
static __always_inline struct file *network_file_at(struct fdtable *table, u32 descriptor) {
    struct file *file = 0;

    if (descriptor < READ(0, table, max_fds))
        bpf_probe_read_kernel(&file, sizeof(file),
                              (u8 *)READ(0, table, fd) + (u64)descriptor * sizeof(file));
    return file;
}

static __always_inline struct file *network_file_of(u32 descriptor) {
    struct task_struct *task = (struct task_struct *)bpf_get_current_task();
    struct files_struct *files = READ(0, task, files);

    return files ? network_file_at(READ(0, files, fdt), descriptor) : 0;
}

/* The socket of a file; null for other files and for no file, of which all reads give 0. */
static __always_inline struct sock *network_socket_in(struct file *file) {
    struct inode *inode = READ(0, file, f_inode);
    struct socket *socket;

    if ((READ(0, inode, i_mode) & 0170000) != 0140000)
        return 0;
    socket = (struct socket *)READ(0, file, private_data);
    return READ(0, socket, sk);
}

/* Whether closing a descriptor closes the file: it has no other reference. */
static __always_inline int network_is_last(struct file *file) {
#if defined(HAVE_file_f_ref)
    /* Since Linux 6.13 the counter is 0 for one reference. */
    return READ(0, file, f_ref.refcnt.counter) == 0;
#elif defined(HAVE_file_f_count)
    return READ(0, file, f_count.counter) == 1;
#else
    return 1;
#endif
}

/* The socket that is logged for segments of sk: for a connection request, its listener. */
static __always_inline u64 network_owner(struct sock *sk, u32 state) {
#ifdef HAVE_sock_common_skc_listener
    if (state == NETWORK_NEW_SYN_RECV)
        return (u64)READ(0, sk, __sk_common.skc_listener);
#endif
    return (u64)sk;
}

static __always_inline void network_store(struct network_tuple *tuple, u64 sk) {
    u64 *known = network_sockets.lookup(tuple);

    if (!known || *known != sk)
        network_sockets.update(tuple, &sk);
}

/* Stores a socket that is connected or listens, and deletes it when it is closed: another may use
 * its ports next.
 */
static __always_inline void network_track(const int direct, struct sock *sk,
                                          const struct network_ends *ends, int listens,
                                          int closed) {
    struct network_tuple tuple = {};
    u64 *known;

    tuple.net = (u64)READ(direct, sk, __sk_common.skc_net.net);
    tuple.lport = ends->lport;
    if (!listens) {
        tuple.laddr[0] = ends->laddr[0];
        tuple.laddr[1] = ends->laddr[1];
        tuple.raddr[0] = ends->raddr[0];
        tuple.raddr[1] = ends->raddr[1];
        tuple.rport = ends->rport;
    }
    if (!closed) {
        network_store(&tuple, (u64)sk);
        return;
    }
    known = network_sockets.lookup(&tuple);
    if (known && *known == (u64)sk)
        network_sockets.delete(&tuple);
}

/* Marks a socket whose remote end is not known yet. network_unmark() returns whether it was. */
static __always_inline void network_mark(struct sock *sk) {
    struct network_tuple tuple = {.laddr = {(u64)sk}, .zero = 1};

    network_store(&tuple, (u64)sk);
}

static __always_inline int network_unmark(struct sock *sk) {
    struct network_tuple tuple = {.laddr = {(u64)sk}, .zero = 1};

    return network_sockets.delete(&tuple) == 0;
}

/* The socket of a connection, or the listener at its port; 0: unknown. */
static __always_inline u64 network_find(struct network_tuple *tuple) {
    u64 *known = network_sockets.lookup(tuple);

    if (known)
        return *known;
    tuple->laddr[0] = 0;
    tuple->laddr[1] = 0;
    tuple->raddr[0] = 0;
    tuple->raddr[1] = 0;
    tuple->rport = 0;
    known = network_sockets.lookup(tuple);
    return known ? *known : 0;
}
