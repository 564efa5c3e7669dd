/* SPDX-License-Identifier: GPL-2.0-only */
/* Tells the collector's own threads from all others: an event that recording itself causes would
 * cause the next one. collector/loader/capture_maps.py fills the map before anything is attached.
 */
struct collector_self {
    u64 device; /* of the collector's namespace of processes, as stat() has it */
    u64 inode;
    u32 tgid; /* the collector, in that namespace */
    u32 zero;
};

struct collector_ids {
    u32 tid;
    u32 tgid;
};

BPF_ARRAY(collector_self, struct collector_self, 1);

static __always_inline int is_collector(void) {
    u32 zero = 0;
    struct collector_self *self = collector_self.lookup(&zero);
    struct collector_ids ids = {};

    /* Fails in other namespaces. */
    return self &&
           !bpf_get_ns_current_pid_tgid(self->device, self->inode, (void *)&ids, sizeof(ids)) &&
           ids.tgid == self->tgid;
}
