// SPDX-License-Identifier: Apache-2.0
// Writes rows of bytes as lines of text. formats/lines/native.py calls it without Python's lock.
//
// Most of a line equals the line of an earlier row, if possible of the same connection. Only the
// cells whose bytes differ are formatted again; the text between them is copied.
//
//   earlier row   | 17 | 4 | 10.0.0.1 | 28960 |     its line   17,4,10.0.0.1,28960
//   this row      | 18 | 4 | 10.0.0.1 | 28970 |     the first and the last cell differ
//   this line     18 + ",4,10.0.0.1," of the earlier line + 28970
//
// Rows come from files with any content. Whatever a row holds, no byte outside of the buffers that
// the caller passes is read or written.
#include "column.h"

// The version of these functions and their arguments; native.py expects the same number.
EXPORT int lines_version(void) {
    return 3;
}

EXPORT struct lines *lines_new(void) {
    return calloc(1, sizeof(struct lines));
}

EXPORT void lines_free(struct lines *lines) {
    for (uint32_t place = 0; place < lines->plan_count; place++)
        free_plan(&lines->plans[place]);
    for (uint32_t place = 0; place < lines->table_count; place++)
        empty_table(&lines->tables[place]);
    free(lines->plans);
    free(lines->tables);
    free(lines);
}

// Adds a table of texts for values of key_size bytes. Returns its number; -1: out of memory.
EXPORT int lines_table(struct lines *lines, uint32_t key_size) {
    struct table *tables =
        realloc(lines->tables, (lines->table_count + 1ULL) * sizeof(*lines->tables));
    if (!tables)
        return -1;
    lines->tables = tables;
    tables[lines->table_count] = (struct table){.key_size = key_size};
    return (int)lines->table_count++;
}

// Adds the text of a value. Returns 0; -1: out of memory.
EXPORT int lines_text(struct lines *lines, uint32_t table, const uint8_t *key, const char *text,
                      uint32_t size) {
    return table < lines->table_count && add_text(&lines->tables[table], key, text, size) ? 0 : -1;
}

// Removes all texts of a table.
EXPORT void lines_forget(struct lines *lines, uint32_t table) {
    if (table < lines->table_count)
        empty_table(&lines->tables[table]);
}

// Adds a plan: how to write a row of row_size bytes as a line. texts: the text before each cell and
// after the last cell, concatenated. keys: (offset, size) of the bytes that identify a connection;
// their hash chooses one of 2^slot_bits slots. Returns the plan's number; -1: the plan is invalid;
// -2: out of memory.
EXPORT int lines_plan(struct lines *lines, uint32_t row_size, uint32_t count,
                      const struct cell_spec *cells, const char *texts, uint32_t texts_size,
                      uint32_t key_count, const uint32_t *keys, uint32_t slot_bits) {
    uint64_t before = 0;
    if (count > CELLS_MAX || texts_size > BYTES_MAX || row_size > BYTES_MAX ||
        slot_bits > SLOT_BITS_MAX || key_count > KEYS_MAX || lines->plan_count >= PLANS_MAX)
        return -1;
    for (uint32_t place = 0; place < count; place++) {
        before += cells[place].before;
        if (!is_valid(lines, &cells[place], row_size))
            return -1;
    }
    if (before > texts_size)
        return -1;
    struct plan plan = {.size = row_size,
                        .count = count,
                        .slot_bits = slot_bits,
                        .blank_size = texts_size,
                        .longest = texts_size - before};
    for (uint32_t place = 0; place < key_count; place++) {
        const uint32_t *key = keys + 2 * place;
        if (row_size < 8 || key[1] > 8 || (uint64_t)key[0] + key[1] > row_size)
            return -1;
        plan.key[plan.keys++] = find_key(key[0], key[1], row_size);
    }
    struct plan *plans = realloc(lines->plans, (lines->plan_count + 1ULL) * sizeof(*plans));
    if (plans)
        lines->plans = plans;
    if (!plans || !make_plan(&plan, cells, texts)) {
        free_plan(&plan);
        return -2;
    }
    plans[lines->plan_count] = plan;
    return (int)lines->plan_count++;
}

static inline uint64_t load_amount(const struct cell *cell, const uint8_t *row) {
    return load_little(row + cell->at) << cell->shift >> cell->lead;
}

static inline uint64_t load_integer(const struct cell *cell, const uint8_t *row) {
    if (!cell->is_plain) {
        uint64_t value =
            load_bytes(row + cell->spec.offset, cell->spec.size, (enum order)cell->spec.order);
        unsigned lead = 8 * (8 - cell->spec.size);
        return cell->spec.is_signed ? (uint64_t)((int64_t)(value << lead) >> lead) : value;
    }
    uint64_t little = load_little(row + cell->at), big = __builtin_bswap64(little);
    uint64_t value = (cell->spec.order == BIG ? big : little) << cell->shift;
    uint64_t extended = (uint64_t)((int64_t)value >> cell->lead);
    return cell->spec.is_signed ? extended : value >> cell->lead;
}

// Whether a number and that of an earlier row differ at most in their last four digits; sets
// `four` to these digits of the row.
static inline bool find_last_four(const struct cell *cell, const uint8_t *row,
                                  const uint8_t *earlier, uint32_t *four) {
    if (!cell->is_amount)
        return false;
    uint64_t value = load_amount(cell, row), front = value / 10000;
    uint64_t before = load_amount(cell, earlier);
    if (cell->spec.has_none && (value == cell->spec.none || before == cell->spec.none))
        return false;
    *four = (uint32_t)(value - 10000 * front);
    return front && before / 10000 == front;
}

// Writes the value of a cell. Returns NULL if the table has no text for it.
static inline char *put_value(const struct lines *lines, const struct cell *cell,
                              const uint8_t *row, const int64_t *side, char *to) {
    const struct cell_spec *spec = &cell->spec;
    if (spec->has_none && load_integer(cell, row) == spec->none) {
        memcpy(to, spec->null, sizeof(spec->null));
        return to + spec->null_size;
    }
    if (cell->is_amount)
        return put_number(to, load_amount(cell, row));
    if (spec->kind == HEX)
        return put_hex(to, row + spec->offset, spec->size);
    if (spec->kind == TEXT) {
        uint32_t size;
        const char *text = find_text(&lines->tables[spec->table], row + spec->offset, &size);
        if (!text)
            return NULL;
        copy(to, text, size);
        return to + size;
    }
    uint64_t value;
    if (spec->source == INTEGER)
        value = load_integer(cell, row);
    else if (spec->source == SIDE)
        value = (uint64_t)*side;
    else
        value = load_timeval(row + spec->offset, spec->size, (enum order)spec->order);
    if (spec->kind == NUMBER) {
        value *= spec->factor;
        if (spec->is_signed)
            to = put_sign(to, &value);
        return put_number(to, value);
    }
    value -= spec->zero;
    if (spec->kind == UTC)
        return put_utc(to, value, spec->digits, (char)spec->between);
    return put_seconds(to, value, spec->digits);
}

static inline struct slot *choose_slot(const struct plan *plan, const uint8_t *row) {
    uint64_t hash = 0, word;
    for (uint32_t place = 0; place < plan->keys; place++) {
        memcpy(&word, row + plan->key[place].at, sizeof(word));
        hash = (hash ^ (word & plan->key[place].mask)) * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 32;
    }
    return &plan->slots[hash & ((1ULL << plan->slot_bits) - 1)];
}

// Compares the four parts of a block; the bits of those that differ.
static inline uint32_t compare_block(const uint8_t *one, const uint8_t *other) {
    uint32_t parts = 0;
    for (uint32_t part = 0; part < 4; part++)
        parts |= (uint32_t)(memcmp(one + 4 * part, other + 4 * part, 4) != 0) << part;
    return parts;
}

// The cells of a group of 64 that may differ between two rows, as bits.
static inline uint64_t find_changed(const struct plan *plan, uint32_t group, const uint8_t *row,
                                    const uint8_t *earlier) {
    uint32_t left = plan->count - 64 * group;
    if (!earlier)
        return left < 64 ? (1ULL << left) - 1 : ~0ULL;
    uint64_t changed = plan->always[group];
    const struct block *end = plan->blocks + plan->ends_of_blocks[group];
    const struct block *block = plan->blocks + (group ? plan->ends_of_blocks[group - 1] : 0);
    for (; block < end; block++)
        changed |= block->cells[compare_block(row + block->at, earlier + block->at)];
    return changed;
}

static inline uint32_t *ends_of(const struct plan *plan, const struct slot *slot) {
    return plan->ends + (size_t)(slot - plan->slots) * (plan->count + 1ULL);
}

// Starts a slot with the last row's line, or with the line without values.
static void begin_slot(const struct plan *plan, struct slot *slot, uint32_t *ends) {
    const uint32_t *from = plan->blank_ends;
    *slot = (struct slot){NULL, plan->blank, plan->blank_size};
    if (plan->latest) {
        *slot = *plan->latest;
        from = ends_of(plan, plan->latest);
    }
    memcpy(ends, from, (plan->count + 1ULL) * sizeof(*ends));
}

static inline void shift_ends(uint32_t *ends, uint32_t from, uint32_t to, uint32_t by) {
    for (uint32_t place = from; place <= to; place++)
        ends[place] += by;
}

// Writes the line of a row. Returns NULL if the text of the cell `missing` is not known.
//
// Before the value of a cell that changed, the earlier line is copied from `copied` to `begin`:
//
//   earlier line   17,4,10.0.0.1,28960     cells end at ends[] - by
//                    ^           ^    ^
//               copied       begin  end
//   this line      1800,4,10.0.0.1,28970   cells end at ends[]; here by = 2
static char *put_line(const struct lines *lines, struct plan *plan, const uint8_t *row,
                      const int64_t *const *sides, uint64_t number, char *const line,
                      uint64_t *missing) {
    struct slot *slot = choose_slot(plan, row);
    uint32_t *ends = ends_of(plan, slot);
    if (!slot->row)
        begin_slot(plan, slot, ends);
    plan->latest = slot;
    const uint8_t *earlier = slot->row;
    const char *from = slot->line;
    char *to = line;
    uint32_t next = 0;   // the cell after the last one that was formatted
    uint32_t copied = 0; // bytes of the earlier line that are done
    uint32_t by = 0;     // how much longer this line is up to here, modulo 2^32
    for (uint32_t group = 0; group < plan->groups; group++) {
        uint32_t limit = group + 1 < plan->groups ? 64 * (group + 1) : plan->count;
        uint64_t changed = find_changed(plan, group, row, earlier);
        if (group)
            shift_ends(ends, 64 * group + 1, limit, by);
        for (; changed; changed &= changed - 1) {
            uint32_t place = 64 * group + (uint32_t)__builtin_ctzll(changed);
            const struct cell *cell = &plan->cells[place];
            // The value's place in the earlier line.
            uint32_t begin = (next < place ? ends[place] - by : copied) + cell->spec.before;
            uint32_t end = ends[place + 1] - by, four;
            bool is_alike = earlier && end - begin > 4 && find_last_four(cell, row, earlier, &four);
            uint32_t kept = (is_alike ? end - 4 : begin) - copied;
            copy(to, from + copied, kept);
            to += kept;
            copied = end;
            next = place + 1;
            if (is_alike) {
                to = put_four(to, four);
                continue;
            }
            const int64_t *side =
                cell->spec.source == SIDE ? &sides[cell->spec.offset][number] : NULL;
            to = put_value(lines, cell, row, side, to);
            if (!to) {
                *missing = place;
                return NULL;
            }
            uint32_t longer = (uint32_t)(to - line) - ends[place + 1];
            if (longer) {
                shift_ends(ends, place + 1, limit, longer);
                by += longer;
            }
        }
    }
    copy(to, from + copied, slot->size - copied);
    to += slot->size - copied;
    *slot = (struct slot){row, line, (uint32_t)(to - line)};
    return to;
}

// The greatest length of a line of this plan.
static uint64_t longest_line(const struct lines *lines, const struct plan *plan) {
    uint64_t size = plan->longest;
    for (uint32_t place = 0; place < plan->count; place++)
        if (plan->cells[place].spec.kind == TEXT)
            size += lines->tables[plan->cells[place].spec.table].longest;
    return size;
}

// Writes the lines of `count` rows, from row done[0] on, into `room` bytes at `out`. The rows are
// in `size` bytes of data. offsets: the offset of each row; NULL: the rows are contiguous and all
// of plan 0. plans: the plan of each row; NULL: all of plan 0. sides: arrays of `count` numbers.
//
// Sets done[0] to the next row and done[1] to the bytes written; done[2]: for TEXT_IS_MISSING the
// cell, for OUT_IS_FULL the room that one more line may need.
EXPORT int lines_write(struct lines *lines, const uint8_t *data, uint64_t size, uint64_t count,
                       const int64_t *offsets, const uint16_t *plans, const int64_t *const *sides,
                       uint32_t side_count, char *out, uint64_t room, uint64_t done[3]) {
    char *to = out;
    uint64_t first = done[0], row;
    done[1] = done[2] = 0;
    for (uint32_t place = 0; place < lines->plan_count; place++) {
        struct plan *plan = &lines->plans[place];
        memset(plan->slots, 0, sizeof(*plan->slots) << plan->slot_bits);
        plan->latest = NULL;
        plan->line_room = longest_line(lines, plan) + SLACK;
    }
    for (row = first; row < count; row++) {
        uint32_t which = plans ? plans[row] : 0;
        if (which >= lines->plan_count)
            return BAD_INPUT;
        struct plan *plan = &lines->plans[which];
        uint64_t at = offsets ? (uint64_t)offsets[row] : row * plan->size;
        if (at > size || size - at < plan->size || plan->sides > side_count)
            return BAD_INPUT;
        done[0] = row;
        done[1] = (uint64_t)(to - out);
        if (room - done[1] < plan->line_room || plan->line_room > UINT32_MAX) {
            done[2] = plan->line_room;
            return OUT_IS_FULL;
        }
        char *end = put_line(lines, plan, data + at, sides, row, to, &done[2]);
        if (!end)
            return TEXT_IS_MISSING;
        to = end;
    }
    done[0] = row;
    done[1] = (uint64_t)(to - out);
    return ALL_DONE;
}
