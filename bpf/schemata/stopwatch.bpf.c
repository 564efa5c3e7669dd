/* SPDX-License-Identifier: GPL-2.0-only */
/* The program of the schema stopwatch: user programs log by a prctl() with an option that the
 * kernel does not know. Linux 6.17 has a tracepoint for such options: then other calls cost nothing
 * more. Where security_task_prctl() can be probed each prctl() costs a comparison, elsewhere each
 * system call does.
 */
#include "klogger.h"

struct task_struct;

#define STOPWATCH_OPTION 0x6b6c6f67 /* "klog" */
#define STOPWATCH_START  1
#define STOPWATCH_STOP   2
#define THREAD_BEGINS    3
#define THREAD_ENDS      4

#if defined(__TARGET_ARCH_arm64)
#define NUMBER_OF_PRCTL 167
#else
#define NUMBER_OF_PRCTL 157
#endif

#if USE_stopwatch
/* clang-format off */
PROBE(stopwatch, "EVENT_START EVENT_STOP THREAD_START THREAD_STOP",
      "btf:task_prctl_unknown raw:task_prctl_unknown fentry:security_task_prctl kprobe:security_task_prctl raw:sys_enter")
/* clang-format on */
{
    u64 who = bpf_get_current_pid_tgid(), option, operation, id;
    struct task_struct *task;

#if KIND_stopwatch == KLOGGER_RAW && !ARGUMENTS_task_prctl_unknown
    /* sys_enter(registers, number) */
    u8 *registers = (u8 *)ARG(0);

    if (ARG(1) != NUMBER_OF_PRCTL)
        return;
    bpf_probe_read_kernel(&option, sizeof(option), registers + KLOGGER_REGISTER(0));
    bpf_probe_read_kernel(&operation, sizeof(operation), registers + KLOGGER_REGISTER(1));
    bpf_probe_read_kernel(&id, sizeof(id), registers + KLOGGER_REGISTER(2));
#else
    option = ARG(0);
    operation = ARG(1);
    id = ARG(2);
#endif
    if ((u32)option != STOPWATCH_OPTION)
        return;
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
