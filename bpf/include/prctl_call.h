/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The arguments of a prctl() with an option that the kernel does not know: so user programs log.
 * Linux 6.17 has a tracepoint for such options: then other calls cost nothing more. Where
 * security_task_prctl() can be probed each prctl() costs a comparison, elsewhere each system call
 * does.
 */
#if defined(__aarch64__)
#define NUMBER_OF_PRCTL         167
#define SYSTEM_CALL_REGISTER(n) KLOGGER_REGISTER(n)
#else
#define NUMBER_OF_PRCTL         157
#define REGISTER_R10            56 /* where a system call has what a function has in rcx */
#define SYSTEM_CALL_REGISTER(n) ((n) == 3 ? REGISTER_R10 : KLOGGER_REGISTER(n))
#endif
#define PRCTL_ARGUMENTS 5

/* Reads the option and the four arguments; returns whether it is a prctl() at all. `ctx` and `kind`
 * are those of the PROBE.
 */
static __always_inline int prctl_call(void *ctx, const int kind, u64 *arguments) {
#if !ARGUMENTS_task_prctl_unknown
    if (kind == KLOGGER_RAW) {
        /* sys_enter(registers, number) */
        u8 *registers = (u8 *)ARG(0);

        if (ARG(1) != NUMBER_OF_PRCTL)
            return 0;
#pragma unroll
        for (int i = 0; i < PRCTL_ARGUMENTS; i++)
            bpf_probe_read_kernel(&arguments[i], sizeof(u64), registers + SYSTEM_CALL_REGISTER(i));
        return 1;
    }
#endif
#pragma unroll
    for (int i = 0; i < PRCTL_ARGUMENTS; i++)
        arguments[i] = ARG(i);
    return 1;
}
