/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema syscall, where the kernel enters and leaves a system call. */
#include "klogger.h"
#include "klogger_task.h"
#include "collector_self.h"

struct pt_regs;
struct thread_info;

/* Calls that --syscalls leaves out, by number (collector/plan/syscall_choice.py). The last entry is
 * that of all larger numbers, and of calls that are not those of x86-64.
 */
#define SYSCALL_NUMBERS 1024

BPF_ARRAY(syscall_left_out, u32, SYSCALL_NUMBERS);

/* A call of a 32-bit program, which has other numbers, and its arguments in other registers. */
#define SYSCALL_COMPAT_FLAG 2
#define SYSCALL_COMPAT      0x20000000

static __always_inline int syscall_is_compat(void) {
#ifdef HAVE_thread_info_status
    struct task_struct *task = bpf_get_current_task_btf();

    return READ(1, task, thread_info.status) & SYSCALL_COMPAT_FLAG;
#else
    return 0;
#endif
}

static __always_inline int syscall_is_wanted(u32 number) {
    u32 key = number < SYSCALL_NUMBERS - 1 ? number : SYSCALL_NUMBERS - 1;
    u32 *left_out = syscall_left_out.lookup(&key);

    return left_out && !*left_out && !is_collector();
}

/* sys_enter(registers, number) */
#if USE_syscall_enters
PROBE(syscall_enters, "SYSCALL_START", "btf:sys_enter raw:sys_enter")
{
    struct pt_regs *registers = (struct pt_regs *)ARG(0);
    u32 compat = syscall_is_compat(), number = (u32)ARG(1) | (compat ? SYSCALL_COMPAT : 0);
    struct klogger_task task;

    if (!syscall_is_wanted(number))
        return;
    task = klogger_current_task();
    if (compat)
        klogger(SYSCALL_START, KLOGGER_TASK(task), number, READ(DIRECT, registers, ip),
                READ(DIRECT, registers, bx), READ(DIRECT, registers, cx),
                READ(DIRECT, registers, dx), READ(DIRECT, registers, si),
                READ(DIRECT, registers, di), READ(DIRECT, registers, bp));
    else
        klogger(SYSCALL_START, KLOGGER_TASK(task), number, READ(DIRECT, registers, ip),
                READ(DIRECT, registers, di), READ(DIRECT, registers, si),
                READ(DIRECT, registers, dx), READ(DIRECT, registers, r10),
                READ(DIRECT, registers, r8), READ(DIRECT, registers, r9));
}
#endif

/* sys_exit(registers, value) */
#if USE_syscall_exits
PROBE(syscall_exits, "SYSCALL_EXIT", "btf:sys_exit raw:sys_exit")
{
    struct pt_regs *registers = (struct pt_regs *)ARG(0);
    s64 result = ARG(1);
    u32 number = READ(DIRECT, registers, orig_ax);
    struct klogger_task task;

    if (syscall_is_compat())
        number |= SYSCALL_COMPAT;
    if (!syscall_is_wanted(number))
        return;
    task = klogger_current_task();
    klogger(SYSCALL_EXIT, KLOGGER_TASK(task), number, result,
            result < 0 && result >= -4095 ? result : 0);
}
#endif
