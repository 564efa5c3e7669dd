/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema disk. Those that end what others begin are attached first. */
#include "klogger.h"
#include "klogger_task.h"
#include "collector_self.h"
#include "disk_request.h"
#include "disk_queue.h"
#include "system_call.h"
#include "disk_file.h"

struct buffer_head;
struct file_ra_state;
struct readahead_control;
struct writeback_control;

/* A part of the request, or all that is left of it, is done: (request, status, bytes). */
#if USE_disk_completes
PROBE(disk_completes, "DISK_COMPLETE", "btf:block_rq_complete raw:block_rq_complete")
{
    struct request *rq = (struct request *)ARG(0);
    struct disk_request what = disk_describe(DIRECT, rq);
    u32 bytes = ARG(2);
    int last = bytes >= what.bytes && (what.operation == KLOGGER_disk_operation_FLUSH ||
                                       !disk_is_between_flushes(DIRECT, rq));

    what.bytes = bytes;
    if (last)
        disk_disown(rq);
    klogger(DISK_COMPLETE, DISK_REQUEST(what), (u8)ARG(1), last);
}
#endif

/* block_bio_complete(queue, bio) */
#if USE_disk_bio_completes
PROBE(disk_bio_completes, "DISK_COMPLETE", "btf:block_bio_complete raw:block_bio_complete")
{
    struct bio *bio = (struct bio *)ARG(1);
    struct disk_request what = disk_describe_bio(DIRECT, bio);
    struct disk_owner *owner;
    u64 key = (u64)bio;

    if (!disk_has_bios(DIRECT, bio))
        return;
    owner = disk_owners.lookup(&key);
    if (owner) {
        what.task = owner->task;
        what.id = owner->id;
        what.sector = owner->sector;
        what.bytes = owner->bytes;
        disk_owners.delete(&key);
    }
    klogger(DISK_COMPLETE, DISK_REQUEST(what), READ(DIRECT, bio, bi_status), 1);
}
#endif

#if USE_disk_requeues
PROBE(disk_requeues, "DISK_REQUEUE", "btf:block_rq_requeue raw:block_rq_requeue")
{
    struct disk_request what = disk_describe(DIRECT, (struct request *)ARG(0));

    klogger(DISK_REQUEUE, DISK_REQUEST(what));
}
#endif

/* The request becomes a part of another. */
#if USE_disk_merges
PROBE(disk_merges, "DISK_MERGE", "btf:block_rq_merge raw:block_rq_merge")
{
    struct request *rq = (struct request *)ARG(0);
    struct disk_request what = disk_describe(DIRECT, rq);

    disk_disown(rq);
    klogger(DISK_MERGE, DISK_REQUEST(what), 0);
}
#endif

#if USE_disk_merges_back
PROBE(disk_merges_back, "DISK_MERGE", "btf:block_bio_backmerge raw:block_bio_backmerge")
{
    struct disk_request what = disk_describe_bio(DIRECT, (struct bio *)ARG(0));

    what.task = klogger_current_task();
    klogger(DISK_MERGE, DISK_REQUEST(what), 0);
}
#endif

#if USE_disk_merges_front
PROBE(disk_merges_front, "DISK_MERGE", "btf:block_bio_frontmerge raw:block_bio_frontmerge")
{
    struct disk_request what = disk_describe_bio(DIRECT, (struct bio *)ARG(0));

    what.task = klogger_current_task();
    klogger(DISK_MERGE, DISK_REQUEST(what), 1);
}
#endif

/* Whether a program sees requests being made; else this thread made one that is issued at once. */
#if USE_disk_starts
#define DISK_SEES_STARTS 1
#else
#define DISK_SEES_STARTS 0
#endif

#if USE_disk_issues
PROBE(disk_issues, "DISK_ISSUE DISK_INSERT", "btf:block_rq_issue raw:block_rq_issue")
{
    struct request *rq = (struct request *)ARG(0);
    struct disk_request what = disk_describe(DIRECT, rq);

#if !DISK_SEES_STARTS
    if (!what.id) {
        disk_own(&what, rq, klogger_current_task());
        klogger(DISK_INSERT, DISK_REQUEST(what));
    }
#endif
    klogger(DISK_ISSUE, DISK_REQUEST(what));
}
#endif

/*
 * The request goes into the queue of the scheduler; mq-deadline holds its lock, and has not added
 * it yet. A request that is not known here was made before the capture, or by the kernel itself to
 * flush the device's cache, in any thread.
 */
#if USE_disk_inserts
PROBE(disk_inserts, "DISK_QUEUE DISK_INSERT", "btf:block_rq_insert raw:block_rq_insert")
{
    struct request *rq = (struct request *)ARG(0);
    struct disk_request what = disk_describe(DIRECT, rq);

    if (!what.id) {
        if (DISK_SEES_STARTS || what.operation == KLOGGER_disk_operation_FLUSH)
            disk_own(&what, rq, KLOGGER_NO_TASK);
        else
            disk_own(&what, rq, klogger_current_task());
        klogger(DISK_INSERT, DISK_REQUEST(what));
    }
    if (KLOGGER_ENABLED(DISK_QUEUE)) {
#ifdef DISK_READS_QUEUE
        disk_log_queue(ctx, cpu, DIRECT, rq, what);
#else
        klogger(DISK_QUEUE, DISK_REQUEST(what), -1, 0, 0, 0);
#endif
    }
}
#endif

/* A request is made: by the thread that wants it, since Linux 6.4 with a tracepoint. */
/* clang-format off */
#if USE_disk_starts
PROBE(disk_starts, "DISK_INSERT DISK_ISSUE DISK_COMPLETE DISK_REQUEUE DISK_MERGE DISK_QUEUE",
      "btf:block_io_start raw:block_io_start fentry:__blk_account_io_start kprobe:__blk_account_io_start")
/* clang-format on */
{
    struct request *rq = (struct request *)ARG(0);
    struct disk_request what = disk_describe(DIRECT, rq);

    disk_own(&what, rq, klogger_current_task());
    klogger(DISK_INSERT, DISK_REQUEST(what));
}
#endif

#if USE_disk_bio_starts
PROBE(disk_bio_starts, "DISK_INSERT DISK_COMPLETE", "btf:block_bio_queue raw:block_bio_queue")
{
    struct bio *bio = (struct bio *)ARG(0);
    struct disk_request what = disk_describe_bio(DIRECT, bio);

    if (!disk_has_bios(DIRECT, bio))
        return;
    disk_own(&what, bio, klogger_current_task());
    klogger(DISK_INSERT, DISK_REQUEST(what));
}
#endif

/* sys_exit(registers, value) */
#if USE_disk_returns
PROBE(disk_returns, "FILE_READ FILE_WRITE FILE_SYNC", "btf:sys_exit raw:sys_exit")
{
    struct disk_call *call = disk_this_call();
    s64 result = ARG(1), offset;
    struct klogger_task task;
    u32 tid = bpf_get_current_pid_tgid();
    u64 from_disk = 0;

    if (!call)
        return;
    task = klogger_current_task();
    offset = call->offset;
    if (offset == DISK_OFFSET_OF_FILE) {
        struct file *file = (struct file *)call->file;

        offset = READ(0, file, f_pos) - (result > 0 ? result : 0);
    }
#ifdef HAVE_task_io_accounting_read_bytes
    from_disk = READ(1, (struct task_struct *)bpf_get_current_task_btf(), ioac.read_bytes) -
                call->read_bytes;
#endif
    if (call->what == DISK_CALL_READS)
        klogger(FILE_READ, KLOGGER_TASK(task), call->device, call->inode, offset, result,
                call->began, !call->waited && (!from_disk || call->ahead), call->direct,
                call->added, from_disk);
    else if (call->what == DISK_CALL_WRITES)
        klogger(FILE_WRITE, KLOGGER_TASK(task), call->device, call->inode, offset, result,
                call->began, call->synchronous, call->direct);
    else
        klogger(FILE_SYNC, KLOGGER_TASK(task), call->device, call->inode, result, call->began);
    disk_calls.delete(&tid);
}
#endif

/* A page was added to the page cache, by the call of this thread if there is one. */
#if USE_disk_adds
PROBE(disk_adds, "FILE_READ", "btf:mm_filemap_add_to_page_cache raw:mm_filemap_add_to_page_cache")
{
    struct disk_call *call = disk_this_call();

    if (call)
        call->added += disk_folio_bytes(DIRECT, (struct folio *)ARG(0));
}
#endif

/* sys_enter(registers, number) */
#if USE_disk_calls_begin
PROBE(disk_calls_begin, "FILE_READ FILE_WRITE FILE_SYNC", "btf:sys_enter raw:sys_enter")
{ disk_call_begins(DIRECT, (struct pt_regs *)ARG(0), ARG(1)); }
#endif

/*
 * (inode, index, state, pages) at the tracepoints. The functions have (control, pages), and the
 * second one (control, folio, pages).
 */
static __always_inline void disk_reads_ahead(void *ctx, struct klogger_cpu *cpu, const int direct,
                                             struct inode *inode, u64 index, u64 pages,
                                             const int demand) {
    struct klogger_task task = klogger_current_task();
    struct disk_call *call = disk_this_call();

    if (call && demand)
        call->waited = 1;
    if (call && !demand)
        call->ahead = 1;
    if (inode && !is_collector())
        klogger(FILE_READAHEAD, KLOGGER_TASK(task), disk_device_of(direct, inode),
                READ(direct, inode, i_ino), index * DISK_PAGE, pages * DISK_PAGE, demand);
}

static __always_inline struct inode *disk_inode_of(const int direct,
                                                   struct readahead_control *control) {
    struct address_space *mapping = READ(direct, control, mapping);

    return READ(direct, mapping, host);
}

/* clang-format off */
#if USE_disk_demands
PROBE(disk_demands, "FILE_READAHEAD FILE_READ",
      "btf:page_cache_sync_ra raw:page_cache_sync_ra fentry:page_cache_sync_ra kprobe:page_cache_sync_ra")
/* clang-format on */
{
    if (kind == KLOGGER_FENTRY || kind == KLOGGER_KPROBE) {
        struct readahead_control *control = (struct readahead_control *)ARG(0);

        disk_reads_ahead(ctx, cpu, DIRECT, disk_inode_of(DIRECT, control),
                         READ(DIRECT, control, _index), ARG(1), 1);
    } else {
        disk_reads_ahead(ctx, cpu, DIRECT, (struct inode *)ARG(0), ARG(1), ARG(3), 1);
    }
}
#endif

/* clang-format off */
#if USE_disk_looks_ahead
PROBE(disk_looks_ahead, "FILE_READAHEAD FILE_READ",
      "btf:page_cache_async_ra raw:page_cache_async_ra fentry:page_cache_async_ra kprobe:page_cache_async_ra")
/* clang-format on */
{
    if (kind == KLOGGER_FENTRY || kind == KLOGGER_KPROBE) {
        struct readahead_control *control = (struct readahead_control *)ARG(0);

        disk_reads_ahead(ctx, cpu, DIRECT, disk_inode_of(DIRECT, control),
                         READ(DIRECT, control, _index), ARG(2), 0);
    } else {
        disk_reads_ahead(ctx, cpu, DIRECT, (struct inode *)ARG(0), ARG(1), ARG(3), 0);
    }
}
#endif

/* writeback_single_inode(inode, control, pages): after it, the control has what is left. */
#if USE_disk_writes_back
PROBE(disk_writes_back, "WRITEBACK", "btf:writeback_single_inode raw:writeback_single_inode")
{
    struct inode *inode = (struct inode *)ARG(0);
    struct writeback_control *control = (struct writeback_control *)ARG(1);
    struct klogger_task task = klogger_current_task();

    klogger(WRITEBACK, KLOGGER_TASK(task), disk_device_of(DIRECT, inode),
            READ(DIRECT, inode, i_ino), (s64)ARG(2) - READ(DIRECT, control, nr_to_write));
}
#endif

/* writeback_dirty_folio(folio, mapping) */
#if USE_disk_dirties
PROBE(disk_dirties, "PAGE_DIRTY", "btf:writeback_dirty_folio raw:writeback_dirty_folio")
{
    struct folio *folio = (struct folio *)ARG(0);
    struct address_space *mapping = (struct address_space *)ARG(1);
    struct inode *inode = mapping ? READ(DIRECT, mapping, host) : 0;
    struct klogger_task task;

    if (!inode || is_collector())
        return;
    task = klogger_current_task();
    klogger(PAGE_DIRTY, KLOGGER_TASK(task), disk_device_of(DIRECT, inode),
            READ(DIRECT, inode, i_ino), READ(DIRECT, folio, index) * DISK_PAGE,
            disk_folio_bytes(DIRECT, folio));
}
#endif

/* Where a buffer is on its disk; returns 0 for one without a disk, and for the collector. */
static __always_inline int disk_read_buffer(const int direct, struct buffer_head *buffer,
                                            u32 *number, u64 *sector, u64 *bytes) {
    struct block_device *device = READ(direct, buffer, b_bdev);

    if (!device || is_collector())
        return 0;
    *number = READ(direct, device, bd_dev);
    *bytes = READ(direct, buffer, b_size);
    *sector = READ(direct, buffer, b_blocknr) * (*bytes / 512);
    return 1;
}

#if USE_disk_touches
PROBE(disk_touches, "BUFFER_TOUCH", "btf:block_touch_buffer raw:block_touch_buffer")
{
    struct klogger_task task;
    u64 sector = 0, bytes = 0;
    u32 device = 0;

    if (!disk_read_buffer(DIRECT, (struct buffer_head *)ARG(0), &device, &sector, &bytes))
        return;
    task = klogger_current_task();
    klogger(BUFFER_TOUCH, KLOGGER_TASK(task), device, sector, bytes);
}
#endif

#if USE_disk_dirties_buffer
PROBE(disk_dirties_buffer, "BUFFER_DIRTY", "btf:block_dirty_buffer raw:block_dirty_buffer")
{
    struct klogger_task task;
    u64 sector = 0, bytes = 0;
    u32 device = 0;

    if (!disk_read_buffer(DIRECT, (struct buffer_head *)ARG(0), &device, &sector, &bytes))
        return;
    task = klogger_current_task();
    klogger(BUFFER_DIRTY, KLOGGER_TASK(task), device, sector, bytes);
}
#endif
