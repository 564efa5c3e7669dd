/* SPDX-License-Identifier: GPL-2.0-only */
/* The program of the schema sampler: at each period of every CPU's clock. The current thread is
 * just the one that ran.
 */
#include "klogger.h"
#include "klogger_task.h"

#define FRAMES      32
#define LOWEST      4096 /* a lower address is no code */
#define NICE_0      120  /* static_prio of a process with nice value 0 */
#define USER_FRAMES 256  /* BPF_F_USER_STACK */

struct sampler_frames {
    u64 at[FRAMES];
};

/* By CPU: when it was looked at last, and room for a stack. No other program of perf interrupts
 * this one.
 */
BPF_PERCPU_ARRAY(sampler_last, u64, 1);
BPF_PERCPU_ARRAY(sampler_frames, struct sampler_frames, 1);

/* How many periods have passed since the last look at this CPU. */
static __always_inline u32 sampler_ticks(u64 period) {
    u64 now = bpf_ktime_get_ns(), passed = 0;
    u32 zero = 0;
    u64 *last = sampler_last.lookup(&zero);

    if (!last)
        return 1;
    if (*last && now > *last)
        passed = now - *last;
    *last = now;
    return period && passed > period + period / 2 ? (passed + period / 2) / period : 1;
}

static __always_inline void log_stack(void *ctx, struct klogger_cpu *cpu, int part, u64 flags) {
    u32 zero = 0;
    struct sampler_frames *frames = sampler_frames.lookup(&zero);
    int bytes;

    if (!frames)
        return;
    bytes = bpf_get_stack(ctx, frames, sizeof(*frames), flags);
    for (int i = 0; i < FRAMES && i * 8 < bytes; i++) {
        /* A program without frame pointers leaves anything there. */
        if (frames->at[i] < LOWEST)
            break;
        klogger(SAMPLE_FRAME, part, i, frames->at[i], 0);
    }
}

PROBE(sampler, "SAMPLE SAMPLE_FRAME", "perf:cpu_clock:10ms")
{
    struct task_struct *running = (struct task_struct *)bpf_get_current_task_btf();
    struct klogger_task task = klogger_current_task();
    u64 pc = ARG(0), in_user = ARG(1), period = ARG(2);
    int state = KLOGGER_cpu_state_SYSTEM;

    if (!task.tid)
        state = KLOGGER_cpu_state_IDLE;
    else if (in_user)
        state = READ(1, running, static_prio) > NICE_0 ? KLOGGER_cpu_state_NICE
                                                       : KLOGGER_cpu_state_USER;
    klogger(SAMPLE, KLOGGER_TASK(task), &running->comm, task.tid ? (int)task.tgid : -1, pc, 0,
            state, sampler_ticks(period), period);
    if (!task.tid || !KLOGGER_ENABLED(SAMPLE_FRAME))
        return;
    if (!in_user)
        log_stack(ctx, cpu, KLOGGER_stack_part_KERNEL, 0);
    log_stack(ctx, cpu, KLOGGER_stack_part_PROGRAM, USER_FRAMES);
}
