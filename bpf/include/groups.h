/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Control groups of version 2 as they are made: the collector reads their paths, also of those that
 * are gone by then (collector/session/whose.py). A row is overwritten by the one GROUP_ROOM later.
 */
#define GROUP_ROOM 256
#define GROUP_PATH 504

struct group_made {
    u64 id;
    char path[GROUP_PATH];
};

BPF_ARRAY(groups_made, struct group_made, GROUP_ROOM);
/* How many there were so far. */
BPF_ARRAY(groups_count, u64, 1);

#if USE_group_made
PROBE(group_made, "", "btf:cgroup_mkdir raw:cgroup_mkdir")
{
    struct cgroup *group = (struct cgroup *)ARG(0);
    struct cgroup_root *root = READ(DIRECT, group, root);
    struct kernfs_node *node = READ(DIRECT, group, kn);
    u32 zero = 0, row;
    u64 *count = groups_count.lookup(&zero);
    struct group_made *made;

    /* Other hierarchies are of version 1. The kernel makes one group at a time. */
    if (!count || READ(0, root, hierarchy_id))
        return;
    row = *count % GROUP_ROOM;
    made = groups_made.lookup(&row);
    if (!made)
        return;
    made->id = READ(0, node, id);
    bpf_probe_read_kernel_str(made->path, sizeof(made->path), (void *)ARG(1));
    __sync_fetch_and_add(count, 1);
}
#endif
