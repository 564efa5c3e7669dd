/* SPDX-License-Identifier: GPL-2.0-only */
/* The program of the schema stopwatch: user programs log by a prctl() with an option that the
 * kernel does not know.
 */
#include "klogger.h"
#include "prctl_call.h"

struct task_struct;

#define STOPWATCH_OPTION 0x6b6c6f67 /* "klog" */
#define STOPWATCH_START  1
#define STOPWATCH_STOP   2
#define THREAD_BEGINS    3
#define THREAD_ENDS      4

#if USE_stopwatch
/* clang-format off */
PROBE(stopwatch, "EVENT_START EVENT_STOP THREAD_START THREAD_STOP",
      "btf:task_prctl_unknown raw:task_prctl_unknown fentry:security_task_prctl kprobe:security_task_prctl raw:sys_enter")
/* clang-format on */
{
    u64 who = bpf_get_current_pid_tgid(), arguments[PRCTL_ARGUMENTS] = {}, operation, id;
    struct task_struct *task;

    if (!prctl_call(ctx, kind, arguments) || (u32)arguments[0] != STOPWATCH_OPTION)
        return;
    operation = arguments[1];
    id = arguments[2];
    task = (struct task_struct *)bpf_get_current_task();
    if (operation == STOPWATCH_START)
        klogger(EVENT_START, id);
    else if (operation == STOPWATCH_STOP)
        klogger(EVENT_STOP, id);
    else if (operation == THREAD_BEGINS)
        klogger(THREAD_START, id, who, who >> 32, &task->comm);
    else if (operation == THREAD_ENDS)
        klogger(THREAD_STOP, id, who, who >> 32, &task->comm);
}
#endif
