/* SPDX-License-Identifier: GPL-2.0-only */
/* The snapshot that every probe of tcp.bpf.c takes. */
/* Numbers, stamps and sends what stands in the row. */
static __always_inline void commit(void *ctx, struct klogger_cpu *cpu,
                                   struct klogger_account *account, struct klogger_place *place,
                                   u32 location) {
    u8 *entry = place->row;
    u64 serial, now;

    SET(location, location);
    SET(cpu, bpf_get_smp_processor_id());
    serial = klogger_number(cpu);
    now = bpf_ktime_get_ns();
    SET(seq_no, serial);
    *(u32 *)(entry + 4) = now;
    *(u32 *)(entry + 8) = now >> 32;
    SET(serial, serial);
    SET(time_ns, now);
    klogger_commit(ctx, account, place);
}

/* Whether a snapshot needs a slot: for a record that may not be sent, or for a copy of the socket.
 */
#define IN_SLOT(direct) (KLOGGER_WATCHING || !(direct))

/* Whether this is the state of what is no full socket. */
static __always_inline int is_mini(u32 state) {
    return state == STATE_TIME_WAIT || state == STATE_NEW_SYN_RECV;
}

/* A socket as a program meets it. */
struct met {
    struct sock_common *skc; /* readable: direct, or a copy of ours */
    int mini;                /* it is no full socket */
    int recalled;            /* the kernel has wiped its addresses, they are in ends already */
};

/* What identify() finds. */
#define NOBODY   0 /* there is no identity to be had */
#define LEFT_OUT 1 /* the filter by process leaves it out */
#define SOMEBODY 2

/* Reads the socket's state and ports; 0 for what is no TCP socket. copy: room for its head. */
static __always_inline int classify(const int direct, const u32 location, struct sock *sk,
                                    const u32 flags, struct sock_common *copy, struct met *met,
                                    struct endpoints *ends) {
    met->skc = (struct sock_common *)sk;
    if (!direct) {
        if (bpf_probe_read_kernel(copy, sizeof(*copy), sk))
            return 0;
        met->skc = copy;
    }
    ends->state = GET(met->skc, skc_state);
    met->mini = is_mini(ends->state);
    /* Raw sockets and some of netlink have the protocol's number too. */
    if (!met->mini && location != LOCATION_EXISTING &&
        (READ(direct, sk, sk_protocol) != PROTOCOL_TCP || READ(direct, sk, sk_type) != TYPE_STREAM))
        return 0;
    ends->lport = GET(met->skc, skc_num);
    ends->rport = bpf_ntohs(GET(met->skc, skc_dport));
    if (!ends->lport || !ends->rport)
        met->recalled = recall_ends(direct, sk, flags & FRESH, ends);
    return 1;
}

/* Whether the filters let it pass, but for those by port of the socket and by process; reads all of
 * its ends.
 */
static __always_inline int passes(const int direct, const struct filter_settings *settings,
                                  u32 filters, struct sock *sk, struct sk_buff *skb,
                                  const u32 flags, const struct met *met, struct endpoints *ends) {
    const int packet = flags & PACKET;

    if (!packet) {
        read_ends(direct, met->skc, met->recalled, ends);
    } else {
        if (!skb || !endpoints_of_packet(skb, ends) || !filter_ports_of(filters, ends))
            return 0;
        if (sk)
            ends->netns = cookie_of(0, READ(0, sk, __sk_common.skc_net.net));
    }
    if (filters & ~FILTER_ANY_PORTS) {
        if (!filter_addresses_of(filters, ends))
            return 0;
        if ((filters & FILTER_CGROUPS) &&
            ((packet && !sk) || met->mini || !in_cgroup(sk, settings->cgroup_level)))
            return 0;
    }
    return 1;
}

/*
 * Finds or begins the identity of the connection. It is in who where the socket is read directly
 * (elsewhere there is no room on the stack), and connection is its row if that was looked up.
 * full: counts connections that the table has no room for, or null.
 */
static __always_inline int identify(const int direct, const u32 location, u32 filters,
                                    struct sock *sk, const u32 flags, const struct met *met,
                                    struct endpoints *ends, u64 *full, int unasked,
                                    struct identity *who, struct connection **found) {
    const int packet = flags & PACKET;
    u64 key = (u64)sk, number = 0;
    u32 ports = (u32)ends->lport << 16 | ends->rport;
    struct connection *connection = 0;
    struct known *known = 0;
    int is_known;

    if (direct) {
        number = number_of(key);
        known = known_row(number);
        if (!known)
            return NOBODY;
    }
    is_known = direct && !KLOGGER_WATCHING && !(flags & FRESH) && !(filters & FILTER_PIDS) &&
               recall(known, number, ports, who);
    if (is_known && (flags & OWNER)) {
        struct caller caller;

        read_caller(direct, &caller);
        is_known = is_caller(known, &caller);
    }
    if (is_known)
        return SOMEBODY;
    /* Where one begins there is seldom one yet. */
    if ((!packet || sk) &&
        (!direct || location != LOCATION_STATE_CHANGE || *(volatile u32 *)&known->entered))
        connection = connections.lookup(&key);
    if ((filters & FILTER_PIDS) && location != LOCATION_EXISTING) {
        if ((flags & OWNER) ? !filter_pid(bpf_get_current_pid_tgid() >> 32)
                            : !connection || !filter_pid(connection->pid))
            return LEFT_OUT;
    }
    if (packet)
        connection = 0;
    else if (!met->mini && (ends->state != STATE_CLOSE || (flags & (FRESH | OWNER))) &&
             (!connection || (flags & FRESH))) {
        connection = new_identity(key, connection);
        if (!connection) {
            if (!unasked)
                klogger_count(*full);
            return NOBODY;
        }
    }
    if (direct)
        who->id = who->pid = who->comm[0] = who->comm[1] = 0;
    if (connection) {
        number_connection(connection);
        remember_ends(connection, ends);
        if (flags & OWNER)
            note_owner(direct, connection);
        if (direct) {
            who->id = connection->id;
            who->pid = connection->pid;
            who->comm[0] = connection->comm[0];
            who->comm[1] = connection->comm[1];
            enter(known, number, key, ports, flags & OWNER, connection);
        } else if (flags & OWNER) {
            forget(key);
        }
    }
    *found = connection;
    return SOMEBODY;
}

/* Fills every column but those that commit() stamps. slot: where there is room for a copy. */
static __always_inline void fill(const int direct, const u32 location, struct sock *sk,
                                 struct sk_buff *skb, u32 callvalue, const u32 flags,
                                 const struct met *met, struct endpoints *ends,
                                 struct identity *who, struct connection *connection,
                                 struct klogger_slot *slot, u8 *entry) {
    struct tcp_sock *tp = 0;

    /* Of a copy the state is asked once more: the verifier walks what stands between only once. */
    if (direct) {
        /* Where a socket is read directly, only that of a reset sent may be no full one. */
        if (location != LOCATION_RESET_SENT || !met->mini)
            tp = AS_TCP(sk);
    } else if (!(flags & PACKET) &&
               !bpf_probe_read_kernel(slot->copy, sizeof(struct tcp_sock), sk)) {
        if (!is_mini(GET((struct sock *)slot->copy, __sk_common.skc_state)))
            tp = (struct tcp_sock *)slot->copy;
    }
    if (tp) {
        fill_socket(direct, tp, entry);
    } else {
        /* In words: a memset of packed bytes is stored byte by byte. */
#pragma unroll
        for (int i = 0; i < KLOGGER_ENTRY_SIZE / 8; i++)
            ((u64 *)entry)[i] = 0;
    }
    fill_ends(ends, entry);
    callvalue = fill_segment(direct, skb, entry, callvalue, flags);
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
        if (direct)
            SET(comm, who->comm);
        else if (connection)
            SET(comm, connection->comm);
        else
            __builtin_memset(entry + KLOGGER_AT_comm, 0, 16);
    }
}

/* With --when-changed: reserves a row and copies the entry to it, if it is to be recorded. */
static __always_inline int reserve_changed(struct klogger_cpu *cpu, const u32 row, const u32 flags,
                                           struct connection *connection, u8 *entry,
                                           struct klogger_place *place) {
    if (connection) {
        int changed = klogger_watch_changed(entry, &connection->watch);

        if ((flags & CHANGES) && !changed && connection->watching) {
            klogger_count(cpu->accounts[row].unchanged);
            return 0;
        }
    }
    if (!klogger_reserve(cpu, row, place)) {
        /* After a loss the next record has to tell the change. */
        if (connection)
            connection->watching = 0;
        return 0;
    }
    if (connection)
        connection->watching = 1;
#pragma unroll
    for (int i = 0; i < KLOGGER_ENTRY_SIZE / 8; i++)
        ((u64 *)place->row)[i] = ((u64 *)entry)[i];
    return 1;
}

/*
 * Takes a snapshot: classifies the socket, filters, identifies the connection, fills the record and
 * sends it. sk may be a full socket, a request or a time-wait socket; with PACKET it is a listener
 * or null. Otherwise it is not compared with null: the verifier of 6.1 learns nothing from that,
 * and refuses the loads behind it, which then seem to use different kinds of pointers.
 */
static __always_inline void snapshot(void *ctx, struct klogger_cpu *cpu, const int direct,
                                     const u32 location, struct sock *sk, struct sk_buff *skb,
                                     u32 callvalue, const u32 flags) {
    const u32 row = location == LOCATION_EXISTING ? 0 : location % LOCATION_ROWS;
    struct klogger_account *account = &cpu->accounts[row];
    u64 common[(sizeof(struct sock_common) + 7) / 8];
    struct connection *connection = 0;
    struct klogger_slot *slot = 0;
    struct filter_settings *settings;
    struct endpoints ends = {};
    struct klogger_place place;
    struct identity who;
    struct met met = {};
    u32 zero = 0, filters;
    int wanted, unasked, found;
    u8 *entry;

    if (!(flags & PACKET) &&
        !classify(direct, location, sk, flags, (struct sock_common *)common, &met, &ends))
        return;
    settings = filter_settings.lookup(&zero);
    if (!settings)
        return;
    filters = settings->flags;
    /* The ports before all else, without a call: most of what is left out goes here. */
    wanted = (flags & PACKET) || filter_ports_of(filters, &ends);
    unasked = (flags & UNASKED) || !klogger_enabled(location);
    if (unasked && location != LOCATION_STATE_CHANGE && !(flags & OWNER))
        goto out;
    if (!unasked)
        klogger_count(account->attempts);
    if (!wanted || !passes(direct, settings, filters, sk, skb, flags, &met, &ends))
        goto left_out;
    found = identify(direct, location, filters, sk, flags, &met, &ends, &account->table_full,
                     unasked, &who, &connection);
    if (found == LEFT_OUT)
        goto left_out;
    if (found == NOBODY || unasked)
        return;

    if (IN_SLOT(direct) && !(slot = klogger_take(cpu))) {
        klogger_count(account->no_slot);
        goto out;
    }
    /* With --when-changed the row is reserved when it is known that there is something to record.
     */
    entry = KLOGGER_WATCHING ? slot->record : klogger_reserve(cpu, row, &place);
    if (entry) {
        fill(direct, location, sk, skb, callvalue, flags, &met, &ends, &who, connection, slot,
             entry);
        if (!KLOGGER_WATCHING || reserve_changed(cpu, row, flags, connection, entry, &place))
            commit(ctx, cpu, account, &place, location);
    }
    if (slot)
        klogger_give_back(slot);
out:
    if (flags & LAST)
        end_identity((u64)sk);
    return;

left_out:
    if (!unasked)
        klogger_count(account->filtered);
    if (flags & (LAST | FRESH))
        end_identity((u64)sk);
}

/*
 * What a call of the application tells where calls are not recorded: the owner. One copy of a
 * program will do, since the next call tells what one was skipped for. Most calls on a socket are
 * its owner's, so who calls is asked once a jiffy, for that costs as much as all the rest here; but
 * each time where --pid chooses by the answer.
 */
static __always_inline void watch_owner(void *ctx, const int kind) {
    struct sock *sk = (struct sock *)ARG(0);
    u64 number = number_of((u64)sk);
    struct known *row = known_row(number);
    u32 now = bpf_jiffies64();
    struct klogger_cpu *cpu;
    struct caller caller;

    if (!row)
        return;
    if (!KLOGGER_BY_INODE && row->sk == number && row->looked == now)
        return;
    read_caller(DIRECT, &caller);
    if (row->sk == number && is_caller(row, &caller)) {
        row->looked = now;
        return;
    }
    cpu = klogger_this_cpu();
    if (!cpu)
        return;
    snapshot(ctx, cpu, DIRECT, LOCATION_SEND_CALL, sk, 0, 0, OWNER | UNASKED);
    enter_unwanted(row, number, &caller);
}
