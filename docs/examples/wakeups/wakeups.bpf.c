/* SPDX-License-Identifier: Apache-2.0 */
/* The columns and the location of wakeups.conf. */
#include "klogger.h"

NEEDS(pmtu, "inet_connection_sock.icsk_pmtu_cookie")
NEEDS(quiet_ms, "tcp_sock.lsndtime")

FILL(wakeups)
{
    struct inet_connection_sock *icsk = (struct inet_connection_sock *)tp;

    SET(pmtu, GET(icsk, icsk_pmtu_cookie));
    SET(quiet_ms, (u64)((u32)bpf_jiffies64() - GET(tp, lsndtime)) * 1000 / KLOGGER_HZ);
}

PROBE(data_ready, "DATA_READY", "btf:sk_data_ready raw:sk_data_ready")
{
    struct sock *sk = (struct sock *)ARG(0);
    struct tcp_sock *tp = DIRECT ? AS_TCP(sk) : (struct tcp_sock *)sk;

    if (READ(DIRECT, sk, __sk_common.skc_state) != STATE_ESTABLISHED || !tp)
        return;
    snapshot(ctx, cpu, DIRECT, LOCATION_DATA_READY, sk, 0,
             READ(DIRECT, tp, rcv_nxt) - READ(DIRECT, tp, copied_seq), 0);
}
