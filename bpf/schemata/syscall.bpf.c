/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema syscall, where the kernel enters and leaves a system call. */
#include "klogger.h"
#include "klogger_task.h"
#include "collector_self.h"
#include "system_call.h"

/* Calls that --syscalls leaves out, by number (collector/plan/syscall_choice.py). The last entry is
 * that of all larger numbers, and of calls of 32-bit programs.
 */
#define SYSCALL_NUMBERS 1024

BPF_ARRAY(syscall_left_out, u32, SYSCALL_NUMBERS);

#define SYSCALL_COMPAT 0x20000000

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
    u32 compat = call_is_compat(), number = (u32)ARG(1) | (compat ? SYSCALL_COMPAT : 0);
    struct klogger_task task;

    if (!syscall_is_wanted(number))
        return;
    task = klogger_current_task();
    if (compat)
        klogger(
            SYSCALL_START, KLOGGER_TASK(task), number, CALL_PC(DIRECT, registers),
            CALL_COMPAT_ARGUMENT(DIRECT, registers, 0), CALL_COMPAT_ARGUMENT(DIRECT, registers, 1),
            CALL_COMPAT_ARGUMENT(DIRECT, registers, 2), CALL_COMPAT_ARGUMENT(DIRECT, registers, 3),
            CALL_COMPAT_ARGUMENT(DIRECT, registers, 4), CALL_COMPAT_ARGUMENT(DIRECT, registers, 5));
    else
        klogger(SYSCALL_START, KLOGGER_TASK(task), number, CALL_PC(DIRECT, registers),
                CALL_ARGUMENT(DIRECT, registers, 0), CALL_ARGUMENT(DIRECT, registers, 1),
                CALL_ARGUMENT(DIRECT, registers, 2), CALL_ARGUMENT(DIRECT, registers, 3),
                CALL_ARGUMENT(DIRECT, registers, 4), CALL_ARGUMENT(DIRECT, registers, 5));
}
#endif

/* sys_exit(registers, value) */
#if USE_syscall_exits
PROBE(syscall_exits, "SYSCALL_EXIT", "btf:sys_exit raw:sys_exit")
{
    struct pt_regs *registers = (struct pt_regs *)ARG(0);
    s64 result = ARG(1);
    u32 number = CALL_NUMBER(DIRECT, registers);
    struct klogger_task task;

    if (call_is_compat())
        number |= SYSCALL_COMPAT;
    if (!syscall_is_wanted(number))
        return;
    task = klogger_current_task();
    klogger(SYSCALL_EXIT, KLOGGER_TASK(task), number, result,
            result < 0 && result >= -4095 ? result : 0);
}
#endif
