/* SPDX-License-Identifier: GPL-2.0-only */
/* The program of the schema user: programs of any user log by a prctl() that the kernel refuses. */
#include "klogger.h"
#include "klogger_task.h"
#include "prctl_call.h"

#define USER_OPTION 0x75736572 /* "user" */
#define AUX_BYTES   64

/* What users can log in a second, on all CPUs together. */
#define MOST_OF_A_USER 1000
#define MOST_OF_ALL    10000
#define ALL_USERS      (1ull << 32)

struct user_rate {
    u64 second;
    u64 count;
};

/* By uid, and one of ALL_USERS. */
BPF_TABLE("lru_hash", u64, struct user_rate, user_rates, 4096);

/* Counts an event in the current second; returns whether there were fewer than `most`. */
static __always_inline int user_admit(u64 who, u64 second, const u64 most) {
    struct user_rate fresh = {.second = second}, *rate = user_rates.lookup(&who);

    if (!rate) {
        user_rates.update(&who, &fresh);
        rate = user_rates.lookup(&who);
        if (!rate)
            return 0;
    }
    if (rate->second != second) {
        rate->second = second;
        rate->count = 0;
    }
    return __sync_fetch_and_add(&rate->count, 1) < most;
}

#if USE_user_event
/* clang-format off */
PROBE(user_event, "USER_EVENT",
      "btf:task_prctl_unknown raw:task_prctl_unknown fentry:security_task_prctl kprobe:security_task_prctl raw:sys_enter")
/* clang-format on */
{
    u64 arguments[PRCTL_ARGUMENTS] = {}, second;
    struct klogger_task task;
    char aux[AUX_BYTES] = {};
    u32 length;

    if (!prctl_call(ctx, kind, arguments) || (u32)arguments[0] != USER_OPTION)
        return;
    if (!KLOGGER_ENABLED(USER_EVENT))
        return;
    task = klogger_current_task();
    second = bpf_ktime_get_ns() / 1000000000;
    /* The user's own limit comes first: what it refuses takes nothing from the others. */
    if (!user_admit(task.uid, second, MOST_OF_A_USER) ||
        !user_admit(ALL_USERS, second, MOST_OF_ALL)) {
        klogger_count(cpu->accounts[KLOGGER_POINT_USER_EVENT].attempts);
        klogger_count(cpu->accounts[KLOGGER_POINT_USER_EVENT].limited);
        return;
    }
    length = arguments[4] < AUX_BYTES ? arguments[4] : AUX_BYTES;
    if (arguments[3] && length)
        bpf_probe_read_user(aux, length, (void *)arguments[3]);
    klogger(USER_EVENT, KLOGGER_TASK(task), arguments[1], arguments[2], aux,
            arguments[4] < 0x7fffffff ? arguments[4] : 0x7fffffff);
}
#endif
