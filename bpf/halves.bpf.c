// SPDX-License-Identifier: GPL-2.0-only
/* For `tcpkmon try --live`: half of the new connections of some ports get socket options.
 *
 * A program of type sock_ops, attached to a control group. It decides when a handshake is over, by
 * chance, and notes what it decided. collector/loader/halving.py fills the maps and reads them.
 */
#define MOST_OPTIONS 8
#define MOST_CHOSEN  65536
#define VALUE_BYTES  16
#define IPV6         10
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif

struct halves_option {
    u32 level;
    u32 name;
    u32 size; /* of the value: 4 or VALUE_BYTES; 0: no option */
    char value[VALUE_BYTES];
};

/* A new connection. Addresses are in network order, ports in the machine's. */
struct halves_chosen {
    u64 time; /* written last; 0: not whole */
    u64 cookie;
    u32 local[4];
    u32 remote[4];
    u32 family;
    u32 lport;
    u32 rport;
    u32 has_options;
    s32 error; /* of the first option that the kernel refused, and its place */
    u32 refused;
};

BPF_ARRAY(halves_options, struct halves_option, MOST_OPTIONS);
BPF_ARRAY(halves_ports, u32, 65536);
BPF_ARRAY(halves_count, u64, 1);
BPF_ARRAY(halves_chosen, struct halves_chosen, MOST_CHOSEN);

static __always_inline void note_ends(struct bpf_sock_ops *ops, struct halves_chosen *chosen) {
    chosen->family = ops->family;
    if (chosen->family != IPV6) {
        chosen->local[0] = ops->local_ip4;
        chosen->remote[0] = ops->remote_ip4;
        return;
    }
    chosen->local[0] = ops->local_ip6[0];
    chosen->local[1] = ops->local_ip6[1];
    chosen->local[2] = ops->local_ip6[2];
    chosen->local[3] = ops->local_ip6[3];
    chosen->remote[0] = ops->remote_ip6[0];
    chosen->remote[1] = ops->remote_ip6[1];
    chosen->remote[2] = ops->remote_ip6[2];
    chosen->remote[3] = ops->remote_ip6[3];
}

static __always_inline void set_option(struct bpf_sock_ops *ops, struct halves_chosen *chosen,
                                       u32 place) {
    struct halves_option *option = halves_options.lookup(&place);
    if (!option || !option->size)
        return;
    s32 error;
    if (option->size == 4)
        error = bpf_setsockopt(ops, option->level, option->name, option->value, 4);
    else
        error = bpf_setsockopt(ops, option->level, option->name, option->value, VALUE_BYTES);
    if (error && !chosen->error) {
        chosen->error = error;
        chosen->refused = place;
    }
}

int halve(struct bpf_sock_ops *ops) {
    u32 op = ops->op;
    u32 local = ops->local_port, remote = __builtin_bswap32(ops->remote_port);
    u32 port, first = 0;
    if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
        port = remote;
    else if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
        port = local;
    else
        return 1;
    u32 *wanted = halves_ports.lookup(&port);
    u64 *count = halves_count.lookup(&first);
    if (!wanted || !*wanted || !count)
        return 1;
    /* When the notes are full, no connection is changed. */
    u64 serial = __sync_fetch_and_add(count, 1);
    if (serial >= MOST_CHOSEN)
        return 1;
    u32 place = serial;
    struct halves_chosen *chosen = halves_chosen.lookup(&place);
    if (!chosen)
        return 1;
    chosen->cookie = bpf_get_socket_cookie(ops);
    chosen->lport = local;
    chosen->rport = remote;
    note_ends(ops, chosen);
    if (bpf_get_prandom_u32() & 1) {
        chosen->has_options = 1;
        set_option(ops, chosen, 0);
        set_option(ops, chosen, 1);
        set_option(ops, chosen, 2);
        set_option(ops, chosen, 3);
        set_option(ops, chosen, 4);
        set_option(ops, chosen, 5);
        set_option(ops, chosen, 6);
        set_option(ops, chosen, 7);
    }
    chosen->time = bpf_ktime_get_ns();
    return 1;
}
