/* SPDX-License-Identifier: GPL-2.0-only */
/* The snapshot that every probe of tcp.bpf.c takes. */
static __always_inline int owner_wanted(u64 key, const u32 flags) {
    struct connection *known;

    if (flags & OWNER)
        return filter_pid(bpf_get_current_pid_tgid() >> 32);
    known = connections.lookup(&key);
    return known && filter_pid(known->pid);
}

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

/*
 * Takes a snapshot: filters, builds the record, sends it. sk may be a full socket, a request or a
 * time-wait socket; with PACKET it is a listener or null. Otherwise it is not compared with null:
 * the verifier of 6.1 learns nothing from that, and refuses the loads behind it, which then seem to
 * use different kinds of pointers.
 */
static __always_inline void snapshot(void *ctx, struct klogger_cpu *cpu, const int direct,
                                     const u32 location, struct sock *sk, struct sk_buff *skb,
                                     u32 callvalue, const u32 flags) {
    const u32 row = location == LOCATION_EXISTING ? 0 : location % LOCATION_ROWS;
    struct klogger_account *account = &cpu->accounts[row];
    u64 common[(sizeof(struct sock_common) + 7) / 8];
    struct sock_common *skc = (struct sock_common *)sk;
    u64 key = (u64)sk;
    struct connection *connection = 0;
    struct endpoints ends = {};
    struct filter_settings *settings;
    struct klogger_slot *slot = 0;
    struct klogger_place place;
    struct tcp_sock *tp = 0;
    u32 zero = 0;
    const int packet = flags & PACKET;
    int mini = 0, unasked;
    u8 *entry;

    if (!packet) {
        if (!direct) {
            if (bpf_probe_read_kernel(common, sizeof(common), sk))
                return;
            skc = (struct sock_common *)common;
        }
        ends.state = GET(skc, skc_state);
        mini = ends.state == STATE_TIME_WAIT || ends.state == STATE_NEW_SYN_RECV;
        if (direct) {
            tp = bpf_skc_to_tcp_sock(sk);
            /* Raw sockets and some of netlink have the protocol's number too. */
            if (tp ? GET((struct sock *)tp, sk_type) != TYPE_STREAM : !mini)
                return;
            mini = !tp;
        } else if (!mini) {
            if (READ(0, sk, sk_protocol) != PROTOCOL_TCP || READ(0, sk, sk_type) != TYPE_STREAM)
                return;
        }
    }
    unasked = (flags & UNASKED) || !klogger_enabled(location);
    if (unasked && location != LOCATION_STATE_CHANGE && !(flags & OWNER)) {
        if (flags & LAST)
            connections.delete(&key);
        return;
    }
    if (!unasked)
        klogger_count(account->attempts);

    settings = filter_settings.lookup(&zero);
    if (!settings)
        return;
    if (!packet) {
        endpoints_of(direct, skc, sk, !mini, &ends);
        if (ends.state == STATE_CLOSE && !(flags & FRESH))
            recall_ends(key, &ends);
    } else if (!skb || !endpoints_of_packet(skb, &ends)) {
        if (!unasked)
            klogger_count(account->filtered);
        return;
    } else if (sk) {
        ends.netns = cookie_of(0, READ(0, sk, __sk_common.skc_net.net));
    }
    if (settings->flags) {
        int wanted = filter_endpoints(settings, &ends), known = packet ? sk != 0 : 1;

        if (wanted && (settings->flags & FILTER_CGROUPS))
            wanted = known && !mini && in_cgroup(sk, settings->cgroup_level);
        if (wanted && (settings->flags & FILTER_PIDS) && location != LOCATION_EXISTING)
            wanted = known && owner_wanted(key, flags);
        if (!wanted) {
            if (!unasked)
                klogger_count(account->filtered);
            if (flags & (LAST | FRESH))
                connections.delete(&key);
            return;
        }
    }

    if (!packet && !mini && (ends.state != STATE_CLOSE || (flags & (FRESH | OWNER)))) {
        connection = connection_of(key, flags);
        if (!connection) {
            if (!unasked)
                klogger_count(account->table_full);
            return;
        }
    } else if (!packet) {
        connection = connections.lookup(&key);
    }
    if (connection)
        remember_ends(connection, &ends);
    if (connection && (flags & OWNER)) {
        connection->pid = bpf_get_current_pid_tgid() >> 32;
        /* Some kernels (6.1) write no further than the name's end. */
        __builtin_memset(connection->comm, 0, sizeof(connection->comm));
        bpf_get_current_comm(connection->comm, sizeof(connection->comm));
    }
    if (unasked)
        return;

    if (IN_SLOT(direct) && !(slot = klogger_take(cpu))) {
        klogger_count(account->no_slot);
        goto out;
    }
    if (KLOGGER_WATCHING) {
        /* The row is reserved when it is known that there is something to tell. */
        entry = slot->record;
    } else {
        entry = klogger_reserve(cpu, row, &place);
        if (!entry)
            goto give_back;
    }
    if (direct)
        klogger_forget(tp);
    if (direct ? tp != 0 : !packet && !mini) {
        if (!direct) {
            bpf_probe_read_kernel(slot->copy, sizeof(struct tcp_sock), sk);
            tp = (struct tcp_sock *)slot->copy;
        }
        fill_socket(direct, tp, entry);
    } else {
        /* In words: a memset of packed bytes is stored byte by byte. */
#pragma unroll
        for (int i = 0; i < KLOGGER_ENTRY_SIZE / 8; i++)
            ((u64 *)entry)[i] = 0;
    }
    fill_ends(&ends, entry);
    callvalue = fill_segment(skb, entry, callvalue, flags);
    SET(callvalue, callvalue);
    SET(sk_addr, key);
    SET(conn_id, connection ? connection->id : 0);
    SET(pid, connection ? connection->pid : 0);
    if (HAS(comm)) {
        if (connection)
            SET(comm, connection->comm);
        else
            __builtin_memset(entry + KLOGGER_AT_comm, 0, 16);
    }
    if (KLOGGER_WATCHING) {
        if (connection) {
            int changed = klogger_watch_changed(entry, &connection->watch);

            if ((flags & CHANGES) && !changed && connection->watching) {
                klogger_count(account->unchanged);
                goto give_back;
            }
        }
        if (!klogger_reserve(cpu, row, &place)) {
            /* After a loss the next record has to tell the change. */
            if (connection)
                connection->watching = 0;
            goto give_back;
        }
        if (connection)
            connection->watching = 1;
#pragma unroll
        for (int i = 0; i < KLOGGER_ENTRY_SIZE / 8; i++)
            ((u64 *)place.row)[i] = ((u64 *)entry)[i];
    }
    commit(ctx, cpu, account, &place, location);
give_back:
    if (slot)
        klogger_give_back(slot);
out:
    if (flags & LAST)
        connections.delete(&key);
}
