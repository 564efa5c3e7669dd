// SPDX-License-Identifier: Apache-2.0
// A column of values as texts, for formats/lines/strings.py.
#ifndef TCPKMON_COLUMN_H
#define TCPKMON_COLUMN_H

#include "plan.h"

#define EXPORT __attribute__((visibility("default")))

enum result { ALL_DONE, OUT_IS_FULL, TEXT_IS_MISSING, BAD_INPUT };

// Whether a value equals the one before it.
static inline bool is_repeated(const uint8_t *value, uint32_t size) {
    if (size == 16)
        return !memcmp(value, value - 16, 16);
    if (size == 4)
        return !memcmp(value, value - 4, 4);
    return !memcmp(value, value - size, size);
}

// Writes the texts of `count` values, from value done[0] on, to out + done[1], with nothing between
// them. out has `room` bytes. ends: where each text ends in `out`.
//
// Sets done[0] to the next value and done[1] to the end of the text.
EXPORT int lines_column(const struct lines *lines, uint32_t table, const uint8_t *values,
                        uint64_t count, int32_t *ends, char *out, uint64_t room, uint64_t done[2]) {
    if (table >= lines->table_count || room > INT32_MAX || done[1] > room)
        return BAD_INPUT;
    const struct table *texts = &lines->tables[table];
    const char *text = NULL;
    uint32_t size = 0;
    uint64_t to = done[1], row = done[0];
    enum result result = ALL_DONE;
    for (; row < count; row++) {
        const uint8_t *value = values + row * texts->key_size;
        if (!text || !is_repeated(value, texts->key_size))
            text = find_text(texts, value, &size);
        if (!text || room - to < size + (uint64_t)SLACK) {
            result = text ? OUT_IS_FULL : TEXT_IS_MISSING;
            break;
        }
        copy(out + to, text, size);
        to += size;
        ends[row] = (int32_t)to;
    }
    done[0] = row;
    done[1] = to;
    return (int)result;
}

#endif
