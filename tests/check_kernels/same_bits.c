/* Parts of a call against the whole. */
#include "same_bits.h"
#include "check/compare.h"
#include "check/part.h"
#include "host.h"
#include "sanitizer.h"

#include <stdlib.h>

/* False: it failed. */
static bool check_part(check_state *s, const check_case *c, const tn_impl *impl, const attempt *whole, const part *p)
{
    int64_t *counts = calloc((size_t)c->call.in[1].shape[0] + 1, sizeof *counts);
    check_case few = *c;
    char detail[160] = "";
    few.call = part_call(&c->call, p, counts);
    few.max_tokens = p->count;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        few.alias[i] = -1;
    attempt *t = attempt_run(s, &few, impl, PLACE_RIGHT, false);
    tn_call wanted = part_call(&whole->call, p, counts);
    bool same = t != NULL;
    for (int i = 0; same && i < few.call.out_count; i++)
        same = compare_bits(&wanted.out[i], &t->call.out[i], detail, sizeof detail);
    if (t && !same)
        check_fail(s, c, "tokens %lld to %lld have other bits than among all (%s)", (long long)p->first,
                   (long long)(p->first + p->count - 1), detail);
    attempt_free(t);
    free(counts);
    return same;
}

void same_bits(check_state *s, const check_case *c, const tn_impl *impl, const attempt *whole)
{
    if (!part_by_token(c->call.op))
        return;
    int64_t n = part_tokens(&c->call), rows = part_rows(&c->call);
    bool same = true;
    for (int64_t row = 0; row < rows && row < 2; row++) {
        const part parts[] = {{row, 0, 1},     {row, n - 1, 1},     {row, n / 2, 2}, {row, 1, 3},
                              {row, n / 3, 7}, {row, n / 4, n / 2}, {row, 0, n - 1}, {row, 2, 33}};
        /* The sanitizers look for faults of memory, which one part meets as well as eight. */
        for (size_t i = SANITIZER ? 4 : 0; same && i < sizeof parts / sizeof *parts; i += SANITIZER ? 8 : 1) {
            host_threads(1 + (int32_t)(i % 2));
            if (parts[i].first >= 0 && parts[i].count > 0 && parts[i].first + parts[i].count <= n)
                same = check_part(s, c, impl, whole, &parts[i]);
        }
    }
    host_threads(1);
}
