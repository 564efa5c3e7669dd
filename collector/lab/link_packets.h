// SPDX-License-Identifier: Apache-2.0
// Packets of the test link: what they are, what marks them, what is lost on arrival.
#pragma once
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef int64_t s64;
typedef uint32_t u32;

// What a way does to packets. Times in ns, shares in millionths; 0: does not do it.
// clang-format off
#define KEYS(X)                                                                                    \
    X(rate) X(delay) X(jitter) X(jitter_reorders) X(loss) X(burst_enter) X(burst_leave)            \
    X(reorder) X(reorder_by) X(ack_loss) X(ack_thin) X(syn_loss) X(synack_loss) X(lose_from)       \
    X(lose_to) X(lose_every) X(lose_times) X(slot) X(held) X(down) X(queue) X(codel_target)        \
    X(codel_interval) X(ecn) X(ecn_above) X(mtu) X(icmp) X(police) X(police_burst)
// What becomes of a packet. The names are those of link.py, in its order.
#define FATES(X)                                                                                   \
    X(delivered) X(waiting) X(down) X(random) X(burst) X(chosen) X(syn) X(ack) X(thinned)          \
    X(too_big) X(policed) X(full) X(codel)
// clang-format on

#define MEMBER(name) s64 name;
struct keys {
    KEYS(MEMBER)
};
#define FATE(name) F_##name,
enum fate { FATES(FATE) FATE_COUNT };
#define NAME(name) #name,
static const char *const key_names[] = {KEYS(NAME)}, *const fate_names[] = {FATES(NAME)};
enum { KEY_COUNT = sizeof(struct keys) / sizeof(s64), MOST = 1 << 16, LOG_MOST = 4 << 20 };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

// A line of the trace; link.py reads it.
struct note {
    u64 in_ns, out_ns; // out_ns: when it was written, or dropped
    u32 size, queue, seq, data;
    uint8_t way, fate, flags, marked;
    u32 pad;
};

struct packet {
    struct packet *next;
    u64 in_ns, out_ns, order;
    u32 note, size;
    unsigned char bytes[];
};

struct chosen {
    u32 seq, times;
};

struct way {
    struct keys p;
    int in, out, number;
    struct packet *head, *tail, *sending;
    struct packet **heap;
    u32 heap_count, heap_room, first_seq;
    u64 free_at, slot_at, last_out, police_at, above_since, codel_next;
    s64 queued, budget;
    double tokens;
    int in_burst, codel_drops;
    u32 codel_count;
    struct chosen chosen[64];
    u64 chosen_count, fates[FATE_COUNT], fate_bytes, packets, bytes, marks, queue_most, late_most,
        late_count;
};

static struct note *notes;
static u32 note_count, note_room;
static u64 order, random_state;

static u64 clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static u64 chance(void) // xorshift
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static int happens(s64 millionths) {
    return millionths > 0 && (s64)(chance() % 1000000) < millionths;
}

// Packets

struct seen {
    u32 seq, data;
    uint8_t flags;
    int tcp, sack_free;
};

static u32 get32(const unsigned char *at) {
    return (u32)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static struct seen look(const unsigned char *b, u32 size) {
    struct seen s = {0};
    u32 head = b[0] >> 4 == 4 ? (b[0] & 15) * 4u : 40;
    if (b[b[0] >> 4 == 4 ? 9 : 6] != 6 || size < head + 20)
        return s;
    const unsigned char *t = b + head;
    s.tcp = 1;
    s.seq = get32(t + 4);
    s.flags = t[13];
    s.data = size - head - (t[12] >> 4) * 4u;
    s.sack_free = t[12] >> 4 <= 8;
    return s;
}

static int is_pure_ack(const struct seen *s) {
    return s->tcp && !s->data && (s->flags & (SYN | FIN | RST | ACK)) == ACK;
}

static int sum16(const unsigned char *at, u32 size) {
    u32 sum = 0;
    for (u32 i = 0; i < size; i += 2)
        sum += at[i] << 8 | (i + 1 < size ? at[i + 1] : 0);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~((sum & 0xffff) + (sum >> 16)) & 0xffff;
}

static int mark(struct way *w, struct packet *p) {
    unsigned char *b = p->bytes;
    int four = b[0] >> 4 == 4;
    int ecn = four ? b[1] & 3 : b[1] >> 4 & 3;
    if (!ecn)
        return 0;
    if (four) {
        u32 head = (b[0] & 15) * 4u;
        b[1] |= 3;
        b[10] = b[11] = 0;
        int sum = sum16(b, head);
        b[10] = sum >> 8;
        b[11] = sum;
    } else {
        b[1] |= 0x30;
    }
    w->marks++;
    if (p->note < LOG_MOST)
        notes[p->note].marked = 1;
    return 1;
}

// "Fragmentation needed" to the sender, in the name of the peer (IPv4)
static void say_too_big(struct way *w, const unsigned char *b) {
    unsigned char m[56] = {0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1};
    if (b[0] >> 4 != 4 || (b[0] & 15) != 5)
        return;
    memcpy(m + 12, b + 16, 4);
    memcpy(m + 16, b + 12, 4);
    int sum = sum16(m, 20);
    m[10] = sum >> 8, m[11] = sum;
    m[20] = 3, m[21] = 4;
    m[26] = w->p.mtu >> 8, m[27] = w->p.mtu;
    memcpy(m + 28, b, 28);
    sum = sum16(m + 20, 36);
    m[22] = sum >> 8, m[23] = sum;
    if (write(w->in, m, sizeof(m)) < 0 && errno != EAGAIN)
        die("write");
}

static u32 note(struct way *w, const struct seen *s, u32 size, u64 now) {
    if (note_count == note_room && note_room < LOG_MOST) {
        note_room = note_room ? 2 * note_room : 1 << 16;
        notes = realloc(notes, note_room * sizeof(*notes));
        if (!notes)
            die("realloc");
    }
    if (note_count == LOG_MOST)
        return LOG_MOST;
    notes[note_count] = (struct note){.in_ns = now,
                                      .size = size,
                                      .queue = w->queued,
                                      .seq = s->tcp ? s->seq - w->first_seq - !(s->flags & SYN) : 0,
                                      .data = s->data,
                                      .way = w->number,
                                      .fate = F_waiting,
                                      .flags = s->flags};
    return note_count++;
}

static void end(struct way *w, u32 number, enum fate fate, u64 now) {
    w->fates[fate]++;
    if (number < LOG_MOST)
        notes[number].fate = fate, notes[number].out_ns = now;
}

static void discard(struct way *w, struct packet *p, enum fate fate, u64 now) {
    end(w, p->note, fate, now);
    free(p);
}

// Losses on arrival

// Bytes [lose_from, lose_to) of each lose_every are lost, so often each segment
static int is_chosen(struct way *w, const struct seen *s) {
    if (!w->p.lose_to || !s->data)
        return 0;
    s64 low = s->seq - w->first_seq - 1, base = 0;
    if (w->p.lose_every)
        base = low / w->p.lose_every * w->p.lose_every;
    int hit = low + s->data > base + w->p.lose_from && low < base + w->p.lose_to;
    if (w->p.lose_every) // the segment may reach into the next
        hit |= low + s->data > base + w->p.lose_every + w->p.lose_from;
    if (!hit)
        return 0;
    for (int i = 0; i < 64; i++)
        if (w->chosen[i].times && w->chosen[i].seq == s->seq)
            return w->chosen[i].times++ < (u32)w->p.lose_times;
    w->chosen[w->chosen_count++ % 64] = (struct chosen){s->seq, 1};
    return w->p.lose_times > 0;
}

static int is_policed(struct way *w, u32 size, u64 now) {
    if (!w->p.police)
        return 0;
    w->tokens = w->police_at ? w->tokens + (now - w->police_at) * (w->p.police / 8e9) : 1e18;
    w->tokens = fmin(w->tokens, w->p.police_burst);
    w->police_at = now;
    if (w->tokens < size)
        return 1;
    w->tokens -= size;
    return 0;
}

static enum fate judge(struct way *w, const struct seen *s, const unsigned char *bytes, u32 size,
                       u64 now) {
    if (w->p.down)
        return F_down;
    if (w->p.mtu && size > w->p.mtu) {
        if (w->p.icmp)
            say_too_big(w, bytes);
        return F_too_big;
    }
    s64 *first = s->flags & ACK ? &w->p.synack_loss : &w->p.syn_loss;
    if (s->tcp && s->flags & SYN && *first > 0)
        return (*first)--, F_syn;
    if (is_pure_ack(s) && happens(w->p.ack_loss))
        return F_ack;
    if (is_chosen(w, s))
        return F_chosen;
    if (w->p.burst_enter) {
        w->in_burst = w->in_burst ? !happens(w->p.burst_leave) : happens(w->p.burst_enter);
        if (w->in_burst)
            return F_burst;
    }
    if (happens(w->p.loss))
        return F_random;
    if (is_policed(w, size, now))
        return F_policed;
    if (w->p.queue && w->queued + size > w->p.queue)
        return F_full;
    return F_delivered;
}
