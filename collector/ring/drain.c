/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of records from the rings' memory to the bytes of the file: for ring/library.py.
 *
 *     ring             queue of a CPU                    piece
 *     rows  push() ->  sorted by serial  up_to(time) ->  merge() of all CPUs by time: numbers,
 * times settle()   rows stay in the                  of day, LOSS entries; or copy() of a CPU ring
 * until then
 *
 * One thread calls the functions order_...() of an order, without Python's lock. What must hold of
 * a record is checked twice, when it is pushed and when it is taken: its serial is above those that
 * are decided, its key is none below; and the ring's row still has that serial.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION    3
#define BUSY       (UINT32_C(1) << 31) /* BPF_RINGBUF_BUSY_BIT of linux/bpf.h */
#define NO_CPU     0xFFFF
#define POINTS     256
#define LOSS       227
#define WORDS_AT   24
#define TIME_AT    4
#define NS_PER_US  1000
#define US_PER_S   1000000
#define NO_MEMORY  (-1)
#define CHANGED    (-2) /* a record is not what it was when it was pushed */
#define LEAST_ROOM 16
#define AHEAD      2 /* rows of a CPU that are on their way to the cache; with many CPUs it helps */
#define LINE       64

#define EXPORT __attribute__((visibility("default")))

/* Rows that were copied out of the rings: freed with the last of them. */
struct block {
    int64_t left;
    uint8_t rows[];
};

struct waiting {
    const uint8_t *row;
    struct block *block; /* NULL: the row is in the ring's memory */
    int64_t serial, key; /* key: the highest time up to this serial */
};

/* A CPU's records that wait. The first members are those of Cpu in sequencer.py. */
struct cpu {
    int64_t number;
    int64_t seen;    /* the highest serial so far: the next are unwrapped by it */
    int64_t decided; /* serials up to this one are taken, or counted as lost */
    int64_t key;     /* of the last that was taken */
    int64_t pushed, waiting, ready, lost;
    int64_t first; /* serial of the first that waits, after order_push() */
    int64_t late[POINTS];

    struct waiting *queue;
    int64_t head, tail, room; /* waiting: from head, before tail */
    int64_t fresh;            /* those before it are in blocks */
    struct {
        int64_t turn, at;
    } counted[POINTS]; /* where the counts of this piece have the point */
};

struct order {
    int64_t entry, serial_at, time_at, seq_at; /* bytes; of columns: -1 without it */
    int64_t watermark;
    int64_t count;
    struct cpu **cpus, **heap;
    int64_t turn; /* pieces so far */
};

/* Records of a piece by CPU and location. */
struct place {
    int64_t cpu, location, count;
};

struct piece {
    uint8_t *entries;
    uint16_t *cpus;
    struct place *places;
    int64_t room;       /* entries */
    int64_t seq;        /* the next number */
    int64_t offset;     /* time of day less monotonic time */
    int64_t first_time; /* of the first entry */
    int64_t counted, records;
};

static uint32_t load32(const uint8_t *at) {
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static int64_t load64(const uint8_t *at) {
    int64_t value;

    memcpy(&value, at, sizeof(value));
    return value;
}

static void store32(uint8_t *at, uint32_t value) {
    memcpy(at, &value, sizeof(value));
}

static void store64(uint8_t *at, int64_t value) {
    memcpy(at, &value, sizeof(value));
}

EXPORT int ring_version(void) {
    return VERSION;
}

/* What others stored before this word is visible afterwards. */
EXPORT uint64_t ring_load(const _Atomic uint64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

/* After all that was read before, and before all that is read afterwards. */
EXPORT void ring_store(_Atomic uint64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Moves the position, in bytes, behind the committed records of a BPF ring: these are visible
 * afterwards. Returns whether it stops at a record that a program builds.
 */
EXPORT int ring_advance(const _Atomic uint64_t *producer, const unsigned char *rows, uint64_t size,
                        uint64_t row, uint64_t *position) {
    uint64_t end = ring_load(producer), at = *position;

    for (; at < end; at += row) {
        const _Atomic uint32_t *length = (const _Atomic uint32_t *)(rows + (at & (size - 1)));

        if (atomic_load_explicit(length, memory_order_acquire) & BUSY)
            break;
    }
    *position = at;
    return at < end;
}

EXPORT struct order *order_new(int64_t entry, int64_t serial_at, int64_t time_at, int64_t seq_at) {
    struct order *order = calloc(1, sizeof(*order));

    if (order) {
        order->entry = entry;
        order->serial_at = serial_at;
        order->time_at = time_at;
        order->seq_at = seq_at;
    }
    return order;
}

static void release(struct block *block) {
    if (block && !--block->left)
        free(block);
}

EXPORT void order_free(struct order *order) {
    for (int64_t n = 0; n < order->count; n++) {
        struct cpu *cpu = order->cpus[n];

        for (int64_t at = cpu->head; at < cpu->tail; at++)
            release(cpu->queue[at].block);
        free(cpu->queue);
        free(cpu);
    }
    free(order->cpus);
    free(order);
}

/* Adds a CPU; NULL: no memory. */
EXPORT struct cpu *order_add(struct order *order, int64_t number) {
    int64_t count = order->count + 1;
    struct cpu *cpu = calloc(1, sizeof(*cpu));
    struct cpu **cpus = realloc(order->cpus, 2 * count * sizeof(*cpus));

    if (cpus) {
        order->cpus = cpus;
        order->heap = cpus + count;
    }
    if (!cpu || !cpus) {
        free(cpu);
        return NULL;
    }
    cpu->number = number;
    return order->cpus[order->count++] = cpu;
}

static int64_t later(int64_t one, int64_t other) {
    return one > other ? one : other;
}

static int make_room(struct cpu *cpu, int64_t count) {
    int64_t waiting = cpu->tail - cpu->head;

    /* Less is moved than was taken. So the queue stays where the caches have it. */
    if (cpu->head > waiting) {
        memmove(cpu->queue, cpu->queue + cpu->head, waiting * sizeof(*cpu->queue));
        cpu->fresh = later(cpu->fresh - cpu->head, 0);
        cpu->head = 0;
        cpu->tail = waiting;
    }
    if (cpu->tail + count > cpu->room) {
        int64_t room = 2 * (cpu->tail + count) + LEAST_ROOM;
        struct waiting *queue = realloc(cpu->queue, room * sizeof(*queue));

        if (!queue)
            return 0;
        cpu->queue = queue;
        cpu->room = room;
    }
    return 1;
}

/* Its place in the queue, from the end: a record comes before a lower serial where programs nest.
 * Returns 0 if its serial is decided, or there already.
 */
static int insert(struct cpu *cpu, const uint8_t *row, int64_t serial, int64_t time) {
    struct waiting *queue = cpu->queue;
    int64_t at = cpu->tail;

    if (serial <= cpu->decided)
        return 0;
    while (at > cpu->head && queue[at - 1].serial > serial)
        at--;
    int first = at == cpu->head;
    if (!first && queue[at - 1].serial == serial)
        return 0;
    if (at < cpu->tail) {
        memmove(queue + at + 1, queue + at, (cpu->tail - at) * sizeof(*queue));
        cpu->fresh = cpu->fresh < at ? cpu->fresh : at;
    }
    int64_t key = later(first ? cpu->key : queue[at - 1].key, time);
    queue[at] = (struct waiting){row, NULL, serial, key};
    cpu->tail++;
    while (++at < cpu->tail) {
        key = later(key, load64(queue[at].row + TIME_AT));
        if (key == queue[at].key)
            break;
        queue[at].key = key;
    }
    return 1;
}

/* Adds rows of one CPU, of which the memory is read until order_settle(). Returns how many are
 * late or twice: cpu->late has their points.
 */
EXPORT int64_t order_push(struct order *order, struct cpu *cpu, const uint8_t *row, int64_t count,
                          int64_t stride) {
    int64_t base = cpu->seen, late = 0;

    if (!make_room(cpu, count))
        return NO_MEMORY;
    for (int64_t n = 0; n < count; n++, row += stride) {
        int64_t serial;

        if (order->serial_at >= 0)
            serial = load64(row + order->serial_at);
        else
            serial = base + (int32_t)(load32(row) - (uint32_t)base);
        cpu->seen = later(cpu->seen, serial);
        if (!insert(cpu, row, serial, load64(row + TIME_AT))) {
            uint32_t point = load32(row + 16);

            cpu->late[point < POINTS ? point : POINTS - 1]++;
            late++;
        }
    }
    cpu->pushed += count;
    cpu->waiting += count - late;
    cpu->first = cpu->waiting ? cpu->queue[cpu->head].serial : 0;
    return late;
}

static int64_t settle(const struct order *order, struct cpu *cpu) {
    int64_t from = later(cpu->fresh, cpu->head), count = cpu->tail - from;
    struct block *block = count ? malloc(sizeof(*block) + count * order->entry) : NULL;

    if (!block)
        return count ? NO_MEMORY : 0;
    block->left = 0;
    for (int64_t at = from; at < cpu->tail; at++) {
        struct waiting *one = &cpu->queue[at];

        if (one->block)
            continue;
        one->row = memcpy(block->rows + block->left++ * order->entry, one->row, order->entry);
        one->block = block;
    }
    if (!block->left)
        free(block);
    cpu->fresh = cpu->tail;
    return 0;
}

/* Copies what waits out of the rings. */
EXPORT int64_t order_settle(struct order *order) {
    int64_t failed = 0;

    for (int64_t n = 0; n < order->count && !failed; n++)
        failed = settle(order, order->cpus[n]);
    return failed;
}

/* Where the first record of a CPU is whose key is above this one. */
static int64_t first_above(const struct cpu *cpu, int64_t key) {
    int64_t low = cpu->head, high = cpu->tail;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (cpu->queue[middle].key > key)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The lowest key that so many records have, or a lower one. */
static int64_t key_of(const struct order *order, int64_t count) {
    int64_t low = 0, high = INT64_MAX;

    while (low < high) {
        int64_t middle = low + (high - low) / 2, below = 0;

        for (int64_t n = 0; n < order->count; n++)
            below += first_above(order->cpus[n], middle) - order->cpus[n]->head;
        if (below >= count)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Decides up to which time records are taken next: the watermark; where more than `most` wait, that
 * of the oldest half of these at least. Returns how many entries they make with LOSS entries.
 */
EXPORT int64_t order_up_to(struct order *order, int64_t watermark, int64_t most) {
    int64_t entries = 0, waiting = 0;

    for (int64_t n = 0; n < order->count; n++)
        waiting += order->cpus[n]->waiting;
    if (waiting > most)
        watermark = later(watermark, key_of(order, waiting - most + most / 2 + 1));
    order->watermark = watermark;
    for (int64_t n = 0; n < order->count; n++) {
        struct cpu *cpu = order->cpus[n];
        int64_t stop = first_above(cpu, watermark), before = cpu->decided;

        cpu->ready = stop - cpu->head;
        entries += cpu->ready;
        if (!cpu->ready || cpu->queue[stop - 1].serial - before == cpu->ready)
            continue;
        for (int64_t at = cpu->head; at < stop; at++) {
            entries += cpu->queue[at].serial != before + 1;
            before = cpu->queue[at].serial;
        }
    }
    return entries;
}

/* Whether a record is what it was when it was pushed. */
static int is_sound(const struct order *order, const struct cpu *cpu, const struct waiting *one) {
    int64_t now = order->serial_at < 0 ? load32(one->row) : load64(one->row + order->serial_at);

    return one->serial > cpu->decided && one->key >= cpu->key && one->key <= order->watermark &&
           now == (order->serial_at < 0 ? (uint32_t)one->serial : one->serial);
}

static void take(struct cpu *cpu) {
    struct waiting *one = &cpu->queue[cpu->head++];

    cpu->lost += one->serial - cpu->decided - 1;
    cpu->decided = one->serial;
    cpu->key = one->key;
    cpu->waiting--;
    cpu->ready--;
    release(one->block);
}

static int is_before(const struct cpu *one, const struct cpu *other) {
    int64_t key = one->queue[one->head].key, than = other->queue[other->head].key;

    return key < than || (key == than && one->number < other->number);
}

/* Moves one of a heap down to its place. */
static void sift(struct cpu **heap, int64_t at, int64_t count) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && is_before(heap[child + 1], heap[child]))
            child++;
        if (!is_before(heap[child], heap[at]))
            return;
        struct cpu *up = heap[child];

        heap[child] = heap[at];
        heap[at] = up;
    }
}

/* The CPUs that have records to take. */
static int64_t make_heap(const struct order *order) {
    int64_t count = 0;

    for (int64_t n = 0; n < order->count; n++)
        if (order->cpus[n]->ready)
            order->heap[count++] = order->cpus[n];
    for (int64_t n = count / 2; n--;)
        sift(order->heap, n, count);
    return count;
}

static void stamp(const struct order *order, uint8_t *entry, int64_t time, struct piece *piece) {
    int64_t us = (int64_t)((uint64_t)time + (uint64_t)piece->offset) / NS_PER_US;

    store32(entry, piece->seq);
    store32(entry + 4, us / US_PER_S);
    store32(entry + 8, us % US_PER_S);
    if (order->seq_at >= 0)
        store64(entry + order->seq_at, piece->seq);
    piece->seq++;
}

static void put_loss(const struct order *order, uint8_t *entry, const struct cpu *cpu, int64_t lost,
                     int64_t time, struct piece *piece) {
    memset(entry, 0, order->entry);
    store32(entry + 12, cpu->number);
    store32(entry + 16, LOSS);
    store32(entry + WORDS_AT, cpu->decided + 1);
    store32(entry + WORDS_AT + 4, (uint64_t)(cpu->decided + 1) >> 32);
    store32(entry + WORDS_AT + 8, lost);
    store32(entry + WORDS_AT + 12, (uint64_t)lost >> 32);
    if (order->time_at >= 0)
        store64(entry + order->time_at, time);
    piece->seq += lost;
    stamp(order, entry, time, piece);
}

static void count(struct order *order, struct cpu *cpu, uint32_t location, struct piece *piece) {
    uint32_t point = location < POINTS ? location : POINTS - 1;

    if (cpu->counted[point].turn != order->turn) {
        cpu->counted[point].turn = order->turn;
        cpu->counted[point].at = piece->counted;
        piece->places[piece->counted++] = (struct place){cpu->number, point, 0};
    }
    piece->places[cpu->counted[point].at].count++;
}

/* Fills a piece with the next records of all CPUs. Returns its entries, also those of LOSS. */
EXPORT int64_t order_merge(struct order *order, struct piece *piece) {
    int64_t left = make_heap(order), made = 0;

    order->turn++;
    while (left) {
        struct cpu *cpu = order->heap[0], *rival = left > 1 ? order->heap[1] : NULL;

        if (left > 2 && is_before(order->heap[2], rival))
            rival = order->heap[2];
        do {
            const struct waiting *one = &cpu->queue[cpu->head];
            int64_t lost = one->serial - cpu->decided - 1, time = load64(one->row + TIME_AT);
            uint8_t *entry = piece->entries + made * order->entry;

            if (made + 1 + (lost > 0) > piece->room)
                return made;
            if (!is_sound(order, cpu, one))
                return CHANGED;
            if (!made)
                piece->first_time = time;
            if (lost) {
                put_loss(order, entry, cpu, lost, time, piece);
                piece->cpus[made++] = NO_CPU;
                entry += order->entry;
            }
            memcpy(entry, one->row, order->entry);
            stamp(order, entry, time, piece);
            count(order, cpu, load32(entry + 16), piece);
            piece->cpus[made++] = cpu->number;
            piece->records++;
            take(cpu);
            if (cpu->ready > AHEAD)
                for (int64_t at = 0; at < order->entry; at += LINE)
                    __builtin_prefetch(cpu->queue[cpu->head + AHEAD].row + at);
        } while (cpu->ready && (!rival || is_before(cpu, rival)));
        if (!cpu->ready)
            order->heap[0] = order->heap[--left];
        sift(order->heap, 0, left);
    }
    return made;
}

/* Copies the next records of one CPU, as they are. Returns how many. */
EXPORT int64_t order_copy(struct order *order, struct cpu *cpu, uint8_t *entries, int64_t room,
                          int64_t *serials, int64_t *keys) {
    int64_t made = 0;

    for (; made < room && cpu->ready; made++) {
        const struct waiting *one = &cpu->queue[cpu->head];

        if (!is_sound(order, cpu, one))
            return CHANGED;
        memcpy(entries + made * order->entry, one->row, order->entry);
        serials[made] = one->serial;
        keys[made] = one->key;
        take(cpu);
    }
    return made;
}
