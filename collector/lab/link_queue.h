// SPDX-License-Identifier: Apache-2.0
// The queue of a way of the test link, and the packets that have left it.
#pragma once
#include "link_packets.h"

// The queue, and CoDel (RFC 8289)

static struct packet *take(struct way *w) {
    struct packet *p = w->head;
    if (p && !(w->head = p->next))
        w->tail = NULL;
    return p;
}

static int is_too_long(struct way *w, const struct packet *p, u64 now) {
    if ((s64)(now - p->in_ns) < w->p.codel_target || w->queued <= 1500) {
        w->above_since = 0;
        return 0;
    }
    if (!w->above_since)
        w->above_since = now;
    return (s64)(now - w->above_since) >= w->p.codel_interval;
}

// The next packet to be sent at `now`, after what CoDel drops or marks
static struct packet *dequeue(struct way *w, u64 now) {
    struct packet *p;
    while ((p = take(w)) && w->p.codel_target) {
        if (now < p->in_ns)
            now = p->in_ns;
        if (!is_too_long(w, p, now)) {
            w->codel_drops = 0;
            return p;
        }
        if (!w->codel_drops) {
            int recent = now - w->codel_next < 16ull * w->p.codel_interval;
            w->codel_drops = 1;
            w->codel_count = recent && w->codel_count > 2 ? w->codel_count - 2 : 1;
            w->codel_next = now;
        } else if (now < w->codel_next) {
            return p;
        } else {
            w->codel_count++;
        }
        w->codel_next += w->p.codel_interval / sqrt(w->codel_count);
        if (w->p.ecn && mark(w, p))
            return p;
        w->queued -= p->size;
        discard(w, p, F_codel, now);
    }
    return p;
}

// Packets on their way, the next one to arrive first

static int before(const struct packet *a, const struct packet *b) {
    return a->out_ns < b->out_ns || (a->out_ns == b->out_ns && a->order < b->order);
}

static void push(struct way *w, struct packet *p) {
    if (w->heap_count == w->heap_room) {
        w->heap_room = w->heap_room ? 2 * w->heap_room : 1024;
        w->heap = realloc(w->heap, w->heap_room * sizeof(*w->heap));
        if (!w->heap)
            die("realloc");
    }
    u32 at = w->heap_count++;
    for (; at && before(p, w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = p;
}

static struct packet *pop(struct way *w) {
    struct packet *top = w->heap[0], *last = w->heap[--w->heap_count];
    u32 at = 0, child;
    while ((child = 2 * at + 1) < w->heap_count) {
        if (child + 1 < w->heap_count && before(w->heap[child + 1], w->heap[child]))
            child++;
        if (!before(w->heap[child], last))
            break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

static void depart(struct way *w, struct packet *p, u64 at) {
    w->queued -= p->size;
    p->out_ns = at + w->p.delay + (w->p.jitter ? chance() % w->p.jitter : 0);
    if (happens(w->p.reorder))
        p->out_ns += w->p.reorder_by;
    else if (!w->p.jitter_reorders && p->out_ns < w->last_out)
        p->out_ns = w->last_out;
    else
        w->last_out = p->out_ns;
    p->order = order++;
    push(w, p);
}

static void serve_slot(struct way *w, u64 now) {
    while (w->head) {
        if (!w->slot_at)
            w->slot_at = (now / w->p.slot + 1) * w->p.slot;
        if (w->slot_at > now)
            return;
        w->budget += w->p.rate ? w->p.rate * (w->p.slot / 8e9) : 1 << 30;
        struct packet *p;
        while (w->head && w->budget > 0 && (p = dequeue(w, w->slot_at))) {
            w->budget -= p->size;
            depart(w, p, w->slot_at);
        }
        w->slot_at = w->head ? w->slot_at + w->p.slot : 0;
    }
    if (w->budget > 0)
        w->budget = 0;
}

static void serve(struct way *w, u64 now) {
    if (w->p.held) {
        w->free_at = now;
        return;
    }
    for (;;) {
        if (w->sending) {
            if (w->free_at > now)
                return;
            depart(w, w->sending, w->free_at);
            w->sending = NULL;
        }
        if (w->p.slot) {
            serve_slot(w, now);
            return;
        }
        if (!(w->sending = dequeue(w, w->free_at)))
            return;
        if (w->free_at < w->sending->in_ns)
            w->free_at = w->sending->in_ns;
        if (w->p.rate)
            w->free_at += w->sending->size * 8e9 / w->p.rate;
    }
}

static void arrive(struct way *w, const unsigned char *bytes, u32 size, u64 now) {
    struct seen s = look(bytes, size);
    w->packets++;
    w->bytes += size;
    if (s.tcp && s.flags & SYN)
        w->first_seq = s.seq;
    u32 number = note(w, &s, size, now);
    enum fate fate = judge(w, &s, bytes, size, now);
    if (fate != F_delivered) {
        end(w, number, fate, now);
        return;
    }
    struct packet *p = malloc(sizeof(*p) + size), *old = w->tail;
    if (!p)
        die("malloc");
    *p = (struct packet){.in_ns = now, .note = number, .size = size};
    memcpy(p->bytes, bytes, size);
    if (w->p.ecn_above && w->queued > w->p.ecn_above)
        mark(w, p);
    struct seen before_it = old ? look(old->bytes, old->size) : s;
    if (w->p.ack_thin && old && is_pure_ack(&s) && s.sack_free && is_pure_ack(&before_it) &&
        before_it.sack_free) { // of one connection: a lab has one at a time
        struct packet **link = &w->head;
        while (*link != old)
            link = &(*link)->next;
        *link = p;
        w->queued -= old->size;
        discard(w, old, F_thinned, now);
    } else if (old) {
        old->next = p;
    } else {
        w->head = p;
    }
    w->tail = p;
    w->queued += size;
    if ((u64)w->queued > w->queue_most)
        w->queue_most = w->queued;
    serve(w, now);
}

static void deliver(struct way *w, u64 now) {
    while (w->heap_count && w->heap[0]->out_ns <= now) {
        struct packet *p = pop(w);
        if (write(w->out, p->bytes, p->size) < 0 && errno != EAGAIN && errno != EIO)
            die("write");
        u64 late = (now = clock_ns()) - p->out_ns;
        if (late > w->late_most)
            w->late_most = late;
        w->late_count += late > 300000;
        w->fate_bytes += p->size;
        discard(w, p, F_delivered, now);
    }
}
