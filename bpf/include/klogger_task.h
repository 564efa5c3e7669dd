/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The values of the group of fields `task` (bpf/schemata/base.conf), for an event that has the line
 * `fields task`:
 *
 *     struct klogger_task task = klogger_current_task();
 *
 *     klogger(EVENT, KLOGGER_TASK(task), value, ...);
 *
 * At completions, received packets and timers the current thread is any thread: there, log the
 * klogger_task that a map has kept since the request was made, or KLOGGER_NO_TASK.
 */
struct task_struct;
struct sched_entity;

/* No padding, so that a map can hold it. */
struct klogger_task {
    u64 cgroup;
    u64 cpu_time;
    u32 tid;
    u32 tgid;
    u32 uid;
    u32 zero;
};

#define KLOGGER_TASK(task)                                                                         \
    (int)(task).tid, (int)(task).tgid, (task).uid, (task).cgroup, (task).cpu_time
#define KLOGGER_NO_TASK ((struct klogger_task){.uid = ~0})

static __always_inline struct klogger_task klogger_current_task(void) {
    struct task_struct *task = bpf_get_current_task_btf();
    u64 who = bpf_get_current_pid_tgid();

    return (struct klogger_task){
        .cgroup = bpf_get_current_cgroup_id(),
        .cpu_time = READ(1, task, se.sum_exec_runtime),
        .tid = who,
        .tgid = who >> 32,
        .uid = bpf_get_current_uid_gid(),
    };
}
