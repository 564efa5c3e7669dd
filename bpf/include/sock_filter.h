/* SPDX-License-Identifier: GPL-2.0-only */
/* The filters: maps that collector/plan/filters.py fills, and the checks before a record is made.
 */
#include "followed.h"
#include "groups.h"

#define FILTER_PORTS        1
#define FILTER_LOCAL_PORTS  2
#define FILTER_REMOTE_PORTS 4
#define FILTER_PAIRS        8
#define FILTER_ADDRESSES    16
#define FILTER_V4           32
#define FILTER_V6           64
#define FILTER_NETNS        128
#define FILTER_CGROUPS      256
#define FILTER_PIDS         512
#define FILTER_USERS        1024
#define FILTER_ANY_PORTS    (FILTER_PORTS | FILTER_LOCAL_PORTS | FILTER_REMOTE_PORTS | FILTER_PAIRS)

#define FAMILY_V4 2
#define FAMILY_V6 10
/* The third word of ::ffff:0:0/96 in network order. */
#define MAPPED_PREFIX 0xffff0000u

/* A cgroup_level: filter_cgroups has each group that is known, by itself, and 0 for those that are
 * not to be recorded. One that it does not have is too new, and is recorded.
 */
#define GROUPS_BY_NAME 0xffffffffu
#ifndef KLOGGER_GROUPS
#define KLOGGER_GROUPS 64
#endif

struct filter_settings {
    u32 flags;
    u32 cgroup_level;
};

struct filter_address {
    u32 prefix_length;
    u8 address[16];
};

/* The two ends of a connection. Addresses are in network order, ports in the machine's. */
struct endpoints {
    u16 lport;
    u16 rport;
    u16 family;
    u16 state;
    u64 laddr[2];
    u64 raddr[2];
    u64 netns;
};

BPF_ARRAY(filter_settings, struct filter_settings, 1);
BPF_ARRAY(filter_ports, u32, 65536);
BPF_HASH(filter_pairs, u32, u32, 1024);
BPF_LPM_TRIE(filter_addresses, struct filter_address, u32, 1024);
BPF_HASH(filter_netns, u64, u32, 64);
BPF_HASH(filter_cgroups, u64, u32, KLOGGER_GROUPS);
BPF_HASH(filter_users, u32, u32, 64);

static __always_inline int filter_ports_of(u32 flags, const struct endpoints *ends) {
    u32 lport = ends->lport, rport = ends->rport;
    u32 *local, *remote;

    if (!(flags & FILTER_ANY_PORTS))
        return 1;
    local = filter_ports.lookup(&lport);
    remote = filter_ports.lookup(&rport);
    if (local && (*local & flags & (FILTER_PORTS | FILTER_LOCAL_PORTS)))
        return 1;
    if (remote && (*remote & flags & (FILTER_PORTS | FILTER_REMOTE_PORTS)))
        return 1;
    if (flags & FILTER_PAIRS) {
        u32 pair = lport << 16 | rport;

        return filter_pairs.lookup(&pair) != 0;
    }
    return 0;
}

static __always_inline int filter_address_of(u64 *address) {
    struct filter_address key = {.prefix_length = 128};

    __builtin_memcpy(key.address, address, 16);
    return filter_addresses.lookup(&key) != 0;
}

static __always_inline int filter_netns_of(u64 cookie) {
    return filter_netns.lookup(&cookie) != 0;
}

static __always_inline int filter_cgroup(u64 id) {
    return filter_cgroups.lookup(&id) != 0;
}

static __always_inline int filter_group(u64 id) {
    u32 *chosen = filter_cgroups.lookup(&id);

    return !chosen || *chosen;
}

/* Whether its packets are IPv4: also those of an IPv6 socket with v4-mapped addresses. */
static __always_inline int is_v4(const struct endpoints *ends) {
    return ends->family == FAMILY_V4 ||
           (ends->raddr[0] == 0 && (u32)ends->raddr[1] == MAPPED_PREFIX);
}

/* The filters by address, family and namespace. */
static __always_inline int filter_addresses_of(u32 flags, struct endpoints *ends) {
    if ((flags & FILTER_V4) && !is_v4(ends))
        return 0;
    if ((flags & FILTER_V6) && is_v4(ends))
        return 0;
    if ((flags & FILTER_ADDRESSES) && !filter_address_of(ends->laddr) &&
        !filter_address_of(ends->raddr))
        return 0;
    if ((flags & FILTER_NETNS) && !filter_netns_of(ends->netns))
        return 0;
    return 1;
}
