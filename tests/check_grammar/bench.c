/* Times of masks, for docs/grammar.md: no test. */
#include "check_grammar.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TIMES = 1 << 16 };
static double first[MOST_TIMES], again[MOST_TIMES], compiled[1024];
static size_t first_count, again_count, compiled_count;

static int by_time(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static void sum_up(const char *what, double *times, size_t count)
{
    if (count == 0)
        return;
    qsort(times, count, sizeof *times, by_time);
    printf("%-24s %7zu: median %.3f ms, 9 of 10 below %.3f ms, longest %.3f ms\n", what, count, times[count / 2] * 1e3,
           times[count * 9 / 10] * 1e3, times[count - 1] * 1e3);
}

/* Token by token, as text is generated. */
static void time_text(const checked *c, const char *text, double *times, size_t *count)
{
    int64_t *ids = NULL;
    size_t n = 0;
    tn_error err = TN_ERROR_INIT;
    tn_grammar_state *s = tn_grammar_state_new(c->grammar, &err);
    tn_tokenizer_encode(c->tokens->tokenizer, text, strlen(text), false, &ids, &n, &err);
    for (size_t i = 0; s && i <= n && *count < MOST_TIMES; i++) {
        double start = clock_seconds();
        tn_grammar_mask(s, c->bits, &err);
        times[(*count)++] = clock_seconds() - start;
        if (i < n)
            tn_grammar_accept(s, ids[i], &err);
    }
    tn_grammar_state_free(s);
    free(ids);
}

void bench_grammar(const checked *c)
{
    size_t i;
    json_t *text;
    if (compiled_count < sizeof compiled / sizeof *compiled)
        compiled[compiled_count++] = c->seconds;
    json_array_foreach (json_object_get(c->file, "pass"), i, text)
        time_text(c, json_string_value(text), first, &first_count);
    json_array_foreach (json_object_get(c->file, "pass"), i, text)
        time_text(c, json_string_value(text), again, &again_count);
}

void bench_end(void)
{
    sum_up("compiling", compiled, compiled_count);
    sum_up("masks, first time", first, first_count);
    sum_up("masks, again", again, again_count);
}
