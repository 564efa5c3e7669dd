/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema paging. The kernel counts each page fault when it begins and, as minor
 * or major, when it is over: in between the thread may have slept.
 */
#include "klogger.h"
#include "klogger_task.h"

struct address_space;
struct inode;
struct super_block;
struct vm_fault;
struct vm_area_struct;
struct file;
struct bio;
struct bvec_iter;
struct block_device;
struct request;
enum req_flag_bits;

#define PAGE_BITS   __builtin_ctz(KLOGGER_PAGE_SIZE)
#define SECTOR_BITS 9
#define OPERATION   255 /* of bio->bi_opf */
#define WRITE       1   /* REQ_OP_WRITE */
#define MOST_BIOS   512 /* of a request; the kernel's own limit for most devices is 1280 KB */

/* A page fault under way, by thread. A fault that ends in a signal stays until the thread's next.
 */
struct paging_fault {
    struct klogger_task task;
    u64 since;
    u64 address;
    u64 page;
    u64 file;
    u64 device;
};
/* A write to swap under way, by bio. */
struct paging_write {
    struct klogger_task task;
    u64 since;
    u64 page;
    u32 device;
    u32 pages;
};

/* Whether a write's flags say swap. A kernel without swap writes no page out.
 */
static __always_inline int is_page_out(u64 flags) {
#ifdef HAVE___REQ_SWAP
    return (flags & OPERATION) == WRITE && flags & 1ULL << __REQ_SWAP;
#else
    return 0;
#endif
}

BPF_TABLE("lru_hash", u32, struct paging_fault, paging_faults, 16384);
BPF_TABLE("lru_hash", u64, struct paging_write, paging_writes, 16384);

#if USE_fault_begins
PROBE(fault_begins, "PAGEIN_START PAGEIN_END", "perf:page_faults:1")
{
    u32 tid = bpf_get_current_pid_tgid();
    struct paging_fault fault = {
        .task = klogger_current_task(),
        .since = bpf_ktime_get_ns(),
        .address = ARG(3),
        .page = ARG(3) >> PAGE_BITS,
    };

    paging_faults.update(&tid, &fault);
}
#endif

#if USE_fault_of_file
/* Where the page is not in the page tables: which file's it is. */
PROBE(fault_of_file, "PAGEIN_START PAGEIN_END",
      "btf:mm_filemap_fault raw:mm_filemap_fault fentry:filemap_fault kprobe:filemap_fault")
{
    u32 tid = bpf_get_current_pid_tgid();
    struct paging_fault *fault = paging_faults.lookup(&tid);
    struct address_space *mapping;
    struct inode *inode;

    if (!fault)
        return;
#if KIND_fault_of_file == KLOGGER_BTF || KIND_fault_of_file == KLOGGER_RAW
    /* (mapping, index) */
    mapping = (struct address_space *)ARG(0);
    fault->page = ARG(1);
#else
    struct vm_fault *vmf = (struct vm_fault *)ARG(0);

    fault->page = READ(DIRECT, vmf, pgoff);
    mapping = READ(DIRECT, READ(DIRECT, READ(DIRECT, vmf, vma), vm_file), f_mapping);
#endif
    inode = READ(DIRECT, mapping, host);
    fault->file = READ(DIRECT, inode, i_ino);
    fault->device = READ(DIRECT, READ(DIRECT, inode, i_sb), s_dev);
}
#endif

#if USE_pages_mapped
/* Pages of a file that were in memory, and are now in the page tables: the one used is among them.
 */
PROBE(pages_mapped, "PAGEIN_START PAGEIN_END", "btf:mm_filemap_map_pages raw:mm_filemap_map_pages")
{
    /* (mapping, first, last) */
    u32 tid = bpf_get_current_pid_tgid();
    struct paging_fault *fault;
    struct inode *inode;

    if (!KLOGGER_ENABLED(PAGEIN_END))
        return;
    fault = paging_faults.lookup(&tid);
    /* After a wait the kernel maps the pages around it too: then the page is known. */
    if (!fault || fault->file)
        return;
    fault->page = ARG(1);
    inode = READ(DIRECT, (struct address_space *)ARG(0), host);
    fault->file = READ(DIRECT, inode, i_ino);
    fault->device = READ(DIRECT, READ(DIRECT, inode, i_sb), s_dev);
}
#endif

static __always_inline void log_fault(void *ctx, struct klogger_cpu *cpu, const int with_io) {
    u32 tid = bpf_get_current_pid_tgid();
    struct paging_fault *fault = paging_faults.lookup(&tid);
    struct klogger_task task;

    if (!fault)
        return;
    task = klogger_current_task();
    klogger(PAGEIN_START, KLOGGER_TASK(fault->task), fault->address, fault->page, fault->file,
            fault->device, with_io, fault->since);
    klogger(PAGEIN_END, KLOGGER_TASK(task), fault->address, fault->page, fault->file, fault->device,
            with_io, fault->since);
    paging_faults.delete(&tid);
}

#if USE_fault_with_io
PROBE(fault_with_io, "PAGEIN_START PAGEIN_END", "perf:major_faults:1")
{ log_fault(ctx, cpu, 1); }
#endif

#if USE_fault_without_io
PROBE(fault_without_io, "PAGEIN_START PAGEIN_END", "perf:minor_faults:1")
{ log_fault(ctx, cpu, 0); }
#endif

#if USE_swap_write
PROBE(swap_write, "PAGEOUT_START PAGEOUT_END", "btf:block_bio_queue raw:block_bio_queue")
{
    struct bio *bio = (struct bio *)ARG(0);
    u64 request = (u64)bio, flags = READ(DIRECT, bio, bi_opf);
    struct paging_write write = {};

    if (!is_page_out(flags))
        return;
    write.task = klogger_current_task();
    write.since = bpf_ktime_get_ns();
    write.page = READ(DIRECT, bio, bi_iter.bi_sector) >> (PAGE_BITS - SECTOR_BITS);
    write.device = READ(DIRECT, READ(DIRECT, bio, bi_bdev), bd_dev);
    write.pages = READ(DIRECT, bio, bi_iter.bi_size) >> PAGE_BITS;
    paging_writes.update(&request, &write);
    klogger(PAGEOUT_START, KLOGGER_TASK(write.task), request, write.device, write.page,
            write.pages);
}
#endif

/* A bio is done, which may be a write to swap. */
static __always_inline void log_written(void *ctx, struct klogger_cpu *cpu, struct bio *bio,
                                        int failed) {
    u64 request = (u64)bio;
    struct paging_write *write = paging_writes.lookup(&request);

    if (!write)
        return;
    klogger(PAGEOUT_END, KLOGGER_TASK(write->task), request, write->device, write->page,
            write->pages, failed ? -5 : 0, write->since);
    paging_writes.delete(&request);
}

/* (queue, bio): of devices without requests, as zram. */
#if USE_swap_written
PROBE(swap_written, "PAGEOUT_END", "btf:block_bio_complete raw:block_bio_complete")
{
    struct bio *bio = (struct bio *)ARG(1);

    log_written(ctx, cpu, bio, READ(DIRECT, bio, bi_status));
}
#endif

/* (request, status, bytes): those of its bios that the bytes reach the end of are done. */
#if USE_swap_requests
PROBE(swap_requests, "PAGEOUT_END", "btf:block_rq_complete raw:block_rq_complete")
{
    struct request *rq = (struct request *)ARG(0);
    struct bio *bio = READ(DIRECT, rq, bio);
    u64 flags = READ(DIRECT, rq, cmd_flags);
    u32 left = ARG(2);

    if (!is_page_out(flags))
        return;
#pragma nounroll
    for (u32 i = 0; i < MOST_BIOS && bio; i++) {
        u32 size = READ(DIRECT, bio, bi_iter.bi_size);

        if (size > left)
            return;
        left -= size;
        log_written(ctx, cpu, bio, (u8)ARG(1));
        bio = READ(DIRECT, bio, bi_next);
    }
}
#endif

static __always_inline void log_begin(void *ctx, struct klogger_cpu *cpu, int kind_, int order) {
    struct klogger_task task = klogger_current_task();

    klogger(RECLAIM_START, KLOGGER_TASK(task), kind_, order);
}

static __always_inline void log_end(void *ctx, struct klogger_cpu *cpu, int kind_, s64 pages) {
    struct klogger_task task = klogger_current_task();

    klogger(RECLAIM_END, KLOGGER_TASK(task), kind_, pages);
}

/* clang-format off */
PROBE(direct_begins, "RECLAIM_START", "btf:mm_vmscan_direct_reclaim_begin raw:mm_vmscan_direct_reclaim_begin")
{ log_begin(ctx, cpu, KLOGGER_reclaim_kind_DIRECT, ARG(0)); }
PROBE(direct_ends, "RECLAIM_END", "btf:mm_vmscan_direct_reclaim_end raw:mm_vmscan_direct_reclaim_end")
{ log_end(ctx, cpu, KLOGGER_reclaim_kind_DIRECT, ARG(0)); }
PROBE(cgroup_begins, "RECLAIM_START", "btf:mm_vmscan_memcg_reclaim_begin raw:mm_vmscan_memcg_reclaim_begin")
{ log_begin(ctx, cpu, KLOGGER_reclaim_kind_CGROUP, ARG(0)); }
PROBE(cgroup_ends, "RECLAIM_END", "btf:mm_vmscan_memcg_reclaim_end raw:mm_vmscan_memcg_reclaim_end")
{ log_end(ctx, cpu, KLOGGER_reclaim_kind_CGROUP, ARG(0)); }
PROBE(kswapd_begins, "RECLAIM_START", "btf:mm_vmscan_kswapd_wake raw:mm_vmscan_kswapd_wake")
{ log_begin(ctx, cpu, KLOGGER_reclaim_kind_BACKGROUND, ARG(2)); }
PROBE(kswapd_ends, "RECLAIM_END", "btf:mm_vmscan_kswapd_sleep raw:mm_vmscan_kswapd_sleep")
{ log_end(ctx, cpu, KLOGGER_reclaim_kind_BACKGROUND, -1); }
/* clang-format on */
