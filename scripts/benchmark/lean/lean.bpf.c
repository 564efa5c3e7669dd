/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Logs every getppid(): a program at the entry of all system calls, as there is none at this one.
 */
#include "klogger.h"

#if defined(__aarch64__)
#define NUMBER_OF_GETPPID 173
#else
#define NUMBER_OF_GETPPID 110
#endif

#if USE_getppid
PROBE(getppid, "GETPPID", "btf:sys_enter raw:sys_enter")
{
    if (ARG(1) == NUMBER_OF_GETPPID)
        klogger(GETPPID, bpf_get_current_pid_tgid() >> 32);
}
#endif
