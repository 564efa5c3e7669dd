// SPDX-License-Identifier: Apache-2.0
// Plans: the cells of a line. They are checked, so that every cell is inside of its row.
#ifndef TCPKMON_PLAN_H
#define TCPKMON_PLAN_H

#include "table.h"

enum { SIDES_MAX = 16, PLANS_MAX = 1 << 16, CELLS_MAX = 1 << 16, KEYS_MAX = 4 };
enum { BYTES_MAX = 1 << 24, SLOT_BITS_MAX = 10 };
enum { BLOCK = 16, COMPARED_MAX = 64 }; // bytes; a larger cell is always formatted
enum kind { NUMBER, SECONDS, UTC, HEX, TEXT };
enum source { INTEGER, TIMEVAL, SIDE };

// A cell as native.py passes it.
struct cell_spec {
    uint64_t factor; // of a NUMBER
    uint64_t zero;   // subtracted from a time, ns
    uint64_t none;   // the NUMBER for which `null` is written, if has_none
    uint32_t offset; // in the row; of a SIDE: its index
    uint32_t size;
    uint32_t before; // length of the text in front of it
    uint32_t table;  // of a TEXT
    uint8_t kind, source, order, is_signed, digits, between, has_none, null_size;
    char null[8];
};

// Eight bytes of a row; those in the mask identify the connection.
struct key {
    uint32_t at;
    uint64_t mask;
};

// Sixteen bytes of a row, compared in four parts. cells[parts]: which of 64 cells may differ if
// these parts differ (bit 0 is the first part).
struct block {
    uint32_t at;
    uint64_t cells[16];
};

struct cell {
    struct cell_spec spec;
    uint32_t at;         // an integer is read as the 8 bytes from here on;
    uint8_t shift, lead; // << shift >> lead removes the bits of its neighbours
    bool is_plain;       // is such an integer
    bool is_amount;      // and a number without sign and factor, little-endian
};

// The last row with one hash of the keys, mostly of one connection, and its line.
struct slot {
    const uint8_t *row;
    const char *line;
    uint32_t size;
};

struct plan {
    uint32_t size;  // of a row
    uint32_t count; // of cells
    uint32_t sides; // how many columns of numbers it needs
    uint32_t keys;
    uint64_t longest;   // length of a line, without texts
    uint64_t line_room; // the same with texts and SLACK
    struct cell *cells;
    uint32_t groups; // of 64 cells
    struct block *blocks;
    uint32_t *ends_of_blocks; // by group
    uint64_t *always;         // by group, the cells that are always formatted
    struct key key[KEYS_MAX];
    uint32_t slot_bits;
    struct slot *slots;
    struct slot *latest; // the slot of the last row
    uint32_t *ends;      // by slot, the end of each cell in its line
    char *blank;         // a line without values
    uint32_t blank_size;
    uint32_t *blank_ends;
};

struct lines {
    struct plan *plans;
    struct table *tables;
    uint32_t plan_count, table_count;
};

static void free_plan(struct plan *plan) {
    free(plan->cells);
    free(plan->blocks);
    free(plan->ends_of_blocks);
    free(plan->always);
    free(plan->slots);
    free(plan->ends);
    free(plan->blank);
    free(plan->blank_ends);
}

// Whether a cell is valid and inside of the row.
static bool is_valid(const struct lines *lines, const struct cell_spec *cell, uint32_t row_size) {
    bool in_row = (uint64_t)cell->offset + cell->size <= row_size;
    bool is_raw = cell->kind == HEX || cell->kind == TEXT;
    if (cell->kind > TEXT || cell->source > SIDE || cell->order > PDP || !cell->size)
        return false;
    if (cell->kind == TEXT &&
        (cell->table >= lines->table_count || lines->tables[cell->table].key_size != cell->size))
        return false;
    if (cell->digits != 6 && cell->digits != 9)
        return false;
    if (cell->has_none && (cell->kind != NUMBER || cell->source != INTEGER))
        return false;
    if (cell->null_size > sizeof(cell->null))
        return false;
    if (cell->source == SIDE)
        return !is_raw && cell->offset < SIDES_MAX && cell->size == 8;
    if (cell->source == TIMEVAL)
        return !is_raw && in_row && (cell->size == 8 || cell->size == 16);
    return in_row && (is_raw || cell->size <= 8);
}

static uint64_t longest_value(const struct cell_spec *cell) {
    return cell->kind == HEX ? 2ULL * cell->size : cell->kind == TEXT ? 0 : 32;
}

// The key for `size` bytes of a row, at most eight.
static struct key find_key(uint32_t offset, uint32_t size, uint32_t row_size) {
    struct key key = {offset + 8 <= row_size ? offset : row_size - 8, 0};
    uint8_t mask[8] = {0};
    memset(mask + (offset - key.at), 0xFF, size);
    memcpy(&key.mask, mask, sizeof(mask));
    return key;
}

static bool is_compared(const struct plan *plan, const struct cell_spec *cell) {
    return cell->source != SIDE && cell->size <= COMPARED_MAX && plan->size >= BLOCK;
}

// Adds a cell of a group to its blocks: the `count` blocks at `first`. Returns their new count.
static uint32_t add_to_blocks(struct plan *plan, uint32_t place, struct block *first,
                              uint32_t count) {
    const struct cell_spec *cell = &plan->cells[place].spec;
    for (uint32_t offset = cell->offset; offset < cell->offset + cell->size; offset++) {
        uint32_t at = offset / BLOCK * BLOCK, found = 0;
        if (at + BLOCK > plan->size)
            at = plan->size - BLOCK;
        while (found < count && first[found].at != at)
            found++;
        if (found == count)
            first[count++].at = at;
        for (uint32_t parts = 0; parts < 16; parts++)
            if (parts >> (offset - at) / 4 & 1)
                first[found].cells[parts] |= 1ULL << place % 64;
    }
    return count;
}

static void place_cell(struct plan *plan, uint32_t place, const struct cell_spec *spec) {
    struct cell *cell = &plan->cells[place];
    bool has_room = plan->size >= 8;
    cell->spec = *spec;
    if (!is_compared(plan, spec))
        plan->always[place / 64] |= 1ULL << place % 64;
    if (spec->source == SIDE && spec->offset >= plan->sides)
        plan->sides = spec->offset + 1;
    if (spec->source == INTEGER && spec->size <= 8 && has_room &&
        (spec->order != PDP || spec->size <= 2)) {
        uint32_t at = spec->offset + 8 <= plan->size ? spec->offset : plan->size - 8;
        uint32_t skip = spec->offset - at;
        cell->is_plain = true;
        cell->is_amount =
            spec->kind == NUMBER && !spec->is_signed && spec->factor == 1 && spec->order != BIG;
        cell->at = at;
        cell->lead = (uint8_t)(8 * (8 - spec->size));
        cell->shift = (uint8_t)(8 * (spec->order == BIG ? skip : 8 - spec->size - skip));
    }
}

static bool make_plan(struct plan *plan, const struct cell_spec *cells, const char *texts) {
    uint32_t blocks = 0, end = 0;
    plan->groups = (plan->count + 63) / 64;
    for (uint32_t place = 0; place < plan->count; place++)
        blocks += is_compared(plan, &cells[place]) ? cells[place].size / BLOCK + 2 : 0;
    plan->cells = calloc(plan->count + 1ULL, sizeof(*plan->cells));
    plan->blocks = calloc(blocks + 1ULL, sizeof(*plan->blocks));
    plan->ends_of_blocks = calloc(plan->groups + 1ULL, sizeof(*plan->ends_of_blocks));
    plan->always = calloc(plan->groups + 1ULL, sizeof(*plan->always));
    plan->slots = calloc(1ULL << plan->slot_bits, sizeof(*plan->slots));
    plan->ends = calloc((plan->count + 1ULL) << plan->slot_bits, sizeof(*plan->ends));
    plan->blank = calloc(1, plan->blank_size + (size_t)SLACK);
    plan->blank_ends = calloc(plan->count + 1ULL, sizeof(*plan->blank_ends));
    if (!plan->cells || !plan->blocks || !plan->ends_of_blocks || !plan->always || !plan->slots ||
        !plan->ends || !plan->blank || !plan->blank_ends)
        return false;
    memcpy(plan->blank, texts, plan->blank_size);
    blocks = 0;
    for (uint32_t place = 0; place < plan->count; place++) {
        uint32_t group = place / 64, first = group ? plan->ends_of_blocks[group - 1] : 0;
        place_cell(plan, place, &cells[place]);
        if (is_compared(plan, &cells[place]))
            blocks = first + add_to_blocks(plan, place, plan->blocks + first, blocks - first);
        plan->ends_of_blocks[group] = blocks;
        plan->blank_ends[place + 1] = end += cells[place].before;
        plan->longest += cells[place].before + longest_value(&cells[place]);
    }
    return true;
}

#endif
