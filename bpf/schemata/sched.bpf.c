/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema sched, at the scheduler's tracepoints. But for FORK, EXEC and EXIT
 * they run under the scheduler's locks, so the values in an event are consistent.
 */
#include "klogger.h"
#include "klogger_task.h"

/* collector/plan/kernel_types.py declares these types of members of task_struct. */
struct cred;
struct sched_entity;
struct sched_info;
struct signal_struct;
struct thread_info;

/* Bits of a task's state (include/linux/sched.h); all others modify these. */
#define STATE_INTERRUPTIBLE   0x0001
#define STATE_UNINTERRUPTIBLE 0x0002
#define STATE_STOPPED         0x0004
#define STATE_TRACED          0x0008
#define STATE_PARKED          0x0040
#define STATE_DEAD            0x0080
#define STATE_IDLE            0x0402
#define STATE_NEW             0x0800
#define STATE_RTLOCK_WAIT     0x1000
#define STATE_FROZEN          0x8000

#define NAME(task)            ((const void *)&(task)->comm)
#define USER_OF(direct, task) READ(direct, READ(direct, task, cred), uid.val)

#ifdef HAVE_task_struct___state
#define STATE_BITS(direct, task) ((u32)READ(direct, task, __state))
#else
#define STATE_BITS(direct, task) ((u32)READ(direct, task, state))
#endif

#ifdef HAVE_thread_info_cpu
#define CPU_OF(direct, task) ((int)READ(direct, task, thread_info.cpu))
#else
#define CPU_OF(direct, task) ((int)READ(direct, task, cpu))
#endif

#ifdef HAVE_sched_info_run_delay
#define WAITED(direct, task) READ(direct, task, sched_info.run_delay)
#else
#define WAITED(direct, task) 0
#endif

#ifdef HAVE_sched_entity_deadline
#define DEADLINE(direct, task) READ(direct, task, se.deadline)
#define SLICE(direct, task)    READ(direct, task, se.slice)
#else
#define DEADLINE(direct, task) 0
#define SLICE(direct, task)    0
#endif

static __always_inline int state_of(u32 bits) {
    if (bits & STATE_DEAD)
        return KLOGGER_task_state_DEAD;
    if ((bits & STATE_IDLE) == STATE_IDLE)
        return KLOGGER_task_state_IDLE;
    if (bits & (STATE_UNINTERRUPTIBLE | STATE_RTLOCK_WAIT | STATE_FROZEN))
        return KLOGGER_task_state_UNINTERRUPTIBLE;
    if (bits & STATE_INTERRUPTIBLE)
        return KLOGGER_task_state_INTERRUPTIBLE;
    if (bits & STATE_STOPPED)
        return KLOGGER_task_state_STOPPED;
    if (bits & STATE_TRACED)
        return KLOGGER_task_state_TRACED;
    if (bits & STATE_PARKED)
        return KLOGGER_task_state_PARKED;
    if (bits & STATE_NEW)
        return KLOGGER_task_state_NEW;
    return KLOGGER_task_state_RUNNING;
}

static __always_inline int is_delayed(const int direct, struct task_struct *task) {
#ifdef HAVE_sched_entity_sched_delayed
    return READ(direct, task, se.sched_delayed);
#else
    return 0;
#endif
}

/*
 * The priorities of runnable threads at their last event, by the last bits of the pid: two threads
 * at one place can hide a change. A value is written by one store.
 *
 *     pid (32 bits) | prio + 1 (8) | normal_prio + 1 (8) | policy (8)
 */
#define KEPT_PRIORITIES    4096
#define KEPT_PID(value)    ((u32)((value) >> 32))
#define KEPT_PRIO(value)   ((int)((value) >> 16 & 0xff) - 1)
#define KEPT_NORMAL(value) ((int)((value) >> 8 & 0xff) - 1)
#define KEPT_POLICY(value) ((int)((value)&0xff))

struct kept_priority {
    u64 value;
    u64 time;
};

BPF_ARRAY(kept_priorities, struct kept_priority, KEPT_PRIORITIES);

/* A runnable thread has an event: logs what changed since its last one. queued: it waited on a run
 * queue in between; 0: it ran; -1: it was not runnable.
 */
static __always_inline void keep_priority(void *ctx, struct klogger_cpu *cpu, const int direct,
                                          struct task_struct *task, const int queued) {
    u32 pid = READ(direct, task, pid), place = pid & (KEPT_PRIORITIES - 1);
    struct kept_priority *kept = kept_priorities.lookup(&place);
    int prio, normal, policy, cause;
    u64 value, old;

    if (!KLOGGER_ENABLED(RESHUFFLE) || !kept || !pid)
        return;
    prio = READ(direct, task, prio);
    normal = READ(direct, task, normal_prio);
    policy = READ(direct, task, policy);
    /* Without u32 LLVM 11 crashes at the sign's extension. */
    value = (u64)pid << 32 | (u32)((prio + 1) << 16 | (normal + 1) << 8 | policy);
    old = kept->value;
    if (queued >= 0 && KEPT_PID(old) == pid &&
        (KEPT_PRIO(old) != prio || KEPT_POLICY(old) != policy)) {
        if (KEPT_POLICY(old) != policy)
            cause = KLOGGER_reshuffle_cause_POLICY;
        else if (prio != normal || KEPT_PRIO(old) != KEPT_NORMAL(old))
            cause = KLOGGER_reshuffle_cause_INHERITED;
        else
            cause = KLOGGER_reshuffle_cause_PRIORITY;
        klogger(RESHUFFLE, pid, READ(direct, task, tgid), NAME(task), KEPT_PRIO(old), prio,
                KEPT_POLICY(old), policy, cause, queued, USER_OF(direct, task), kept->time);
    }
    kept->value = value;
    kept->time = bpf_ktime_get_ns();
}

/*
 * Since when a CPU's thread runs, and its CPU time then. The kernel adds up a thread's CPU time at
 * ticks and switches: one that lives for less than a tick has none until it leaves the CPU.
 */
struct running {
    u64 since;
    u64 runtime;
    u64 pid;
};

BPF_PERCPU_ARRAY(running, struct running, 1);

static __always_inline void now_runs(const int direct, struct task_struct *task) {
    u32 zero = 0;
    struct running *run = running.lookup(&zero);

    if (!run)
        return;
    run->since = bpf_ktime_get_ns();
    run->runtime = READ(direct, task, se.sum_exec_runtime);
    run->pid = READ(direct, task, pid);
}

/* The CPU time of the current thread. Interrupts are no part of it: it is a tick more at most than
 * what the kernel has added up.
 */
static __always_inline u64 runtime_now(const int direct, struct task_struct *task) {
    u64 known = READ(direct, task, se.sum_exec_runtime), most = known + 1000000000 / KLOGGER_HZ,
        now;
    u32 zero = 0;
    struct running *run = running.lookup(&zero);

    if (!run || run->pid != READ(direct, task, pid))
        return known;
    now = run->runtime + bpf_ktime_get_ns() - run->since;
    return now < known ? known : now > most ? most : now;
}

/* The function runs at each try; the tracepoint only where the thread is asleep. */
#if USE_wakeup_try
PROBE(wakeup_try, "TRY_TO_WAKEUP",
      "fentry:try_to_wake_up kprobe:try_to_wake_up btf:sched_waking raw:sched_waking")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
    u32 bits = STATE_BITS(DIRECT, task), wakes = 1;

    /* try_to_wake_up(task, states, flags): it wakes a thread in one of these states. */
    if (kind == KLOGGER_FENTRY || kind == KLOGGER_KPROBE)
        wakes = !!(bits & (u32)ARG(1));
    klogger(TRY_TO_WAKEUP, READ(DIRECT, task, pid), READ(DIRECT, task, tgid), NAME(task),
            READ(DIRECT, task, prio), READ(DIRECT, task, policy), state_of(bits),
            READ(DIRECT, task, on_cpu), READ(DIRECT, task, on_rq) == 1 && !is_delayed(DIRECT, task),
            wakes, CPU_OF(DIRECT, task), bpf_get_current_pid_tgid(), USER_OF(DIRECT, task));
}
#endif

static __always_inline void added(void *ctx, struct klogger_cpu *cpu, const int direct,
                                  struct task_struct *task, const int is_new) {
    keep_priority(ctx, cpu, direct, task, -1);
    klogger(ADD_TO_RUNQ, READ(direct, task, pid), READ(direct, task, tgid), NAME(task),
            READ(direct, task, prio), READ(direct, task, policy), CPU_OF(direct, task), is_new,
            USER_OF(direct, task), READ(direct, task, se.vruntime),
            READ(direct, task, se.sum_exec_runtime));
}

/* A thread that is on a CPU was just going to sleep: it has not left the queue. */
#if USE_woken
PROBE(woken, "ADD_TO_RUNQ RESHUFFLE", "btf:sched_wakeup raw:sched_wakeup")
{
    struct task_struct *task = (struct task_struct *)ARG(0);

    if (!READ(DIRECT, task, on_cpu))
        added(ctx, cpu, DIRECT, task, 0);
}
#endif

#if USE_woken_new
PROBE(woken_new, "ADD_TO_RUNQ RESHUFFLE", "btf:sched_wakeup_new raw:sched_wakeup_new")
{ added(ctx, cpu, DIRECT, (struct task_struct *)ARG(0), 1); }
#endif

static __always_inline int in_iowait(const int direct, struct task_struct *task) {
#ifdef HAVE_task_struct_in_iowait
    u64 raw = 0;

    if (direct)
        return BITFIELD_task_struct_in_iowait(task);
    bpf_probe_read_kernel(&raw, BITS_task_struct_in_iowait_SIZE,
                          (u8 *)task + BITS_task_struct_in_iowait_OFFSET);
    return BITS_task_struct_in_iowait(raw);
#else
    return 0;
#endif
}

/* Where the current thread falls asleep: the first frame outside the scheduler. The functions that
 * the kernel's linker puts between __sched_text_start and _end are those that /proc/PID/wchan
 * skips.
 */
#define FRAMES 16

static __always_inline u64 place_of_sleep(void *ctx) {
    u64 frames[FRAMES] = {}, first = ADDRESS(__sched_text_start), inside = 0;

    if (!first || bpf_get_stack(ctx, frames, sizeof(frames), 0) < 0)
        return 0;
#pragma unroll
    for (int i = 0; i < FRAMES; i++) {
        if (frames[i] - first < ADDRESS(__sched_text_end) - first)
            inside = 1;
        else if (inside && !IN_FUNCTION(frames[i], wait_woken))
            return frames[i];
    }
    return 0;
}

/*
 * sched_switch(preempt, prev, next, state), with state since Linux 5.18. A thread that is going to
 * sleep may still be on its queue: it was preempted before, or a signal arrived.
 */
#if USE_switched
PROBE(switched, "REMOVE_FROM_RUNQ SLEEP RESHUFFLE SCHEDOUT SCHEDIN TRAP +FORK +EXIT",
      "btf:sched_switch raw:sched_switch")
{
    struct task_struct *prev = (struct task_struct *)ARG(1);
    struct task_struct *next = (struct task_struct *)ARG(2);
    int preempted = (u8)ARG(0), delayed = is_delayed(DIRECT, prev), state, reason;
#if ARGUMENTS_sched_switch > 3
    u32 bits = ARG(3);
#else
    u32 bits = STATE_BITS(DIRECT, prev);
#endif

    now_runs(DIRECT, next);
    state = state_of(bits);
    if (preempted)
        reason = KLOGGER_switch_reason_PREEMPTED_IN_KERNEL;
    else if (READ(DIRECT, prev, on_rq) && !delayed)
        reason = KLOGGER_switch_reason_PREEMPTED;
    else if (state == KLOGGER_task_state_DEAD)
        reason = KLOGGER_switch_reason_EXITED;
    else
        reason = KLOGGER_switch_reason_BLOCKED;
    if (reason == KLOGGER_switch_reason_PREEMPTED)
        klogger(TRAP, READ(DIRECT, prev, pid), READ(DIRECT, prev, tgid), NAME(prev),
                READ(DIRECT, prev, prio), READ(DIRECT, prev, policy), READ(DIRECT, next, pid),
                USER_OF(DIRECT, prev));
    if (reason == KLOGGER_switch_reason_PREEMPTED ||
        reason == KLOGGER_switch_reason_PREEMPTED_IN_KERNEL)
        state = KLOGGER_task_state_RUNNING;
    else
        klogger(REMOVE_FROM_RUNQ, READ(DIRECT, prev, pid), READ(DIRECT, prev, tgid), NAME(prev),
                READ(DIRECT, prev, prio), READ(DIRECT, prev, policy), state,
                in_iowait(DIRECT, prev), delayed, USER_OF(DIRECT, prev),
                READ(DIRECT, prev, se.vruntime), READ(DIRECT, prev, se.sum_exec_runtime));
    if (reason == KLOGGER_switch_reason_BLOCKED && KLOGGER_ENABLED(SLEEP)) {
        struct klogger_task task = klogger_current_task();

        /* The collector fills in the name, and the class if the name tells it. */
        klogger(SLEEP, KLOGGER_TASK(task), READ(DIRECT, prev, prio), place_of_sleep(ctx), 0,
                in_iowait(DIRECT, prev) ? KLOGGER_sleep_class_DISK : KLOGGER_sleep_class_OTHER);
    }
    keep_priority(ctx, cpu, DIRECT, prev, 0);
    klogger(SCHEDOUT, READ(DIRECT, prev, pid), READ(DIRECT, prev, tgid), NAME(prev),
            READ(DIRECT, prev, prio), READ(DIRECT, prev, policy), state, reason,
            READ(DIRECT, next, pid), USER_OF(DIRECT, prev), READ(DIRECT, prev, se.sum_exec_runtime),
            WAITED(DIRECT, prev), READ(DIRECT, prev, se.vruntime), READ(DIRECT, prev, nvcsw),
            READ(DIRECT, prev, nivcsw));
    keep_priority(ctx, cpu, DIRECT, next, 1);
    klogger(SCHEDIN, READ(DIRECT, next, pid), READ(DIRECT, next, tgid), NAME(next),
            READ(DIRECT, next, prio), READ(DIRECT, next, policy), READ(DIRECT, prev, pid),
            USER_OF(DIRECT, next), READ(DIRECT, next, se.sum_exec_runtime),
            READ(DIRECT, next, se.vruntime), DEADLINE(DIRECT, next), SLICE(DIRECT, next));
}
#endif

#if USE_forked
PROBE(forked, "FORK", "btf:sched_process_fork raw:sched_process_fork")
{
    struct task_struct *parent = (struct task_struct *)ARG(0);
    struct task_struct *child = (struct task_struct *)ARG(1);
    int tgid = READ(DIRECT, parent, tgid), child_tgid = READ(DIRECT, child, tgid);

    klogger(FORK, READ(DIRECT, parent, pid), tgid, NAME(parent), READ(DIRECT, child, pid),
            child_tgid, tgid == child_tgid ? KLOGGER_child_kind_THREAD : KLOGGER_child_kind_PROCESS,
            READ(DIRECT, child, prio), READ(DIRECT, child, policy), (u32)bpf_get_current_uid_gid(),
            bpf_get_current_cgroup_id(), runtime_now(DIRECT, parent));
}
#endif

#if USE_executed
PROBE(executed, "EXEC", "btf:sched_process_exec raw:sched_process_exec")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
    struct linux_binprm *binprm = (struct linux_binprm *)ARG(2);

    klogger(EXEC, READ(DIRECT, task, pid), READ(DIRECT, task, tgid), (int)ARG(1), NAME(task),
            READ(DIRECT, binprm, filename), READ(DIRECT, binprm, argc), READ(DIRECT, binprm, envc),
            (u32)bpf_get_current_uid_gid());
}
#endif

#if USE_exited
PROBE(exited, "EXIT", "btf:sched_process_exit raw:sched_process_exit")
{
    struct task_struct *task = (struct task_struct *)ARG(0);
    int code = READ(DIRECT, task, exit_code), is_last;
#if ARGUMENTS_sched_process_exit > 1
    is_last = (u8)ARG(1);
#else
    struct signal_struct *group = READ(DIRECT, task, signal);

    is_last = !READ(0, group, live.counter);
#endif

    klogger(EXIT, READ(DIRECT, task, pid), READ(DIRECT, task, tgid), NAME(task),
            READ(DIRECT, task, prio), READ(DIRECT, task, policy), code >> 8 & 0xff, code & 0x7f,
            is_last, runtime_now(DIRECT, task), WAITED(DIRECT, task), READ(DIRECT, task, nvcsw),
            READ(DIRECT, task, nivcsw), READ(DIRECT, task, se.nr_migrations),
            READ(DIRECT, task, min_flt), READ(DIRECT, task, maj_flt),
            READ(DIRECT, task, start_time), (u32)bpf_get_current_uid_gid(),
            bpf_get_current_cgroup_id());
}
#endif
