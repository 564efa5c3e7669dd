/* SPDX-License-Identifier: GPL-2.0-only */
/* Requests of block devices: what they are, and who made them. For disk.bpf.c. */
struct bio;
struct block_device;
struct block_device_operations;
struct bvec_iter;
struct gendisk;
struct request;
struct request_queue;
enum req_flag_bits;
enum rqf_flags;
enum __RQF_FLUSH_SEQ; /* the same where it has no name: Linux 6.12 */

/* Who made a request, from its insertion to its end. sector, bytes: of a bio, which forgets them.
 */
struct disk_owner {
    struct klogger_task task;
    u64 id;
    u64 sector;
    u64 bytes;
};

/* By the address of the request, or of the bio on a device without requests. */
BPF_HASH(disk_owners, u64, struct disk_owner, 16384);
BPF_ARRAY(disk_last_id, u64, 1);

/* The fields that all of a request's events have. */
struct disk_request {
    struct klogger_task task;
    u64 id;
    u64 sector;
    u32 device;
    u32 bytes;
    u32 operation;
    u32 flags;
    u32 priority_class;
};

#define DISK_REQUEST(r)                                                                            \
    KLOGGER_TASK((r).task), (r).id, (r).device, (r).sector, (r).bytes, (r).operation, (r).flags,   \
        (r).priority_class

/* Bits of `flags`, which kernels have at other places. */
#define DISK_FLAG(flags, name, bit) ((flags) >> (name)&1 ? (bit) : 0)

static __always_inline u32 disk_flags(u32 flags) {
    u32 found = DISK_FLAG(flags, __REQ_SYNC, 1) | DISK_FLAG(flags, __REQ_META, 2) |
                DISK_FLAG(flags, __REQ_FUA, 4) | DISK_FLAG(flags, __REQ_PREFLUSH, 8) |
                DISK_FLAG(flags, __REQ_RAHEAD, 16) | DISK_FLAG(flags, __REQ_BACKGROUND, 64) |
                DISK_FLAG(flags, __REQ_NOWAIT, 128);

#ifdef HAVE___REQ_SWAP
    found |= DISK_FLAG(flags, __REQ_SWAP, 32);
#endif
    return found;
}

#define DISK_OPERATION(flags) ((flags)&0xff)
#define DISK_CLASS(priority)  ((priority) >> 13 & 7)

static __always_inline u32 disk_device(struct gendisk *disk) {
    return disk ? (u32)READ(0, disk, major) << 20 | READ(0, disk, first_minor) : 0;
}

static __always_inline void disk_set_owner(struct disk_request *to, void *of) {
    u64 key = (u64)of;
    struct disk_owner *owner = disk_owners.lookup(&key);

    to->task = owner ? owner->task : KLOGGER_NO_TASK;
    to->id = owner ? owner->id : 0;
}

/* Describes a request, with its owner if that is known. */
static __always_inline struct disk_request disk_describe(const int direct, struct request *rq) {
    struct disk_request found = {};
    struct request_queue *queue = READ(direct, rq, q);
    u32 flags = READ(direct, rq, cmd_flags), priority = 0;
    struct bio *bio = READ(direct, rq, bio);

#ifdef HAVE_request_ioprio
    priority = READ(direct, rq, ioprio);
#else
    if (bio)
        priority = READ(direct, bio, bi_ioprio);
#endif
    disk_set_owner(&found, rq);
#ifdef HAVE_request_queue_disk
    found.device = disk_device(READ(direct, queue, disk));
#else
    found.device = disk_device(READ(direct, rq, rq_disk));
#endif
    found.bytes = READ(direct, rq, __data_len);
    found.sector = READ(direct, rq, __sector);
    found.operation = DISK_OPERATION(flags);
    /* A flush has no sector, and a driver's command none that means anything. */
    if (found.sector == ~0ULL || found.operation >= KLOGGER_disk_operation_DRIVER_IN)
        found.sector = 0;
    found.flags = disk_flags(flags);
    found.priority_class = DISK_CLASS(priority);
    return found;
}

/* Describes a bio. */
static __always_inline struct disk_request disk_describe_bio(const int direct, struct bio *bio) {
    struct disk_request found = {.task = KLOGGER_NO_TASK};
    struct block_device *device = READ(direct, bio, bi_bdev);
    u32 flags = READ(direct, bio, bi_opf);

    found.device = disk_device(READ(direct, device, bd_disk));
    found.bytes = READ(direct, bio, bi_iter.bi_size);
    found.sector = READ(direct, bio, bi_iter.bi_sector);
    found.operation = DISK_OPERATION(flags);
    found.flags = disk_flags(flags);
    found.priority_class = DISK_CLASS((u32)READ(direct, bio, bi_ioprio));
    return found;
}

/* Whether the bio's device has no requests: its driver takes bios. */
static __always_inline int disk_has_bios(const int direct, struct bio *bio) {
    struct block_device *device = READ(direct, bio, bi_bdev);
    struct gendisk *disk = READ(direct, device, bd_disk);
    struct block_device_operations *operations =
        (struct block_device_operations *)READ(direct, disk, fops);

    return READ(direct, operations, submit_bio) != 0;
}

/* Gives a request its id and stores its owner, under the address `of`. */
static __always_inline void disk_own(struct disk_request *what, void *of,
                                     struct klogger_task task) {
    struct disk_owner owner = {.task = task, .sector = what->sector, .bytes = what->bytes};
    u64 key = (u64)of, *last;
    u32 zero = 0;

    last = disk_last_id.lookup(&zero);
    if (!last)
        return;
    owner.id = __sync_fetch_and_add(last, 1) + 1;
    if (disk_owners.update(&key, &owner))
        return; /* its events have no id and no owner */
    what->task = task;
    what->id = owner.id;
}

static __always_inline void disk_disown(void *of) {
    u64 key = (u64)of;

    disk_owners.delete(&key);
}

/* Whether a request is a part of a longer one: data between two flushes of the device's cache. */
static __always_inline int disk_is_between_flushes(const int direct, struct request *rq) {
#ifdef HAVE___RQF_FLUSH_SEQ
    return READ(direct, rq, rq_flags) >> __RQF_FLUSH_SEQ & 1;
#else
    return READ(direct, rq, rq_flags) >> 4 & 1;
#endif
}
