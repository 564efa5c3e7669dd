// SPDX-License-Identifier: Apache-2.0
// A test link in user space: two tun devices, one in each of two network namespaces, and what the
// path between them does to packets. For kernels without netem; see link.py.
//
//   link NETNS_A NETNS_B DEVICE SEED
//
// Orders come on stdin, a line each: "set NS WAY key=value ..." (NS: CLOCK_MONOTONIC, 0: now; WAY:
// 0 from a to b, 1 back), "counters", "trace FILE". Each gets a line on stdout. It ends with stdin.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
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

struct change {
    u64 at;
    int way, key;
    s64 value;
};

static struct way ways[2];
static struct change changes[256];
static int change_count, timer, epoll;
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

// Orders

static void apply(const struct change *c) {
    ((s64 *)&ways[c->way].p)[c->key] = c->value;
}

static void set(char *text) {
    char *rest, *word, *at = strtok_r(text, " ", &rest), *way = strtok_r(NULL, " ", &rest);
    while (at && way && (word = strtok_r(NULL, " ", &rest))) {
        char *value = strchr(word, '=');
        struct change c = {.at = strtoull(at, NULL, 10), .way = *way == '1', .key = -1};
        if (value)
            *value++ = 0;
        for (int i = 0; i < KEY_COUNT; i++)
            if (value && !strcmp(key_names[i], word))
                c.key = i, c.value = strtoll(value, NULL, 10);
        if (c.key < 0 || change_count == 256) {
            printf("%s: refused\n", word);
            return;
        }
        if (c.at)
            changes[change_count++] = c;
        else
            apply(&c);
    }
    printf("ok\n");
}

static void tell(void) {
    printf("[");
    for (struct way *w = ways; w < ways + 2; w++) {
        printf("%s{\"packets\": %lu, \"bytes\": %lu, \"delivered_bytes\": %lu, \"marks\": %lu, "
               "\"queue_most\": %lu, \"queue\": %ld, \"late_most_ns\": %lu, \"late\": %lu",
               w == ways ? "" : ", ", w->packets, w->bytes, w->fate_bytes, w->marks, w->queue_most,
               w->queued, w->late_most, w->late_count);
        for (int i = 0; i < FATE_COUNT; i++)
            if (i != F_waiting)
                printf(", \"%s\": %lu", fate_names[i], w->fates[i]);
        printf("}");
    }
    printf("]\n");
}

static void obey(char *line) {
    if (!strncmp(line, "set ", 4)) {
        set(line + 4);
    } else if (!strncmp(line, "trace ", 6)) {
        FILE *file = fopen(line + 6, "we");
        if (!file || fwrite(notes, sizeof(*notes), note_count, file) != note_count || fclose(file))
            die(line + 6);
        printf("ok\n");
    } else {
        tell();
    }
    fflush(stdout);
}

static void hear(void) {
    static char text[1 << 14];
    static size_t used;
    ssize_t got = read(0, text + used, sizeof(text) - 1 - used);
    if (got <= 0)
        exit(0);
    text[used += got] = 0;
    char *line = text, *stop;
    for (; (stop = strchr(line, '\n')); line = stop + 1) {
        *stop = 0;
        obey(line);
    }
    used -= line - text;
    memmove(text, line, used + 1);
}

// The loop

static int open_tun(const char *netns, const char *device) {
    int space = open(netns, O_RDONLY | O_CLOEXEC), fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    if (fd < 0)
        die("/dev/net/tun");
    if (space < 0 || setns(space, CLONE_NEWNET))
        die(netns);
    strncpy(request.ifr_name, device, IFNAMSIZ - 1);
    close(fd); // a tun belongs to the namespace in which it was opened
    fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request))
        die("TUNSETIFF");
    close(space);
    return fd;
}

static void wake_at(u64 at) {
    struct itimerspec wanted = {.it_value = {at / 1000000000, at % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &wanted, NULL);
}

static void earlier(u64 *next, u64 at) {
    if (at < *next)
        *next = at;
}

static void step(void) {
    static unsigned char bytes[MOST];
    for (struct way *w = ways; w < ways + 2; w++) {
        ssize_t size;
        for (int i = 0; i < 64 && (size = read(w->in, bytes, MOST)) > 0; i++)
            if (size >= 20)
                arrive(w, bytes, size, clock_ns());
    }
    u64 now = clock_ns(), next = now + 1000000000;
    for (int i = 0; i < change_count;)
        if (changes[i].at <= now) {
            apply(&changes[i]);
            memmove(&changes[i], &changes[i + 1], (--change_count - i) * sizeof(*changes));
        } else {
            earlier(&next, changes[i++].at);
        }
    for (struct way *w = ways; w < ways + 2; w++) {
        serve(w, now);
        deliver(w, now);
        if (w->heap_count)
            earlier(&next, w->heap[0]->out_ns);
        if (w->sending && !w->p.held)
            earlier(&next, w->free_at);
        if (w->p.slot && w->head && w->slot_at && !w->p.held)
            earlier(&next, w->slot_at);
    }
    wake_at(next);
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        die("epoll_ctl");
}

int main(int count, char **words) {
    if (count != 5)
        return 2;
    int ends[2] = {open_tun(words[1], words[3]), open_tun(words[2], words[3])};
    random_state = strtoull(words[4], NULL, 10) * 2 + 88172645463325253ull;
    epoll = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    for (int i = 0; i < 2; i++) {
        ways[i].number = i;
        ways[i].in = ends[i];
        ways[i].out = ends[!i];
        watch(ends[i]);
    }
    watch(timer);
    watch(0);
    struct sched_param first = {.sched_priority = 10};
    sched_setscheduler(0, SCHED_FIFO, &first); // where that is refused, it is less exact
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[8];
        int got = epoll_wait(epoll, events, 8, -1);
        for (int i = 0; i < got; i++) {
            u64 ticks;
            if (events[i].data.fd == 0)
                hear();
            else if (events[i].data.fd == timer && read(timer, &ticks, 8) < 0 && errno != EAGAIN)
                die("timerfd");
        }
        step();
    }
}
