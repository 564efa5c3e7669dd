/* SPDX-License-Identifier: GPL-2.0-only */
/* Calls that read and write files, from their start to their return. For disk.bpf.c. */
struct address_space;
struct fdtable;
struct file;
struct files_struct;
struct folio;
struct inode;
struct super_block;
struct task_io_accounting;
enum pageflags;

#define DISK_PAGE    KLOGGER_PAGE_SIZE
#define DISK_TYPE    0170000
#define DISK_REGULAR 0100000
#define DISK_DSYNC   010000
#if defined(__aarch64__)
#define DISK_DIRECT 0200000
#else
#define DISK_DIRECT 040000
#endif
#define DISK_RWF_SYNC       6  /* RWF_DSYNC, RWF_SYNC */
#define DISK_SB_SYNC        16 /* SB_SYNCHRONOUS */
#define DISK_CALL_READS     0
#define DISK_CALL_WRITES    1
#define DISK_CALL_SYNCS     2
#define DISK_OFFSET_OF_FILE -1 /* where the file's position is when the call returns */

/* A call on a file that has begun. */
struct disk_call {
    u64 began;
    u64 file;
    u64 inode;
    s64 offset;
    u64 read_bytes;
    u64 added;
    u32 device;
    u8 what;
    u8 synchronous;
    u8 direct;
    u8 waited; /* for pages that were not in the page cache */
    u8 ahead;  /* it made the kernel read ahead */
    u8 zero[7];
};

/* By thread. */
BPF_HASH(disk_calls, u32, struct disk_call, 16384);

static __always_inline struct disk_call *disk_this_call(void) {
    u32 tid = bpf_get_current_pid_tgid();

    return disk_calls.lookup(&tid);
}

/* How a call of this number uses a file (DISK_CALL_); -1: not at all. */
static __always_inline int disk_kind_of(u32 number) {
    switch (number) {
    case CALL_READ:
    case CALL_PREAD64:
    case CALL_READV:
    case CALL_SENDFILE:
    case CALL_PREADV:
    case CALL_PREADV2:
        return DISK_CALL_READS;
    case CALL_WRITE:
    case CALL_PWRITE64:
    case CALL_WRITEV:
    case CALL_PWRITEV:
    case CALL_PWRITEV2:
        return DISK_CALL_WRITES;
    case CALL_FSYNC:
    case CALL_FDATASYNC:
    case CALL_SYNC_FILE_RANGE:
        return DISK_CALL_SYNCS;
    }
    return -1;
}

/* The file of a descriptor of this process; null: none, or it cannot be read. */
static __always_inline struct file *disk_file_of(struct task_struct *task, u32 descriptor) {
    struct files_struct *files = READ(1, task, files);
    struct fdtable *table = files ? READ(0, files, fdt) : 0;
    struct file *file = 0;

    if (table && descriptor < READ(0, table, max_fds))
        bpf_probe_read_kernel(&file, sizeof(file),
                              (u8 *)READ(0, table, fd) + (u64)descriptor * sizeof(file));
    return file;
}

static __always_inline u32 disk_device_of(const int direct, struct inode *inode) {
    struct super_block *super = READ(direct, inode, i_sb);

    return READ(direct, super, s_dev);
}

/* A call begins: stores it if it is for a regular file. */
static __always_inline void disk_call_begins(const int direct, struct pt_regs *registers,
                                             u32 number) {
    struct task_struct *task = bpf_get_current_task_btf();
    u32 tid = bpf_get_current_pid_tgid(), flags;
    struct disk_call call = {.offset = DISK_OFFSET_OF_FILE};
    int what = disk_kind_of(number);
    struct super_block *super;
    struct inode *inode;
    struct file *file;
    u64 place;

    if (what < 0 || call_is_compat() || is_collector())
        return;
    /* sendfile(to, from, offset, count) */
    file = disk_file_of(task, number == CALL_SENDFILE ? CALL_ARGUMENT(direct, registers, 1)
                                                      : CALL_ARGUMENT(direct, registers, 0));
    if (!file)
        return;
    inode = READ(0, file, f_inode);
    if (!inode || (READ(0, inode, i_mode) & DISK_TYPE) != DISK_REGULAR)
        return;
    flags = READ(0, file, f_flags);
    super = READ(0, inode, i_sb);
    call.synchronous = (flags & DISK_DSYNC) || (READ(0, inode, i_flags) & 1) ||
                       (READ(0, super, s_flags) & DISK_SB_SYNC);
    call.direct = !!(flags & DISK_DIRECT);
    if (number == CALL_PWRITEV2 && (CALL_ARGUMENT(direct, registers, 5) & DISK_RWF_SYNC))
        call.synchronous = 1;
    if (number == CALL_PREAD64 || number == CALL_PWRITE64 || number == CALL_PREADV ||
        number == CALL_PWRITEV || number == CALL_PREADV2 || number == CALL_PWRITEV2) {
        call.offset = CALL_ARGUMENT(direct, registers, 3);
    } else if (number == CALL_SENDFILE) {
        place = CALL_ARGUMENT(direct, registers, 2);
        if (place)
            bpf_probe_read_user(&call.offset, sizeof(call.offset), (void *)place);
    }
    call.what = what;
    call.file = (u64)file;
    call.inode = READ(0, inode, i_ino);
    call.device = READ(0, super, s_dev);
#ifdef HAVE_task_io_accounting_read_bytes
    call.read_bytes = READ(1, task, ioac.read_bytes);
#endif
    call.began = bpf_ktime_get_ns();
    disk_calls.update(&tid, &call);
}

/* Bytes of a folio. */
static __always_inline u64 disk_folio_bytes(const int direct, struct folio *folio) {
    u64 flags = 0, pages = 1;

    bpf_probe_read_kernel(&flags, sizeof(flags), folio);
    if (flags >> PG_head & 1) {
#if defined(HAVE_folio__nr_pages)
        pages = READ(0, folio, _nr_pages);
#elif defined(HAVE_folio__folio_nr_pages)
        pages = READ(0, folio, _folio_nr_pages);
#endif
    }
    return pages * DISK_PAGE;
}
