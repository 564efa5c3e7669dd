// SPDX-License-Identifier: Apache-2.0
// Numbers and times: read from rows in any byte order, written as text.
//
// Functions that write return the end of their text. They may overwrite SLACK bytes behind it.
#ifndef TCPKMON_NUMBERS_H
#define TCPKMON_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { SLACK = 64 };
enum order { LITTLE, BIG, PDP }; // as KIND_ENDIAN of a PSC file

#define NS_PER_S    1000000000ULL
#define EIGHT_ZEROS 0x3030303030303030ULL

typedef uint64_t chunk __attribute__((vector_size(16)));

// Copies `size` bytes, and up to SLACK more.
static inline void copy(char *to, const char *from, size_t size) {
    chunk one, two;
    size_t done = 0;
    do {
        memcpy(&one, from + done, sizeof(one));
        memcpy(&two, from + done + sizeof(one), sizeof(two));
        memcpy(to + done, &one, sizeof(one));
        memcpy(to + done + sizeof(one), &two, sizeof(two));
        done += sizeof(one) + sizeof(two);
    } while (done < size);
}

// The 8 bytes at `at` as a little-endian number.
static inline uint64_t load_little(const void *at) {
    uint64_t word;
    memcpy(&word, at, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline char *store_little(char *at, uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(at, &word, sizeof(word));
    return at;
}

// An integer of 1 to 8 bytes. PDP: words of 16 bits, the most significant word first, each word
// little-endian; the last byte of an odd number is the least significant one.
static inline uint64_t load_bytes(const uint8_t *at, uint32_t size, enum order order) {
    uint64_t value = 0;
    if (order == PDP && size <= 2)
        order = LITTLE;
    for (uint32_t place = 0; place < size; place++) {
        uint32_t index = order == LITTLE ? size - 1 - place : place;
        if (order == PDP && (place ^ 1) < size)
            index = place ^ 1;
        value = value << 8 | at[index];
    }
    return value;
}

// A struct timeval of two words of 4 or 8 bytes, in ns modulo 2^64.
static inline uint64_t load_timeval(const uint8_t *at, uint32_t size, enum order order) {
    uint64_t seconds, micros;
    if (order == LITTLE && size == 8) {
        uint64_t both = load_little(at);
        seconds = both & UINT32_MAX;
        micros = both >> 32;
    } else {
        seconds = load_bytes(at, size / 2, order);
        micros = load_bytes(at + size / 2, size / 2, order);
    }
    return (seconds * 1000000 + micros) * 1000;
}

// The eight digits of a number below 10^8, as values (not characters), the first in the lowest
// byte. The number is split into two of four digits, these into four of two, these into eight.
static inline uint64_t eight_digits(uint32_t number) {
    uint64_t fours = number / 10000 | (uint64_t)(number % 10000) << 32;
    uint64_t hundreds = fours * 10486 >> 20 & 0x0000007F0000007FULL;
    uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
    uint64_t tens = twos * 103 >> 10 & 0x000F000F000F000FULL;
    return tens | (twos - 10 * tens) << 8;
}

static inline char *put_eight(char *to, uint32_t number) {
    return store_little(to, eight_digits(number) + EIGHT_ZEROS) + 8;
}

// Below 10^8, without leading zeros.
static inline char *put_short(char *to, uint32_t number) {
    uint64_t digits = eight_digits(number);
    int zeros = __builtin_ctzll(digits | 1ULL << 56) / 8;
    return store_little(to, (digits + EIGHT_ZEROS) >> 8 * zeros) + 8 - zeros;
}

static const char TWO_DIGITS[] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
    "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
    "8081828384858687888990919293949596979899";

// All four digits of a number below 10^4.
static inline char *put_four(char *to, uint32_t number) {
    uint32_t hundreds = number * 5243 >> 19;
    memcpy(to, &TWO_DIGITS[2 * hundreds], 2);
    memcpy(to + 2, &TWO_DIGITS[2 * (number - 100 * hundreds)], 2);
    return to + 4;
}

static inline char *put_number(char *to, uint64_t number) {
    if (number < 10000) {
        // Most are short: half the work.
        uint32_t twos = (uint32_t)number * 5243 >> 19;
        twos |= ((uint32_t)number - 100 * twos) << 16;
        uint32_t tens = twos * 103 >> 10 & 0x000F000F;
        uint32_t digits = tens | (twos - 10 * tens) << 8;
        int zeros = __builtin_ctz(digits | 1U << 24) / 8;
        return store_little(to, (digits + EIGHT_ZEROS) >> 8 * zeros) + 4 - zeros;
    }
    if (number < 100000000)
        return put_short(to, (uint32_t)number);
    if (number < 10000000000000000)
        to = put_short(to, (uint32_t)(number / 100000000));
    else {
        uint64_t high = number / 10000000000000000; // four digits at most
        to = put_eight(put_short(to, (uint32_t)high), (uint32_t)(number / 100000000 % 100000000));
    }
    return put_eight(to, (uint32_t)(number % 100000000));
}

// Writes the sign of a negative number, and makes `value` its amount.
static inline char *put_sign(char *to, uint64_t *value) {
    bool negative = (int64_t)*value < 0;
    *to = '-';
    *value = negative ? -*value : *value;
    return to + negative;
}

// Writes a point and the first 6 or all 9 digits of a number of ns.
static inline char *put_fraction(char *to, uint32_t ns, int digits) {
    *to++ = '.';
    if (digits == 6) {
        store_little(to, (eight_digits(ns / 1000) + EIGHT_ZEROS) >> 16);
        return to + 6;
    }
    to = put_eight(to, ns / 10);
    *to = (char)('0' + ns % 10);
    return to + 1;
}

static inline char *put_seconds(char *to, uint64_t ns, int digits) {
    to = put_sign(to, &ns);
    to = put_number(to, ns / NS_PER_S);
    return put_fraction(to, (uint32_t)(ns % NS_PER_S), digits);
}

static inline char *put_two(char *to, uint32_t number, char after) {
    to[0] = (char)('0' + number / 10);
    to[1] = (char)('0' + number % 10);
    to[2] = after;
    return to + 3;
}

// Writes the date of a day, counted from 1970-01-01. Years begin in March here, so that the leap
// day is the last day of a year; 400 years have 146097 days.
static inline char *put_date(char *to, int64_t day) {
    uint32_t since = (uint32_t)(day + 719468); // 0000-03-01
    uint32_t era = since / 146097, of_era = since % 146097;
    uint32_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    uint32_t of_year = of_era - (365 * year + year / 4 - year / 100);
    uint32_t month = (5 * of_year + 2) / 153; // from March on
    uint32_t of_month = of_year - (153 * month + 2) / 5 + 1;
    year += 400 * era + (month >= 10);
    month = month < 10 ? month + 3 : month - 9;
    to = put_two(to, year / 100, '0') - 1;
    to = put_two(to, year % 100, '-');
    to = put_two(to, month, '-');
    return put_two(to, of_month, '-') - 1;
}

// Writes signed ns since the epoch as date and time in UTC.
static inline char *put_utc(char *to, uint64_t ns, int digits, char between) {
    int64_t seconds = (int64_t)ns / (int64_t)NS_PER_S;
    int64_t rest = (int64_t)ns % (int64_t)NS_PER_S;
    if (rest < 0) {
        rest += (int64_t)NS_PER_S;
        seconds--;
    }
    int64_t day = (seconds + 86400 * 200000LL) / 86400 - 200000; // never negative: 1677 to 2262
    uint32_t of_day = (uint32_t)(seconds - 86400 * day);
    to = put_date(to, day);
    *to++ = between;
    to = put_two(to, of_day / 3600, ':');
    to = put_two(to, of_day / 60 % 60, ':');
    to = put_fraction(put_two(to, of_day % 60, '.') - 1, (uint32_t)rest, digits);
    *to = 'Z';
    return to + 1;
}

static inline char *put_hex(char *to, const uint8_t *from, uint32_t size) {
    static const char digits[] = "0123456789abcdef";
    for (uint32_t place = 0; place < size; place++) {
        to[2 * place] = digits[from[place] >> 4];
        to[2 * place + 1] = digits[from[place] & 15];
    }
    return to + 2 * (size_t)size;
}

#endif
