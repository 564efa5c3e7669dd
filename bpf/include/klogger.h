/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The engine under every schema: rings to build records in, serial numbers, the ledger.
 *
 * The text that stands before this file is generated (collector/plan/tcp_codegen.py,
 * collector/plan/event_codegen.py): the kernel's types, the sizes, the kinds of probes, KIND_probe
 * and INDEX_probe, and what logs each event. Everything here runs with migration off, so a CPU's
 * memory is this program's but for what interrupts it.
 */
/* How deep programs may nest on a CPU: task, softirq, interrupt, and one to spare. */
#define KLOGGER_SLOTS  4 /* klogger_take() masks with one less */
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

/* An event's current second on a CPU, where it has a rate limit. */
struct klogger_rate {
    u64 since;
    u64 count;
};

/* The switches, by point: a location of the schema tcp, or the number of an event. */
struct klogger_control {
    u8 enabled[KLOGGER_POINTS];
    u32 limit[KLOGGER_POINTS]; /* a second and CPU, 0: none */
};

struct klogger_guard {
    u32 running;
    u32 again;
};

/* Room for what a program cannot build in a ring's row, or keep on the stack. */
struct klogger_slot {
    u64 busy;
    u8 record[KLOGGER_RECORD_SIZE];
#if KLOGGER_COPY_SIZE
    u8 copy[KLOGGER_COPY_SIZE];
#endif
};

/* One CPU's memory; collector/plan/columns.py knows the order of the first three members. */
struct klogger_cpu {
    u64 serial;
    struct klogger_guard guards[KLOGGER_GUARDS];
    struct klogger_account accounts[KLOGGER_ROWS];
    struct klogger_rate rates[KLOGGER_ROWS];
    u64 zero; /* always */
    struct klogger_slot slots[KLOGGER_SLOTS];
};

BPF_PERCPU_ARRAY(klogger_cpus, struct klogger_cpu, 1);
BPF_ARRAY(klogger_control, struct klogger_control, 1);

static __always_inline struct klogger_cpu *klogger_this_cpu(void) {
    u32 zero = 0;

    return klogger_cpus.lookup(&zero);
}

/* Makes the compiler forget what it knows of a pointer, so that it asks again for null: the
 * verifier follows the question, not the reasoning that would save it.
 */
#define klogger_forget(pointer) asm volatile("" : "+r"(pointer))

#define klogger_count(counter) __sync_fetch_and_add(&(counter), 1)

/* Reads a member of what the verifier lets us read: a copy of ours or a BTF pointer. The cast takes
 * away the packed alignment that the generated types have, volatile keeps each load whole.
 */
#define GET(p, m) (*(const volatile typeof((p)->m) *)(void *)&(p)->m)

/* Reads a member through any kernel pointer. */
#define READ(direct, p, m)                                                                         \
    ({                                                                                             \
        typeof((p)->m) value_;                                                                     \
        if (direct)                                                                                \
            value_ = GET(p, m);                                                                    \
        else                                                                                       \
            bpf_probe_read_kernel(&value_, sizeof(value_), (void *)&(p)->m);                       \
        value_;                                                                                    \
    })

#define SET(column, value) KLOGGER_SET_##column(value)
#define COPY(column, from) KLOGGER_COPY_##column(from)
#define HAS(column)        KLOGGER_HAS_##column

/*
 * The nth argument of what a program is attached to; the return value follows an fexit's arguments.
 * Registers hold six arguments on x86-64 (rdi rsi rdx rcx r8 r9, in struct pt_regs) and eight on
 * arm64. Those on the stack are not read: asking for one does not compile.
 */
#if defined(__TARGET_ARCH_arm64)
#define KLOGGER_REGISTERS   8
#define KLOGGER_REGISTER(n) ((n)*8)
#else
#define KLOGGER_REGISTERS 6
#define KLOGGER_REGISTER(n)                                                                        \
    ((n) == 0 ? 112 : (n) == 1 ? 104 : (n) == 2 ? 96 : (n) == 3 ? 88 : (n) == 4 ? 72 : 64)
#endif
/* Only where the compiler finds that it is reached does the assembler see the directive. */
static __always_inline u64 klogger_no_register(void) {
    asm volatile(".error \"a kprobe has no ARG() beyond the arguments in registers\"");
    return 0;
}
#define ARG(n)                                                                                     \
    (!KLOGGER_HAS_REGISTERS(kind) ? ((volatile u64 *)ctx)[n]                                       \
     : (n) < KLOGGER_REGISTERS    ? *(volatile u64 *)((u8 *)ctx + KLOGGER_REGISTER(n))             \
                                  : klogger_no_register())
#define DIRECT KLOGGER_IS_DIRECT(kind)

/*
 * The kernel never runs a program inside itself, so an event that interrupts its own program would
 * be lost. Each program is therefore loaded twice, and both hang on the same place. The constant
 * tells which copy runs: the loader makes it 0 in the second. The first marks that it runs; the
 * second, which runs after it, records only when it finds that mark: then the first was skipped.
 */
#define PROBE(name, events, attach)                                                                \
    static __always_inline void name##_body(void *ctx, const int kind, struct klogger_cpu *cpu);   \
    int name(void *ctx) {                                                                          \
        struct klogger_cpu *cpu = klogger_this_cpu();                                              \
        volatile u32 *running;                                                                     \
        u64 first;                                                                                 \
                                                                                                   \
        if (!cpu)                                                                                  \
            return 0;                                                                              \
        running = &cpu->guards[INDEX_##name].running;                                              \
        asm volatile("%0 = 0x6b6c6f6767657231 ll" : "=r"(first));                                  \
        if (first) {                                                                               \
            *running = 1;                                                                          \
        } else {                                                                                   \
            if (!*running)                                                                         \
                return 0;                                                                          \
            klogger_count(cpu->guards[INDEX_##name].again);                                        \
        }                                                                                          \
        name##_body(ctx, KIND_##name, cpu);                                                        \
        if (first)                                                                                 \
            *running = 0;                                                                          \
        return 0;                                                                                  \
    }                                                                                              \
    static __always_inline void name##_body(void *ctx, const int kind, struct klogger_cpu *cpu)

/* For collector/plan/tcp_codegen.py alone: a column is absent where the kernel lacks one of these
 * members.
 */
#define NEEDS(column, members)

/*
 * A slot that no program on this CPU uses, or null. The index is made a number that the verifier
 * does not know, by adding one that is always 0: else it would walk what follows once a slot.
 */
static __always_inline struct klogger_slot *klogger_take(struct klogger_cpu *cpu) {
    u64 index = *(volatile u64 *)&cpu->zero;

#pragma unroll
    for (int i = 0; i < KLOGGER_SLOTS; i++)
        if (!__sync_lock_test_and_set(&cpu->slots[i].busy, 1)) {
            index += i;
            asm volatile("%0 &= 3" : "+r"(index));
            return &cpu->slots[index];
        }
    return 0;
}

static __always_inline void klogger_give_back(struct klogger_slot *slot) {
    *(volatile u64 *)&slot->busy = 0;
}

/* Whether an event is to be logged now: it is switched on. */
static __always_inline int klogger_enabled(const u32 point) {
    u32 zero = 0;
    struct klogger_control *control = klogger_control.lookup(&zero);

    return control && control->enabled[point];
}

/* Enters an attempt in the ledger, if the event is switched on; 0 if it is not to be logged. */
static __always_inline int klogger_admit(struct klogger_cpu *cpu, const u32 point) {
    struct klogger_account *account = &cpu->accounts[point];
    struct klogger_rate *rate = &cpu->rates[point];
    u32 zero = 0;
    struct klogger_control *control = klogger_control.lookup(&zero);
    u64 now;

    if (!control || !control->enabled[point])
        return 0;
    klogger_count(account->attempts);
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

/* The next serial number of this CPU: taken before the output, so that a loss has a place. */
static __always_inline u64 klogger_number(struct klogger_cpu *cpu) {
    return __sync_fetch_and_add(&cpu->serial, 1) + 1;
}

/*
 * The ring transport: a header of its own (ring_NAME.h), which comes after this one and defines
 * these two. collector/ring/transport.py describes the other side.
 *
 * klogger_reserve() returns where to build the next record of KLOGGER_RECORD_SIZE bytes, and fills
 * in `place`. Where there is no room it counts the reason in that row of the ledger, takes a serial
 * number, and returns null. Reserve first, stamp then: so the ring holds every record that was
 * stamped before the collector read it. Every reserved record must be committed: those after it
 * wait.
 *
 * klogger_commit() passes a whole record on to the collector, and counts it as written.
 */
static __always_inline u8 *klogger_reserve(struct klogger_cpu *cpu, const u32 row,
                                           struct klogger_place *place);
static __always_inline void klogger_commit(void *ctx, struct klogger_account *account,
                                           struct klogger_place *place);

/*
 * klogger(EVENT, v1, ..., vn) logs an event: a value for each of its fields, in order. It stands in
 * a PROBE, or where ctx and cpu are what they are there. KLOGGER_ENABLED(EVENT) tells whether it
 * would, for what is worth doing only then.
 */
#define klogger(event, ...)    klogger_log_##event(ctx, cpu, ##__VA_ARGS__)
#define KLOGGER_ENABLED(event) (KLOGGER_ENABLED_##event)

/* Numbers, stamps and sends an event's record; the layout of its head stands in
 * collector/plan/event_layout.py.
 */
static __always_inline void klogger_send(void *ctx, struct klogger_cpu *cpu, const u32 point,
                                         struct klogger_place *place) {
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
