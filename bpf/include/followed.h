/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The processes of --pid and --follow, and all that they start: the map filter_pids has them while
 * they live. A child is in it before it runs; who has ended is not, so its number may be used
 * again. A connection stays that of its process: it has an identity (tcp_snapshot.h), also when the
 * process ends and the kernel closes its sockets.
 */
#ifndef KLOGGER_FOLLOWED
/* Without these filters (collector/plan/engine_config.py). */
#define KLOGGER_FOLLOWED 1
#endif

BPF_HASH(filter_pids, u32, u32, KLOGGER_FOLLOWED);
/* Processes that found no room in it. */
BPF_ARRAY(unfollowed, u64, 1);

static __always_inline int filter_pid(u32 pid) {
    return filter_pids.lookup(&pid) != 0;
}

#if USE_follow_fork
PROBE(follow_fork, "", "btf:sched_process_fork raw:sched_process_fork")
{
    struct task_struct *parent = (struct task_struct *)ARG(0);
    struct task_struct *child = (struct task_struct *)ARG(1);
    u32 pid = READ(DIRECT, child, tgid), one = 1, zero = 0;
    u64 *lost = unfollowed.lookup(&zero);

    /* A thread has the number of its process. */
    if (filter_pid(READ(DIRECT, parent, tgid)) && !filter_pid(pid) &&
        filter_pids.update(&pid, &one) && lost)
        klogger_count(*lost);
}
#endif

#if USE_follow_exit
PROBE(follow_exit, "", "btf:sched_process_exit raw:sched_process_exit")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
    struct signal_struct *group = READ(DIRECT, task, signal);
    u32 pid = READ(DIRECT, task, tgid);

    if (!READ(0, group, live.counter) && filter_pid(pid))
        filter_pids.delete(&pid);
}
#endif
