/* Inside core/grammar: numbers of JSON within bounds. */
#ifndef TENON_CORE_DECIMALS_H
#define TENON_CORE_DECIMALS_H

#include "grammar/automaton.h"

#include <jansson.h>

/* Digits that are written at most, so that every reader takes the number: before the point, and behind it. */
enum { DECIMALS_WHOLE = 15, DECIMALS_FRACTION = 16 };

/* |value| = 0.digits * 10^point */
typedef struct decimal {
    bool negative;
    char digits[32];
    int count, point;
} decimal;

typedef struct decimal_range {
    bool integer;
    bool has_low, has_high, low_open, high_open;
    decimal low, high;
    int64_t step; /* multiples of step / 10^scale; 0: all                                                   */
    int scale;
} decimal_range;

/* Steps are whole multiples of a power of ten, at most so many. */
enum { DECIMALS_STEP = 10000 };

decimal decimals_of(const json_t *number);
bool decimals_step(decimal_range *r, const json_t *number); /* false: none that can be */
int decimals_compare(const decimal *a, const decimal *b);

/* The shortest text that reads as the number. */
void decimals_text(const json_t *number, char text[40]);

/* From `from`, the numbers, to `to`. */
void decimals_add(automaton *a, const decimal_range *r, uint32_t from, uint32_t to);

#endif
