/* SPDX-License-Identifier: GPL-2.0-only */
/* The programs of the schema preempt. A program runs with preemption off, and a ring's lock turns
 * interrupts off: what a record causes itself is no section.
 */
#include "klogger.h"
#include "klogger_task.h"

#define PREEMPT 0
#define IRQS    1

/* A CPU's sections that have begun: since when, 0 for none, and where. */
struct preempt_sections {
    u64 since[2];
    u64 from[2];
    u32 logging;
    u32 unused;
};

BPF_PERCPU_ARRAY(preempt_sections, struct preempt_sections, 1);

static __always_inline struct preempt_sections *sections(void) {
    u32 zero = 0;

    return preempt_sections.lookup(&zero);
}

static __always_inline void section_begins(const int which, u64 from) {
    struct preempt_sections *now = sections();

    if (!now || now->logging)
        return;
    now->since[which] = bpf_ktime_get_ns();
    now->from[which] = from;
}

#define SECTION_ENDS(which, event)                                                                 \
    struct preempt_sections *now = sections();                                                     \
    u64 since;                                                                                     \
                                                                                                   \
    if (!now || now->logging || !now->since[which])                                                \
        return;                                                                                    \
    since = now->since[which];                                                                     \
    now->since[which] = 0;                                                                         \
    now->logging = 1;                                                                              \
    if (KLOGGER_ENABLED(event)) {                                                                  \
        struct klogger_task task = klogger_current_task();                                         \
                                                                                                   \
        klogger(event, KLOGGER_TASK(task), since, now->from[which], 0, ARG(0), 0);                 \
    }                                                                                              \
    now->logging = 0

#if USE_preempt_off
PROBE(preempt_off, "PREEMPT_OFF", "btf:preempt_disable raw:preempt_disable")
{ section_begins(PREEMPT, ARG(0)); }
#endif

#if USE_preempt_on
PROBE(preempt_on, "PREEMPT_OFF", "btf:preempt_enable raw:preempt_enable")
{ SECTION_ENDS(PREEMPT, PREEMPT_OFF); }
#endif

#if USE_irqs_off
PROBE(irqs_off, "IRQS_OFF", "btf:irq_disable raw:irq_disable")
{ section_begins(IRQS, ARG(0)); }
#endif

#if USE_irqs_on
PROBE(irqs_on, "IRQS_OFF", "btf:irq_enable raw:irq_enable")
{ SECTION_ENDS(IRQS, IRQS_OFF); }
#endif
