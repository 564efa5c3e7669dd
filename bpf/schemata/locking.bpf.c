/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The programs of the schema locking. A wait for a lock begins and ends at the kernel's two
 * contention tracepoints (Linux 5.19). A wait for a spinlock begins and ends at the slow path,
 * where that can be probed: the tracepoints leave out the first waiter in the queue. Where the
 * functions that release locks can be probed, an acquired lock is stored until its release and
 * logged then; elsewhere it is logged at once.
 */
#include "klogger.h"

/* collector/plan/kernel_types.py declares these. */
struct mutex;
struct task_struct;
struct wait_queue_head;

/* Flags of the contention tracepoints (include/trace/events/lock.h). */
#define LOCK_SPIN   0x01
#define LOCK_READ   0x02
#define LOCK_WRITE  0x04
#define LOCK_RT     0x08
#define LOCK_PERCPU 0x10
#define LOCK_MUTEX  0x20

#define LOCKING_NESTED  4     /* task, softirq, interrupt, NMI */
#define LOCKING_WAITERS 16384 /* threads that wait for a lock at the same time */
#define LOCKING_HELD    16384 /* locks that were acquired after a wait, and not released yet */

/* For each kind of lock whether releases are probed: all functions that release it must be. */
#if USE_spin_unlock && USE_spin_unlock_irq && USE_spin_unlock_bh && USE_spin_unlock_restore
#define FOLLOWS_SPIN 1
#else
#define FOLLOWS_SPIN 0
#endif
#if USE_read_unlock && USE_read_unlock_irq && USE_read_unlock_bh && USE_read_unlock_restore &&     \
    USE_write_unlock && USE_write_unlock_irq && USE_write_unlock_bh && USE_write_unlock_restore
#define FOLLOWS_RWLOCK 1
#else
#define FOLLOWS_RWLOCK 0
#endif
#if USE_up_read && USE_up_write && USE_downgrade_write
#define FOLLOWS_RWSEM 1
#else
#define FOLLOWS_RWSEM 0
#endif
#if USE_mutex_unlock
#define FOLLOWS_MUTEX 1
#else
#define FOLLOWS_MUTEX 0
#endif
#define FOLLOWS (FOLLOWS_SPIN || FOLLOWS_RWLOCK || FOLLOWS_RWSEM || FOLLOWS_MUTEX)

#if USE_spin_slow && USE_spin_taken
#define SPINS_AT_SLOW_PATH 1
#else
#define SPINS_AT_SLOW_PATH 0
#endif

/* A wait that has begun. */
struct lock_wait {
    u64 lock;
    u64 since;
    u32 flags;
    u32 unused;
};

/* A thread that waits, or a holder. Readers share a lock, so each is a separate holder. */
struct lock_owner {
    u64 lock;
    u64 thread; /* 0: the only holder */
};

/* A lock that was acquired after a wait, and the thread that acquired it. Another thread may
 * release it: for the lock of a run queue that is the next thread on the CPU.
 */
struct lock_held {
    u64 acquired;
    u64 waited;
    u64 who;
    u32 flags;
    u32 unused;
    char comm[16];
};

struct locking_cpu {
    struct lock_wait spins[LOCKING_NESTED];
};

/* A CPU spins for one lock in each context. Any number of threads may sleep. */
BPF_PERCPU_ARRAY(locking_cpus, struct locking_cpu, 1);
BPF_HASH(locking_waits, struct lock_owner, struct lock_wait, LOCKING_WAITERS);
#if FOLLOWS
BPF_HASH(locking_held, struct lock_owner, struct lock_held, LOCKING_HELD);
#endif

static __always_inline int lock_type_of(u32 flags) {
    if (flags & LOCK_MUTEX)
        return KLOGGER_lock_type_MUTEX;
    if (flags & LOCK_RT)
        return flags & (LOCK_READ | LOCK_WRITE) ? KLOGGER_lock_type_RT_RWLOCK
                                                : KLOGGER_lock_type_RT_MUTEX;
    if (flags & LOCK_PERCPU)
        return KLOGGER_lock_type_PERCPU_RWSEM;
    if (flags & (LOCK_READ | LOCK_WRITE))
        return flags & LOCK_SPIN ? KLOGGER_lock_type_RWLOCK : KLOGGER_lock_type_RWSEM;
    return flags & LOCK_SPIN ? KLOGGER_lock_type_SPINLOCK : KLOGGER_lock_type_SEMAPHORE;
}

/* Whether a lock of this kind is stored until its release. */
static __always_inline int is_stored(u32 flags) {
    int type = lock_type_of(flags);

    return (FOLLOWS_SPIN && type == KLOGGER_lock_type_SPINLOCK) ||
           (FOLLOWS_RWLOCK && type == KLOGGER_lock_type_RWLOCK) ||
           (FOLLOWS_RWSEM && type == KLOGGER_lock_type_RWSEM) ||
           (FOLLOWS_MUTEX && type == KLOGGER_lock_type_MUTEX);
}

/* Logs the finish event of this kind of lock. */
static __always_inline void log_finish(void *ctx, struct klogger_cpu *cpu, u64 lock,
                                       struct lock_held *held, int moment, int error) {
    u32 pid = held->who, tgid = held->who >> 32, flags = held->flags;
    int type = lock_type_of(flags);
    u64 acquired = held->acquired, waited = held->waited;
    const void *comm = &held->comm;

    if (type == KLOGGER_lock_type_MUTEX || type == KLOGGER_lock_type_SEMAPHORE)
        klogger(MUTEX_FINISH, lock, acquired, waited, type, moment, error, pid, tgid, comm);
    else if (flags & LOCK_READ)
        klogger(READLOCK_FINISH, lock, acquired, waited, type, moment, error, pid, tgid, comm);
    else if (type == KLOGGER_lock_type_RT_RWLOCK)
        klogger(PREEMPT_WRITELOCK_FINISH, lock, acquired, waited, type, moment, error, pid, tgid,
                comm);
    else if (flags & LOCK_WRITE)
        klogger(WRITELOCK_FINISH, lock, acquired, waited, type, moment, error, pid, tgid, comm);
    else if (type == KLOGGER_lock_type_RT_MUTEX)
        klogger(PREEMPT_SPINLOCK_FINISH, lock, acquired, waited, type, moment, error, pid, tgid,
                comm);
    else
        klogger(SPINLOCK_FINISH, lock, acquired, waited, type, moment, error, pid, tgid, comm);
}

/* Counts in the ledger an event that is lost because a map is full. */
static __always_inline void count_table_full(struct klogger_cpu *cpu, u32 flags) {
    u32 point = KLOGGER_POINT_SPINLOCK_FINISH;
    int type = lock_type_of(flags);

    if (type == KLOGGER_lock_type_MUTEX || type == KLOGGER_lock_type_SEMAPHORE)
        point = KLOGGER_POINT_MUTEX_FINISH;
    else if (flags & LOCK_READ)
        point = KLOGGER_POINT_READLOCK_FINISH;
    else if (type == KLOGGER_lock_type_RT_RWLOCK)
        point = KLOGGER_POINT_PREEMPT_WRITELOCK_FINISH;
    else if (flags & LOCK_WRITE)
        point = KLOGGER_POINT_WRITELOCK_FINISH;
    else if (type == KLOGGER_lock_type_RT_MUTEX)
        point = KLOGGER_POINT_PREEMPT_SPINLOCK_FINISH;
    if (point < KLOGGER_ROWS && klogger_enabled(point)) {
        klogger_count(cpu->accounts[point].attempts);
        klogger_count(cpu->accounts[point].table_full);
    }
}

/* Whether the waiter spins with preemption off: then its CPU identifies the wait. */
static __always_inline int is_spinning(u32 flags) {
    return flags & LOCK_SPIN && !(flags & LOCK_MUTEX);
}

/* Stores a wait. A spinning wait gets the first free place, or replaces the oldest one, whose end
 * was missed.
 */
static __always_inline void wait_begins(struct klogger_cpu *cpu, u64 lock, u32 flags) {
    struct lock_owner owner = {.lock = lock, .thread = (u32)bpf_get_current_pid_tgid()};
    struct lock_wait wait = {.lock = lock, .since = bpf_ktime_get_ns(), .flags = flags};
    struct locking_cpu *here;
    u32 zero = 0, chosen = 0;
    u64 oldest = ~0ULL;

    if (!is_spinning(flags)) {
        /* A mutex has several begin events for a wait: one for each change of spinning and
         * sleeping.
         */
        if (!locking_waits.lookup(&owner) && locking_waits.update(&owner, &wait))
            count_table_full(cpu, flags);
        return;
    }
    here = locking_cpus.lookup(&zero);
    if (!here)
        return;
#pragma unroll
    for (u32 i = 0; i < LOCKING_NESTED; i++) {
        u64 since = here->spins[i].lock ? here->spins[i].since : 0;

        if (since < oldest) {
            oldest = since;
            chosen = i;
        }
    }
    chosen &= LOCKING_NESTED - 1;
    if (oldest)
        count_table_full(cpu, here->spins[chosen].flags);
    here->spins[chosen] = wait;
}

static __always_inline void wait_ends(void *ctx, struct klogger_cpu *cpu, u64 lock, int error) {
    struct lock_owner owner = {.lock = lock, .thread = (u32)bpf_get_current_pid_tgid()};
    struct lock_wait wait = {}, *found;
    struct locking_cpu *here;
    struct lock_held held = {};
#if FOLLOWS
    struct lock_held before;
    int is_again = 0;
#endif
    u64 now = bpf_ktime_get_ns();
    u32 zero = 0;

    here = locking_cpus.lookup(&zero);
    if (!here)
        return;
#pragma unroll
    for (int i = 0; i < LOCKING_NESTED; i++) {
        if (!wait.lock && here->spins[i].lock == lock) {
            wait = here->spins[i];
            here->spins[i].lock = 0;
        }
    }
    if (!wait.lock) {
        found = locking_waits.lookup(&owner);
        if (!found)
            return; /* the wait began before the capture */
        wait = *found;
        locking_waits.delete(&owner);
    }
    held.acquired = error ? 0 : now;
    held.waited = now - wait.since;
    held.who = bpf_get_current_pid_tgid();
    held.flags = wait.flags;
    bpf_get_current_comm(held.comm, sizeof(held.comm));
#if FOLLOWS
    if (!error && is_stored(wait.flags)) {
        struct lock_held *old;

        if (!(wait.flags & LOCK_READ))
            owner.thread = 0;
        old = locking_held.lookup(&owner);
        if (old) {
            before = *old;
            is_again = 1;
        }
        if (locking_held.update(&owner, &held))
            count_table_full(cpu, held.flags);
        if (is_again)
            log_finish(ctx, cpu, lock, &before, KLOGGER_lock_moment_UNSEEN, 0);
        return;
    }
#endif
    log_finish(ctx, cpu, lock, &held,
               error ? KLOGGER_lock_moment_GIVEN_UP : KLOGGER_lock_moment_ACQUIRED, error);
}

#if FOLLOWS
static __always_inline void lock_released(void *ctx, struct klogger_cpu *cpu, u64 lock,
                                          const int shared) {
    struct lock_owner owner = {.lock = lock,
                               .thread = shared ? (u32)bpf_get_current_pid_tgid() : 0};
    struct lock_held held, *found = locking_held.lookup(&owner);

    if (!found)
        return; /* it was acquired without a wait */
    held = *found;
    locking_held.delete(&owner);
    log_finish(ctx, cpu, lock, &held, KLOGGER_lock_moment_RELEASED, 0);
}
#endif

/* The functions that release locks; the lock is their first argument. For spinlocks there are no
 * kprobes, which would interrupt the kernel too often. Without #if: they are small, and those that
 * are not used are not loaded.
 */
#if FOLLOWS
#define FOLLOWED(lock, shared)                                                                     \
    if (FOLLOWS_##lock)                                                                            \
    lock_released(ctx, cpu, ARG(0), shared)
#else
#define FOLLOWED(lock, shared)
#endif

PROBE(spin_unlock, "SPINLOCK_FINISH", "fentry:_raw_spin_unlock")
{ FOLLOWED(SPIN, 0); }

PROBE(spin_unlock_irq, "SPINLOCK_FINISH", "fentry:_raw_spin_unlock_irq")
{ FOLLOWED(SPIN, 0); }

PROBE(spin_unlock_bh, "SPINLOCK_FINISH", "fentry:_raw_spin_unlock_bh")
{ FOLLOWED(SPIN, 0); }

PROBE(spin_unlock_restore, "SPINLOCK_FINISH", "fentry:_raw_spin_unlock_irqrestore")
{ FOLLOWED(SPIN, 0); }

PROBE(read_unlock, "READLOCK_FINISH", "fentry:_raw_read_unlock")
{ FOLLOWED(RWLOCK, 1); }

PROBE(read_unlock_irq, "READLOCK_FINISH", "fentry:_raw_read_unlock_irq")
{ FOLLOWED(RWLOCK, 1); }

PROBE(read_unlock_bh, "READLOCK_FINISH", "fentry:_raw_read_unlock_bh")
{ FOLLOWED(RWLOCK, 1); }

PROBE(read_unlock_restore, "READLOCK_FINISH", "fentry:_raw_read_unlock_irqrestore")
{ FOLLOWED(RWLOCK, 1); }

PROBE(write_unlock, "WRITELOCK_FINISH", "fentry:_raw_write_unlock")
{ FOLLOWED(RWLOCK, 0); }

PROBE(write_unlock_irq, "WRITELOCK_FINISH", "fentry:_raw_write_unlock_irq")
{ FOLLOWED(RWLOCK, 0); }

PROBE(write_unlock_bh, "WRITELOCK_FINISH", "fentry:_raw_write_unlock_bh")
{ FOLLOWED(RWLOCK, 0); }

PROBE(write_unlock_restore, "WRITELOCK_FINISH", "fentry:_raw_write_unlock_irqrestore")
{ FOLLOWED(RWLOCK, 0); }

PROBE(up_read, "READLOCK_FINISH", "fentry:up_read kprobe:up_read")
{ FOLLOWED(RWSEM, 1); }

PROBE(up_write, "WRITELOCK_FINISH", "fentry:up_write kprobe:up_write")
{ FOLLOWED(RWSEM, 0); }

PROBE(downgrade_write, "WRITELOCK_FINISH", "fentry:downgrade_write kprobe:downgrade_write")
{ FOLLOWED(RWSEM, 0); }

PROBE(mutex_unlock, "MUTEX_FINISH", "fentry:mutex_unlock kprobe:mutex_unlock")
{ FOLLOWED(MUTEX, 0); }

/*
 * contention_end(lock, error), contention_begin(lock, flags). Programs are attached in the order of
 * this file, ends before begins: so the end of each stored wait is seen.
 */
/* clang-format off */
#if USE_ends
PROBE(ends, "SPINLOCK_FINISH PREEMPT_SPINLOCK_FINISH READLOCK_FINISH WRITELOCK_FINISH PREEMPT_WRITELOCK_FINISH MUTEX_FINISH",
      "btf:contention_end raw:contention_end")
/* clang-format on */
{ wait_ends(ctx, cpu, ARG(0), (int)ARG(1)); }
#endif

/* clang-format off */
#if USE_begins
PROBE(begins, "SPINLOCK_FINISH PREEMPT_SPINLOCK_FINISH READLOCK_FINISH WRITELOCK_FINISH PREEMPT_WRITELOCK_FINISH MUTEX_FINISH",
      "btf:contention_begin raw:contention_begin")
/* clang-format on */
{
    u32 flags = ARG(1);

    if (!SPINS_AT_SLOW_PATH || flags != LOCK_SPIN)
        wait_begins(cpu, ARG(0), flags);
}
#endif

/* The slow path of spinlocks, and that of a guest with paravirtual spinlocks. */
#if USE_spin_taken
PROBE(spin_taken, "SPINLOCK_FINISH",
      "fexit:native_queued_spin_lock_slowpath fexit:queued_spin_lock_slowpath")
{ wait_ends(ctx, cpu, ARG(0), 0); }
#endif

#if USE_pv_spin_taken
PROBE(pv_spin_taken, "SPINLOCK_FINISH", "fexit:__pv_queued_spin_lock_slowpath")
{ wait_ends(ctx, cpu, ARG(0), 0); }
#endif

#if USE_spin_slow
PROBE(spin_slow, "SPINLOCK_FINISH",
      "fentry:native_queued_spin_lock_slowpath fentry:queued_spin_lock_slowpath")
{ wait_begins(cpu, ARG(0), LOCK_SPIN); }
#endif

#if USE_pv_spin_slow
PROBE(pv_spin_slow, "SPINLOCK_FINISH", "fentry:__pv_queued_spin_lock_slowpath")
{ wait_begins(cpu, ARG(0), LOCK_SPIN); }
#endif

static __always_inline void log_spinlock_init(void *ctx, struct klogger_cpu *cpu, u64 lock,
                                              int holder, u64 name) {
    u64 who = bpf_get_current_pid_tgid();

    klogger(SPINLOCK_INIT, lock, holder, (const void *)name, who, who >> 32);
}

static __always_inline void log_rwlock_init(void *ctx, struct klogger_cpu *cpu, u64 lock, int type,
                                            u64 name) {
    u64 who = bpf_get_current_pid_tgid();

    klogger(RWLOCK_INIT, lock, type, (const void *)name, who, who >> 32);
}

/*
 * (lock, name, key, ...). Only with CONFIG_DEBUG_SPINLOCK has the kernel functions that initialize
 * spinlocks and rwlocks; else it stores a zero in place. Wait queues and mutexes, which contain a
 * spinlock, always have such a function.
 */
#if USE_spin_init
PROBE(spin_init, "SPINLOCK_INIT", "fentry:__raw_spin_lock_init kprobe:__raw_spin_lock_init")
{ log_spinlock_init(ctx, cpu, ARG(0), KLOGGER_lock_holder_ALONE, ARG(1)); }
#endif

#if USE_waitqueue_init
PROBE(waitqueue_init, "SPINLOCK_INIT", "fentry:__init_waitqueue_head kprobe:__init_waitqueue_head")
{
#if !USE_spin_init
    log_spinlock_init(ctx, cpu, ARG(0) + __builtin_offsetof(struct wait_queue_head, lock),
                      KLOGGER_lock_holder_WAIT_QUEUE, ARG(1));
#endif
}
#endif

#if USE_mutex_init
PROBE(mutex_init, "SPINLOCK_INIT", "fentry:__mutex_init kprobe:__mutex_init")
{
#if !USE_spin_init
    log_spinlock_init(ctx, cpu, ARG(0) + __builtin_offsetof(struct mutex, wait_lock),
                      KLOGGER_lock_holder_MUTEX_WAITERS, ARG(1));
#endif
}
#endif

/* 7.3: without lockdep, mutexes have no names. */
#if USE_mutex_init_generic
PROBE(mutex_init_generic, "SPINLOCK_INIT", "fentry:mutex_init_generic kprobe:mutex_init_generic")
{
#if !USE_spin_init
    log_spinlock_init(ctx, cpu, ARG(0) + __builtin_offsetof(struct mutex, wait_lock),
                      KLOGGER_lock_holder_MUTEX_WAITERS, 0);
#endif
}
#endif

#if USE_rwlock_init
PROBE(rwlock_init, "RWLOCK_INIT", "fentry:__rwlock_init kprobe:__rwlock_init")
{ log_rwlock_init(ctx, cpu, ARG(0), KLOGGER_lock_type_RWLOCK, ARG(1)); }
#endif

#if USE_rwsem_init
PROBE(rwsem_init, "RWLOCK_INIT", "fentry:__init_rwsem kprobe:__init_rwsem")
{ log_rwlock_init(ctx, cpu, ARG(0), KLOGGER_lock_type_RWSEM, ARG(1)); }
#endif
