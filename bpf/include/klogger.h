/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The engine of all schemata: PROBE(), serial numbers, the ledger, and the calls that reserve and
 * commit records in a ring.
 *
 * The text before this file is generated (collector/plan/kernel_types.py, engine_config.py,
 * tcp_codegen.py, event_codegen.py): the kernel's types, the sizes, the kinds of probes, KIND_probe
 * and INDEX_probe, and a function for each event. Programs run with migration off: only a program
 * that interrupts this one can use the memory of this CPU at the same time.
 */
/* As in the HOWTO: code that only logging needs may be guarded by it. */
#define CONFIG_KLOGGER 1

/* How deep programs may nest on a CPU: task, softirq, interrupt, and one more. */
#define KLOGGER_SLOTS  4 /* klogger_acquire_slot() masks with this less one */
#define KLOGGER_POINTS 256

struct klogger_account {
    u64 attempts;
    u64 filtered;
    u64 unchanged;
    u64 written;
    u64 ring_full;
    u64 no_ring;
    u64 other;
    u64 table_full;
    u64 no_slot;
    u64 limited;
};

/* The current second of an event with a rate limit, on a CPU. */
struct klogger_rate {
    u64 since;
    u64 count;
};

/* The switches, by point: a location of the schema tcp, or an event id. */
struct klogger_control {
    u8 enabled[KLOGGER_POINTS];
    u32 limit[KLOGGER_POINTS]; /* records a second and CPU; 0: no limit */
};

/* For PROBE(), one for each program. */
struct klogger_guard {
    u32 running; /* the first copy runs on this CPU */
    u32 again;   /* events that the second copy recorded; runs of a perf event's program */
};

/* Memory for a record that a ring transport copies, and for a socket's copy: too large for the
 * stack.
 */
struct klogger_slot {
    u64 busy;
    u8 record[KLOGGER_RECORD_SIZE];
#if KLOGGER_COPY_SIZE
    u8 copy[KLOGGER_COPY_SIZE];
#endif
};

/* The memory of a CPU. The members before `rates` are Engine.head of
 * collector/plan/engine_config.py.
 */
struct klogger_cpu {
    u64 serial;
    struct klogger_guard guards[KLOGGER_GUARDS];
    struct klogger_account accounts[KLOGGER_ROWS];
#if KLOGGER_SHEDDING
    u64 shed[KLOGGER_ROWS]; /* events that a step of the budget left out */
#endif
    struct klogger_rate rates[KLOGGER_ROWS];
    u64 zero; /* always 0; the verifier does not know that */
    struct klogger_slot slots[KLOGGER_SLOTS];
};

BPF_PERCPU_ARRAY(klogger_cpus, struct klogger_cpu, 1);
BPF_ARRAY(klogger_control, struct klogger_control, 1);

#if KLOGGER_SHEDDING
/* What the steps of a budget leave out (collector/loader/shedding.py). All zero: nothing. */
struct klogger_shedding {
    u64 sample;    /* connections whose hash has one of these bits */
    u32 unchanged; /* what --when-changed would leave out */
    u32 level;     /* how many steps are in force, for the collector */
    u8 points[KLOGGER_POINTS];
};

BPF_ARRAY(klogger_shedding, struct klogger_shedding, 1);
#endif

static __always_inline struct klogger_cpu *klogger_this_cpu(void) {
    u32 zero = 0;

    return klogger_cpus.lookup(&zero);
}

#define klogger_count(counter) ((void)(__sync_fetch_and_add)(&(counter), 1))

#if __clang_major__ < 12
/*
 * LLVM had no atomic instructions that return a value then (BCC of Ubuntu 22.04). These are calls
 * of no helper: collector/loader/bcc_child.py puts instructions in their place. All are of 64 bits.
 */
static u64 (*klogger_fetch_add)(void *at, u64 value) = (void *)0x6b6c6101;
static u64 (*klogger_exchange)(void *at, u64 value) = (void *)0x6b6c61e1;
static u64 (*klogger_compare_exchange)(void *at, u64 old, u64 new) = (void *)0x6b6c61f1;
#define KLOGGER_IS_U64(at) sizeof(char[sizeof(*(at)) == 8 ? 1 : -1])
#define __sync_fetch_and_add(at, value)                                                            \
    (sizeof(*(at)) == 8 ? klogger_fetch_add(at, value) : (__sync_fetch_and_add)(at, value))
#define __sync_lock_test_and_set(at, value) (KLOGGER_IS_U64(at), klogger_exchange(at, value))
#define __sync_val_compare_and_swap(at, old, new)                                                  \
    (KLOGGER_IS_U64(at), klogger_compare_exchange(at, old, new))
#endif

/* Reads a member by a plain load: from a copy of ours, or by a BTF pointer. The cast removes the
 * packed alignment of the generated types, and volatile keeps the load in one piece.
 */
#define GET(p, m) (*(const volatile typeof((p)->m) *)(void *)&(p)->m)

/* Reads a member by any kernel pointer. direct: by a plain load. */
#define READ(direct, p, m)                                                                         \
    ({                                                                                             \
        typeof((p)->m) value_;                                                                     \
        if (direct)                                                                                \
            value_ = GET(p, m);                                                                    \
        else                                                                                       \
            bpf_probe_read_kernel(&value_, sizeof(value_), (void *)&(p)->m);                       \
        value_;                                                                                    \
    })

/*
 * ADDRESS(name): the address of a function, or of another symbol in the kernel's code; 0: the
 * kernel has none, or hides it. IN_FUNCTION(address, name): false then.
 */
#define ADDRESS(name)              KLOGGER_ADDRESS_##name
#define IN_FUNCTION(address, name) ((u64)(address)-ADDRESS(name) < KLOGGER_BYTES_##name)

#define SET(column, value) KLOGGER_SET_##column(value)
#define COPY(column, from) KLOGGER_COPY_##column(from)
#define HAS(column)        KLOGGER_HAS_##column

/*
 * ARG(n): the nth argument of the target. For fexit the return value follows the arguments.
 *
 *     tracepoint, fentry, fexit, iter     ctx: | arg 0 | arg 1 | ...      u64 each
 *     netfilter                           ctx: struct bpf_nf_ctx: | nf_hook_state | sk_buff |
 *     kprobe, uprobe, uretprobe           ctx: struct pt_regs
 *     perf                                ctx: struct bpf_perf_event_data: pt_regs, period, address
 *
 * struct pt_regs has the arguments in registers: six on x86-64 (rdi rsi rdx rcx r8 r9), eight on
 * arm64. ARG() of an argument on the stack does not compile.
 */
#if defined(__aarch64__)
#define KLOGGER_REGISTERS   8
#define KLOGGER_REGISTER(n) ((n)*8)
#define KLOGGER_RETURNED    0
#define KLOGGER_PC          256
#define KLOGGER_MODE        264
#define KLOGGER_IS_USER(m)  (((m)&15) == 0)
#define KLOGGER_PT_REGS     272
#else
#define KLOGGER_REGISTERS  6
#define KLOGGER_RETURNED   80
#define KLOGGER_PC         128
#define KLOGGER_MODE       136
#define KLOGGER_IS_USER(m) (((m)&3) == 3)
#define KLOGGER_PT_REGS    168
#define KLOGGER_REGISTER(n)                                                                        \
    ((n) == 0 ? 112 : (n) == 1 ? 104 : (n) == 2 ? 96 : (n) == 3 ? 88 : (n) == 4 ? 72 : 64)
#endif
/* The compiler removes this where it is not called, and with it the assembler's directive. */
static __always_inline u64 klogger_no_register(void) {
    asm volatile(".error \"a kprobe has no ARG() beyond the arguments in registers\"");
    return 0;
}
#define KLOGGER_CTX(offset) (*(volatile u64 *)((u8 *)ctx + (offset)))
/* What a perf event tells: the program counter, 1 in user mode, its period, an address. */
#define KLOGGER_PERF_ARG(n)                                                                        \
    ((n) == 0   ? KLOGGER_CTX(KLOGGER_PC)                                                          \
     : (n) == 1 ? KLOGGER_IS_USER(KLOGGER_CTX(KLOGGER_MODE))                                       \
                : KLOGGER_CTX(KLOGGER_PT_REGS + ((n)-2) * 8))
#define ARG(n)                                                                                     \
    (kind == KLOGGER_PERF           ? KLOGGER_PERF_ARG(n)                                          \
     : kind == KLOGGER_URETPROBE    ? KLOGGER_CTX(KLOGGER_RETURNED)                                \
     : !KLOGGER_HAS_REGISTERS(kind) ? KLOGGER_CTX((n)*8)                                           \
     : (n) < KLOGGER_REGISTERS      ? KLOGGER_CTX(KLOGGER_REGISTER(n))                             \
                                    : klogger_no_register())
#define DIRECT KLOGGER_IS_DIRECT(kind)

/*
 * The kernel never runs a program inside itself, so an event that interrupts its own program would
 * be lost. So each program is loaded twice, for the same target; collector/loader/programs.py
 * attaches the second copy when it is needed, and replaces the constant by 0 in it. The first copy
 * sets `running` while it runs. The second records only if it finds `running` set: then the kernel
 * skipped the first copy.
 *
 *     event A:  first: [running = 1 ... interrupted ... running = 0]   second: sees 0, returns
 *     event B:          the kernel skips the first; second: sees 1, records
 */
#define PROBE(name, events, attach)                                                                \
    static __always_inline void name##_body(void *ctx, const int kind, struct klogger_cpu *cpu);   \
    __attribute__((section(".bpf.fn." #name))) int name(void *ctx) {                               \
        struct klogger_cpu *cpu = klogger_this_cpu();                                              \
        volatile u32 *running;                                                                     \
        u64 first;                                                                                 \
                                                                                                   \
        if (!cpu)                                                                                  \
            return KLOGGER_RESULT(KIND_##name);                                                    \
        running = &cpu->guards[INDEX_##name].running;                                              \
        asm volatile("%0 = 0x6b6c6f6767657231 ll" : "=r"(first));                                  \
        if (KLOGGER_COUNTS_RUNS(KIND_##name)) {                                                    \
            klogger_count(cpu->guards[INDEX_##name].again);                                        \
        } else if (first) {                                                                        \
            *running = 1;                                                                          \
        } else {                                                                                   \
            if (!*running)                                                                         \
                return KLOGGER_RESULT(KIND_##name);                                                \
            klogger_count(cpu->guards[INDEX_##name].again);                                        \
        }                                                                                          \
        name##_body(ctx, KIND_##name, cpu);                                                        \
        if (first)                                                                                 \
            *running = 0;                                                                          \
        return KLOGGER_RESULT(KIND_##name);                                                        \
    }                                                                                              \
    static __always_inline void name##_body(void *ctx, const int kind, struct klogger_cpu *cpu)

/* Read by collector/plan/probes.py: the column is absent where the kernel lacks one of the members.
 */
#define NEEDS(column, members)

/*
 * The value, which the verifier does not know any more: else it would check all later code once for
 * each value. Adding `zero`, which is always 0, does that.
 */
static __always_inline u64 klogger_unknown(struct klogger_cpu *cpu, u64 value) {
    value += *(volatile u64 *)&cpu->zero;
    asm volatile("" : "+r"(value));
    return value;
}

/* Acquires a slot that no other program on this CPU uses; null: there is none. */
static __always_inline struct klogger_slot *klogger_acquire_slot(struct klogger_cpu *cpu) {
    u64 index;

#pragma unroll
    for (int i = 0; i < KLOGGER_SLOTS; i++)
        if (!__sync_lock_test_and_set(&cpu->slots[i].busy, 1)) {
            index = klogger_unknown(cpu, i);
            asm volatile("%0 &= 3" : "+r"(index));
            return &cpu->slots[index];
        }
    return 0;
}

static __always_inline void klogger_release_slot(struct klogger_slot *slot) {
    *(volatile u64 *)&slot->busy = 0;
}

/* Whether an event is switched on. */
static __always_inline int klogger_enabled(const u32 point) {
    u32 zero = 0;
    struct klogger_control *control = klogger_control.lookup(&zero);

    return control && control->enabled[point];
}

#if KLOGGER_SHEDDING
/*
 * Whether a step of the budget leaves an event out: by its point, or by its key, that of its
 * connection; 0: it has none. All events with a key have the same hash: collector/plan/budget.py
 * has it too.
 */
static __always_inline int klogger_sheds(const u32 point, u64 key) {
    struct klogger_shedding *shedding;
    u32 zero = 0;

    shedding = klogger_shedding.lookup(&zero);
    if (!shedding)
        return 0;
    return ((key * 0x9e3779b97f4a7c15ull & shedding->sample) | shedding->points[point]) != 0;
}
#endif

/* The number of a key, which may be an address: the verifier refuses to multiply one, and takes a
 * copy of it for a number.
 */
static __always_inline u64 klogger_key(u64 key) {
    u64 number = 0;

#if KLOGGER_SHEDDING
    bpf_probe_read_kernel(&number, sizeof(number), &key);
#endif
    return number;
}

/* Counts an attempt in the ledger if the event is switched on. Returns whether to log it. key: of
 * its connection, for a budget's sample; 0: none.
 */
static __always_inline int klogger_admit(struct klogger_cpu *cpu, const u32 point, u64 key) {
    struct klogger_account *account = &cpu->accounts[point];
    struct klogger_rate *rate = &cpu->rates[point];
    u32 zero = 0;
    struct klogger_control *control = klogger_control.lookup(&zero);
    u64 now;

    if (!control || !control->enabled[point])
        return 0;
    klogger_count(account->attempts);
#if KLOGGER_SHEDDING
    if (klogger_sheds(point, key)) {
        klogger_count(cpu->shed[point]);
        return 0;
    }
#endif
    if (control->limit[point]) {
        now = bpf_ktime_get_ns();
        if (now - rate->since >= 1000000000) {
            rate->since = now;
            rate->count = 0;
        }
        if (__sync_fetch_and_add(&rate->count, 1) >= control->limit[point]) {
            klogger_count(account->limited);
            return 0;
        }
    }
    return 1;
}

/* The next serial number of this CPU. A lost record has one too, so that its place is known. */
static __always_inline u64 klogger_number(struct klogger_cpu *cpu) {
    return __sync_fetch_and_add(&cpu->serial, 1) + 1;
}

/*
 * The ring transport: a header ring_NAME.h after this one defines these two functions.
 * collector/ring/transport.py describes the collector's side.
 *
 * klogger_reserve() reserves a record of KLOGGER_RECORD_SIZE bytes: it returns its address and
 * fills in `place`. Where there is no room it counts the reason in that row of the ledger, uses up
 * a serial number, and returns null. Stamp a record only after it is reserved: then each record
 * that was stamped before the collector read the ring is in the ring. Commit each reserved record:
 * the collector reads none behind it before.
 *
 * klogger_commit() makes a whole record readable for the collector, and counts it as written.
 */
static __always_inline u8 *klogger_reserve(struct klogger_cpu *cpu, const u32 row,
                                           struct klogger_place *place);
static __always_inline void klogger_commit(void *ctx, struct klogger_account *account,
                                           struct klogger_place *place);

/*
 * klogger(EVENT, v1, ..., vn) logs an event, with a value for each of its fields, in order. It
 * needs `ctx` and `cpu` of a PROBE. KLOGGER_ENABLED(EVENT): whether the event is switched on.
 * KLOGGER_CALL: macros among the values are expanded first.
 */
#define KLOGGER_CALL(log, ...) log(__VA_ARGS__)

/* Counts an event that is not logged. cause: filtered or table_full. */
#define klogger_left_out(event, cause)                                                             \
    do {                                                                                           \
        if (KLOGGER_ENABLED(event)) {                                                              \
            klogger_count(cpu->accounts[KLOGGER_POINT_##event].attempts);                          \
            klogger_count(cpu->accounts[KLOGGER_POINT_##event].cause);                             \
        }                                                                                          \
    } while (0)
#define klogger(event, ...)    KLOGGER_CALL(klogger_log_##event, ctx, cpu, ##__VA_ARGS__)
#define KLOGGER_ENABLED(event) (KLOGGER_ENABLED_##event)

/* Numbers, stamps and commits an event's record; collector/plan/event_layout.py has the layout of
 * its head.
 */
static __always_inline void klogger_commit_event(void *ctx, struct klogger_cpu *cpu,
                                                 const u32 point, struct klogger_place *place) {
    u64 serial = klogger_number(cpu), now = bpf_ktime_get_ns();
    u8 *record = place->row;

    *(u32 *)record = serial;
    *(u32 *)(record + 4) = now;
    *(u32 *)(record + 8) = now >> 32;
    *(u32 *)(record + 12) = bpf_get_smp_processor_id();
    *(u32 *)(record + 16) = point;
    *(u32 *)(record + 20) = 0;
    klogger_commit(ctx, &cpu->accounts[point], place);
}
