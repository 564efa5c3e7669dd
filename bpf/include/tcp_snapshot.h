/* SPDX-License-Identifier: GPL-2.0-only */
/* The snapshot that each probe of tcp.bpf.c records. */

/* Numbers, stamps and commits the record in the row. */
static __always_inline void commit(void *ctx, struct klogger_cpu *cpu,
                                   struct klogger_account *account, struct klogger_place *place,
                                   u32 location) {
    enum { watched = 0 };
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

/* Whether a socket in this state is no full socket. */
static __always_inline int is_mini(u32 state) {
    return state == STATE_TIME_WAIT || state == STATE_NEW_SYN_RECV;
}

/* A socket during a snapshot. */
struct socket_view {
    struct sock_common *skc; /* readable by plain loads: the socket, or a copy of its head */
    int mini;                /* it is no full socket */
    int restored;            /* the kernel has cleared its addresses; they are restored in ends */
};

/* Results of identify(). */
#define NO_IDENTITY 0
#define LEFT_OUT    1 /* by the filter by process */
#define IDENTIFIED  2

/* Reads the socket's state and ports; 0 if it is no TCP socket. copy: memory for its head. */
static __always_inline int classify(const int direct, const u32 location, struct sock *sk,
                                    const u32 flags, struct sock_common *copy,
                                    struct socket_view *view, struct endpoints *ends) {
    view->skc = (struct sock_common *)sk;
    if (!direct) {
        if (bpf_probe_read_kernel(copy, sizeof(*copy), sk))
            return 0;
        view->skc = copy;
    }
    ends->state = GET(view->skc, skc_state);
    view->mini = is_mini(ends->state);
    /* Raw sockets and some netlink sockets can have the number of TCP too. */
    if (!view->mini && location != LOCATION_EXISTING &&
        (READ(direct, sk, sk_protocol) != PROTOCOL_TCP || READ(direct, sk, sk_type) != TYPE_STREAM))
        return 0;
    ends->lport = GET(view->skc, skc_num);
    ends->rport = bpf_ntohs(GET(view->skc, skc_dport));
    if (!ends->lport || !ends->rport)
        view->restored = restore_ends(direct, sk, flags & FRESH, ends);
    return 1;
}

/* Reads the rest of the ends, and checks all filters but two: by the socket's ports, which
 * snapshot() checks before, and by process, which identify() checks.
 */
static __always_inline int passes(const int direct, const struct filter_settings *settings,
                                  u32 filters, struct sock *sk, struct sk_buff *skb,
                                  const u32 flags, const struct socket_view *view,
                                  const struct segment *segment, struct endpoints *ends) {
    const int packet = flags & PACKET;

    if (!packet) {
        read_ends(direct, view->skc, view->restored, ends);
    } else {
        if (!segment || !segment->addressed)
            return 0;
        ends_of_segment(skb, segment, flags & DROPPED && segment->sent, ends);
        if (!filter_ports_of(filters, ends))
            return 0;
        if (sk) {
            ends->state = STATE_LISTEN;
            ends->netns = cookie_of(0, READ(0, sk, __sk_common.skc_net.net));
        }
    }
    if (filters & ~FILTER_ANY_PORTS) {
        if (!filter_addresses_of(filters, ends))
            return 0;
        if ((filters & FILTER_CGROUPS) &&
            ((packet && !sk) || view->mini || !in_cgroup(sk, settings->cgroup_level)))
            return 0;
        if ((filters & FILTER_USERS) && ((packet && !sk) || view->mini || !has_user(sk)))
            return 0;
    }
    return 1;
}

/*
 * With --pid, whether the connection is one of its processes': that is decided at the calls of its
 * owner, and when it begins at a listener of theirs. Then it has an identity, which says so at all
 * other events, also after the process has ended. connection: its row, or null.
 */
static __always_inline int is_followed(u64 key, const u32 flags, const struct endpoints *ends,
                                       const struct connection *connection) {
    if (flags & OWNER) {
        if (filter_pid(bpf_get_current_pid_tgid() >> 32))
            return 1;
        /* Another process accepted it: until now it had no owner. */
        if (connection && !connection->pid)
            end_identity(key);
        return 0;
    }
    /* A packet that found no socket may be for a listener. */
    if ((flags & FRESH) || ((flags & PACKET) && !connection))
        return has_listener(ends);
    return connection != 0;
}

/*
 * Finds or begins the identity of the connection. For a socket that is read directly it is stored
 * in who (other programs have no stack for that); found: its row in the map, if that was looked up;
 * watch: where the values of --when-changed are stored.
 * full: counts connections for which the map has no room.
 */
static __always_inline int identify(const int direct, const u32 location, u32 filters,
                                    struct sock *sk, const u32 flags,
                                    const struct socket_view *view, struct endpoints *ends,
                                    u64 *full, int unrecorded, struct identity *who,
                                    struct connection **found, struct klogger_watch **watch) {
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
            return NO_IDENTITY;
    }
    is_known = direct && !(flags & FRESH) && !(filters & FILTER_PIDS) &&
               read_cached(known, number, ports, who);
#if KLOGGER_WATCHING
    is_known = is_known && known->watch.id == who->id;
    if (is_known)
        *watch = &known->watch;
#endif
    if (is_known && (flags & OWNER)) {
        struct caller caller;

        read_caller(direct, &caller);
        is_known = is_caller(known, &caller);
    }
    if (is_known)
        return IDENTIFIED;
    /* Where an identity begins there is rarely one yet: then the lookup is avoided. */
    if ((!packet || sk) &&
        (!direct || location != LOCATION_STATE_CHANGE || *(volatile u32 *)&known->entered))
        connection = connections.lookup(&key);
    if (KLOGGER_BY_INODE && location != LOCATION_EXISTING) {
        if (!is_followed(key, flags, ends, connection))
            return LEFT_OUT;
        if (flags & LISTENS)
            add_listener(ends);
    }
    if (packet)
        connection = 0;
    else if (!view->mini && (ends->state != STATE_CLOSE || (flags & (FRESH | OWNER))) &&
             (!connection || (flags & FRESH))) {
        connection = new_identity(key, connection);
        if (!connection) {
            if (!unrecorded)
                klogger_count(*full);
            return NO_IDENTITY;
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
            cache_identity(known, number, key, ports, flags & OWNER, connection);
        } else if (flags & OWNER) {
            evict(key);
        }
#if KLOGGER_WATCHING
        *watch = watch_of(direct, key, connection);
#endif
    }
    *found = connection;
    return IDENTIFIED;
}

/* The full socket behind sk, readable by plain loads; null if it is a mini socket or a packet.
 * slot: memory for a copy of it.
 */
static __always_inline struct tcp_sock *full_socket(const int direct, const u32 location,
                                                    struct sock *sk, const u32 flags,
                                                    const struct socket_view *view,
                                                    struct klogger_slot *slot) {
    if (direct) {
        /* Among ours that read sockets directly, only RESET_SENT has mini sockets. */
        int any = location == LOCATION_RESET_SENT || IS_OWN_LOCATION(location);

        return !any || !view->mini ? AS_TCP(sk) : 0;
    }
    if ((flags & PACKET) || bpf_probe_read_kernel(slot->copy, sizeof(struct tcp_sock), sk))
        return 0;
    /* Reads the state again. A branch on view->mini would make the verifier check twice all code
     * since classify().
     */
    if (is_mini(GET((struct sock *)slot->copy, __sk_common.skc_state)))
        return 0;
    return (struct tcp_sock *)slot->copy;
}

/* Stores the connection's watched values; with --when-changed, whether the event is recorded. */
static __always_inline int has_changed(const int direct, struct sock *sk, struct tcp_sock *tp,
                                       struct sk_buff *skb, const struct segment *segment,
                                       u32 callvalue, const u32 flags, struct endpoints *ends,
                                       struct identity *who, struct connection *connection,
                                       struct klogger_watch *watch) {
#if KLOGGER_WATCHING
    u32 now[KLOGGER_WATCHING] = {};

    if (watch) {
        fill(direct, 1, sk, tp, skb, segment, callvalue, flags, ends, who, connection, (u8 *)now);
        return klogger_watch_changed(watch, now) || !(flags & CHANGES) || !watch->recorded;
    }
#endif
    return 1;
}

/* After a loss the next event is recorded, for the lost change. */
static __always_inline void remember(struct klogger_watch *watch, u8 *entry) {
#if KLOGGER_WATCHING
    if (watch)
        watch->recorded = !!entry;
#endif
}

#if KLOGGER_SHEDDING
/*
 * Whether a step of the budget leaves the event out: by its location, or by its connection. The key
 * of a connection is its id; that of what has no id, of its ends.
 */
static __always_inline int is_shed(const u32 row, u64 id, const struct endpoints *ends) {
    u64 key = id, ports = (u32)ends->lport + ends->rport;

    if (!key)
        key = ends->laddr[0] ^ ends->raddr[0] ^ ends->laddr[1] ^ ends->raddr[1] ^ ports;
    return klogger_sheds(row, key);
}

/* Whether unchanged segments are left out now. If not, the next one is recorded when they are. */
static __always_inline struct klogger_watch *watch_now(struct klogger_watch *watch) {
#if KLOGGER_SHEDS_UNCHANGED
    struct klogger_shedding *shedding;
    u32 zero = 0;

    if (watch) {
        shedding = klogger_shedding.lookup(&zero);
        if (shedding && shedding->unchanged)
            return watch;
        watch->recorded = 0;
    }
    return 0;
#else
    return watch;
#endif
}
#endif

/*
 * Records a snapshot: classifies the socket, checks the filters, identifies the connection, fills
 * the record and commits it. sk is a full socket, a request or a time-wait socket; with PACKET it
 * is a listener or null. Without PACKET do not compare it with null: the verifier of 6.1 would then
 * refuse the loads after it ("same insn cannot be used with different pointers"). segment: of a
 * packet, with PACKET and DROPPED.
 */
static __always_inline void record(void *ctx, struct klogger_cpu *cpu, const int direct,
                                   const u32 location, struct sock *sk, struct sk_buff *skb,
                                   const struct segment *segment, u32 callvalue, const u32 flags) {
    const u32 row = location == LOCATION_EXISTING ? 0 : location % LOCATION_ROWS;
    struct klogger_account *account = &cpu->accounts[row];
    u64 common[(sizeof(struct sock_common) + 7) / 8];
    struct connection *connection = 0;
    struct klogger_watch *watch = 0;
    struct klogger_slot *slot = 0;
    struct filter_settings *settings;
    struct endpoints ends = {};
    struct klogger_place place;
    struct identity who;
    struct socket_view view = {};
    struct tcp_sock *tp;
    u32 zero = 0, filters;
    int wanted, unrecorded, found;
    u8 *entry;

    if (!(flags & PACKET) &&
        !classify(direct, location, sk, flags, (struct sock_common *)common, &view, &ends))
        return;
    settings = filter_settings.lookup(&zero);
    if (!settings)
        return;
    filters = settings->flags;
    /* The ports first, without a call: they leave out most sockets. */
    wanted = (flags & PACKET) || filter_ports_of(filters, &ends);
    unrecorded = (flags & NO_RECORD) || !klogger_enabled(location);
    if (unrecorded && location != LOCATION_STATE_CHANGE && !(flags & OWNER))
        goto out;
    if (!unrecorded)
        klogger_count(account->attempts);
    if (!wanted || !passes(direct, settings, filters, sk, skb, flags, &view, segment, &ends))
        goto left_out;
    found = identify(direct, location, filters, sk, flags, &view, &ends, &account->table_full,
                     unrecorded, &who, &connection, &watch);
    if (found == LEFT_OUT)
        goto left_out;
    if (found == NO_IDENTITY || unrecorded)
        return;
#if KLOGGER_SHEDDING
    if (is_shed(row, direct ? who.id : connection ? connection->id : 0, &ends)) {
        klogger_count(cpu->shed[row]);
        goto out;
    }
    watch = watch_now(watch);
#endif

    if (!direct && !(slot = klogger_acquire_slot(cpu))) {
        klogger_count(account->no_slot);
        goto out;
    }
    tp = full_socket(direct, location, sk, flags, &view, slot);
    if (has_changed(direct, sk, tp, skb, segment, callvalue, flags, &ends, &who, connection,
                    watch)) {
        entry = klogger_reserve(cpu, row, &place);
        remember(watch, entry);
        if (entry) {
            fill(direct, 0, sk, tp, skb, segment, callvalue, flags, &ends, &who, connection, entry);
            commit(ctx, cpu, account, &place, location);
        }
    } else {
#if KLOGGER_SHEDS_UNCHANGED
        klogger_count(cpu->shed[row]);
#else
        klogger_count(account->unchanged);
#endif
    }
    if (slot)
        klogger_release_slot(slot);
out:
    if (flags & LAST)
        end_identity((u64)sk);
    return;

left_out:
    if (!unrecorded)
        klogger_count(account->filtered);
    if (flags & (LAST | FRESH))
        end_identity((u64)sk);
}

/* As record(), of a socket. */
static __always_inline void snapshot(void *ctx, struct klogger_cpu *cpu, const int direct,
                                     const u32 location, struct sock *sk, struct sk_buff *skb,
                                     u32 callvalue, const u32 flags) {
    record(ctx, cpu, direct, location, sk, skb, 0, callvalue, flags);
}

/* A listener of a process of --pid, which was there before the capture. */
static __always_inline void begin_listener(struct sock *sk) {
    struct endpoints ends = {.lport = GET(sk, __sk_common.skc_num)};

    read_ends(1, (struct sock_common *)sk, 0, &ends);
    add_listener(&ends);
}

/* A socket listens no more. */
static __always_inline void end_listener(const int direct, struct sock *sk) {
    u64 common[(sizeof(struct sock_common) + 7) / 8], key = (u64)sk;
    struct sock_common *skc = (struct sock_common *)sk;
    struct endpoints ends = {};

    if (!connections.lookup(&key))
        return;
    if (!direct) {
        if (bpf_probe_read_kernel(common, sizeof(common), sk))
            return;
        skc = (struct sock_common *)common;
    }
    ends.lport = GET(skc, skc_num);
    /* A port that the kernel chose is given back before the state changes. */
    restore_ends(direct, sk, 1, &ends);
    read_ends(direct, skc, 0, &ends);
    remove_listener(&ends);
}

/*
 * Finds the owner at an application's call, where calls are not recorded. One copy of the program
 * is enough: what it misses it finds at the next call. Most callers are the owner, and reading the
 * caller costs as much as the rest of this function. So it does that once in a jiffy; with --pid,
 * whose filter needs the owner, at each call.
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
    if (!KLOGGER_BY_INODE && row->sk == number && row->compared_at == now)
        return;
    read_caller(DIRECT, &caller);
    if (row->sk == number && is_caller(row, &caller)) {
        row->compared_at = now;
        return;
    }
    cpu = klogger_this_cpu();
    if (!cpu)
        return;
    snapshot(ctx, cpu, DIRECT, LOCATION_SEND_CALL, sk, 0, 0, OWNER | NO_RECORD);
    cache_left_out(row, number, &caller);
}
