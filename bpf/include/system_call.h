/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel keeps of a system call in struct pt_regs, when it enters and when it leaves: its
 * number, its arguments, and the address behind it. Calls of 32-bit programs have other numbers.
 */
struct pt_regs;
struct task_struct;
struct thread_info;

#if defined(__aarch64__)
#define CALL_NUMBER(direct, regs) ((u32)READ(direct, regs, syscallno))
#define CALL_PC(direct, regs)     READ(direct, regs, pc)
/* The first register has the result later. No parameter is called `regs`, as that member is. */
#define CALL_ARGUMENT(direct, from, n)                                                             \
    ((n) == 0 ? READ(direct, from, orig_x0) : READ(direct, from, regs[n]))
#define CALL_COMPAT_ARGUMENT(direct, from, n) CALL_ARGUMENT(direct, from, n)
#define CALL_COMPAT_FLAG                      (1 << 22) /* TIF_32BIT */
#define CALL_FLAGS                            thread_info.flags
#define CALL_READ                             63
#define CALL_WRITE                            64
#define CALL_READV                            65
#define CALL_WRITEV                           66
#define CALL_PREAD64                          67
#define CALL_PWRITE64                         68
#define CALL_PREADV                           69
#define CALL_PWRITEV                          70
#define CALL_SENDFILE                         71
#define CALL_PREADV2                          286
#define CALL_PWRITEV2                         287
#define CALL_FSYNC                            82
#define CALL_FDATASYNC                        83
#define CALL_SYNC_FILE_RANGE                  84
#define CALL_CLOSE                            57
#define CALL_SOCKET                           198
#define CALL_BIND                             200
#define CALL_ACCEPT                           202
#define CALL_CONNECT                          203
#define CALL_ACCEPT4                          242
#else
#define CALL_NUMBER(direct, regs) ((u32)READ(direct, regs, orig_ax))
#define CALL_PC(direct, regs)     READ(direct, regs, ip)
#define CALL_ARGUMENT(direct, regs, n)                                                             \
    ((n) == 0   ? READ(direct, regs, di)                                                           \
     : (n) == 1 ? READ(direct, regs, si)                                                           \
     : (n) == 2 ? READ(direct, regs, dx)                                                           \
     : (n) == 3 ? READ(direct, regs, r10)                                                          \
     : (n) == 4 ? READ(direct, regs, r8)                                                           \
                : READ(direct, regs, r9))
#define CALL_COMPAT_ARGUMENT(direct, regs, n)                                                      \
    ((n) == 0   ? READ(direct, regs, bx)                                                           \
     : (n) == 1 ? READ(direct, regs, cx)                                                           \
     : (n) == 2 ? READ(direct, regs, dx)                                                           \
     : (n) == 3 ? READ(direct, regs, si)                                                           \
     : (n) == 4 ? READ(direct, regs, di)                                                           \
                : READ(direct, regs, bp))
#define CALL_COMPAT_FLAG     2 /* TS_COMPAT */
#define CALL_FLAGS           thread_info.status
#define CALL_READ            0
#define CALL_WRITE           1
#define CALL_READV           19
#define CALL_WRITEV          20
#define CALL_PREAD64         17
#define CALL_PWRITE64        18
#define CALL_PREADV          295
#define CALL_PWRITEV         296
#define CALL_SENDFILE        40
#define CALL_PREADV2         327
#define CALL_PWRITEV2        328
#define CALL_FSYNC           74
#define CALL_FDATASYNC       75
#define CALL_SYNC_FILE_RANGE 277
#define CALL_CLOSE           3
#define CALL_SOCKET          41
#define CALL_BIND            49
#define CALL_ACCEPT          43
#define CALL_CONNECT         42
#define CALL_ACCEPT4         288
#endif

/* Whether the current thread is in a call of a 32-bit program. */
static __always_inline int call_is_compat(void) {
#if defined(HAVE_thread_info_status) || defined(__aarch64__)
    struct task_struct *task = bpf_get_current_task_btf();

    return (READ(1, task, CALL_FLAGS) & CALL_COMPAT_FLAG) != 0;
#else
    return 0;
#endif
}
