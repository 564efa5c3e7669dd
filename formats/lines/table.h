// SPDX-License-Identifier: Apache-2.0
// A hash table from the bytes of a value to its text. It grows until it is emptied.
#ifndef TCPKMON_TABLE_H
#define TCPKMON_TABLE_H

#include "numbers.h"
#include <stdlib.h>

struct entry {
    uint64_t at; // where `blob` has its key, followed by its text; 0: no entry
    uint32_t size;
};

struct table {
    uint32_t key_size;
    uint32_t used;
    uint32_t room; // for entries: 0 or a power of two
    uint32_t longest;
    struct entry *entries;
    char *blob;
    uint64_t end, blob_room;
};

static inline uint64_t hash_bytes(const uint8_t *key, uint32_t size) {
    uint64_t hash = size, word;
    for (; size >= 8; size -= 8, key += 8) {
        memcpy(&word, key, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, key, size);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    return hash ^ hash >> 32;
}

// The entry of a key, or the empty entry for it. The table must have room.
static inline struct entry *find_entry(const struct table *table, const uint8_t *key) {
    uint64_t place = hash_bytes(key, table->key_size);
    for (;; place++) {
        struct entry *entry = &table->entries[place & (table->room - 1)];
        if (!entry->at || !memcmp(table->blob + entry->at, key, table->key_size))
            return entry;
    }
}

// The text of a key; NULL if the table has none.
static inline const char *find_text(const struct table *table, const uint8_t *key, uint32_t *size) {
    if (!table->room)
        return NULL;
    const struct entry *entry = find_entry(table, key);
    *size = entry->size;
    return entry->at ? table->blob + entry->at + table->key_size : NULL;
}

static inline void empty_table(struct table *table) {
    free(table->entries);
    free(table->blob);
    *table = (struct table){.key_size = table->key_size};
}

static inline bool grow_entries(struct table *table) {
    struct table larger = *table;
    larger.room = table->room ? 2 * table->room : 64;
    larger.entries = calloc(larger.room, sizeof(*larger.entries));
    if (!larger.entries)
        return false;
    for (uint32_t place = 0; place < table->room; place++) {
        struct entry *old = &table->entries[place];
        if (old->at)
            *find_entry(&larger, (const uint8_t *)table->blob + old->at) = *old;
    }
    free(table->entries);
    *table = larger;
    return true;
}

// Adds or replaces a text; false: out of memory.
static inline bool add_text(struct table *table, const uint8_t *key, const char *text,
                            uint32_t size) {
    uint64_t at = table->end ? table->end : 1, end = at + table->key_size + size;
    if (end + SLACK > table->blob_room) {
        uint64_t room = 2 * (end + SLACK);
        char *blob = realloc(table->blob, room);
        if (!blob)
            return false;
        memset(blob + table->blob_room, 0, room - table->blob_room);
        table->blob = blob;
        table->blob_room = room;
    }
    if (2 * table->used >= table->room && !grow_entries(table))
        return false;
    struct entry *entry = find_entry(table, key);
    table->used += !entry->at;
    memcpy(table->blob + at, key, table->key_size);
    memcpy(table->blob + at + table->key_size, text, size);
    *entry = (struct entry){at, size};
    table->end = end;
    table->longest = size > table->longest ? size : table->longest;
    return true;
}

#endif
