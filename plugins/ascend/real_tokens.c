/* Tokens that are no padding. Those that follow one another are copied together, and batch rows too where they have the
 * same padding. */
#include "real_tokens.h"

#include <stdlib.h>

static bool is_real(const real_tokens *tokens, int64_t row, int64_t t)
{
    return tokens->index[row * tokens->at->stride[0] + t * tokens->at->stride[1]] >= 0;
}

int64_t real_tokens_of(const real_tokens *tokens, int64_t row)
{
    int64_t count = 0;
    for (int64_t t = 0; t < tokens->at->shape[1]; t++)
        count += is_real(tokens, row, t);
    return count;
}

void real_tokens_begin(npu_run *r, const tn_tensor *index, real_tokens *tokens)
{
    *tokens = (real_tokens){.at = index};
    tokens->index = npu_host_copy(r, index, &tokens->owned);
    tokens->all = r->status == TN_OK;
    for (int64_t row = 0; row < index->shape[0] && r->status == TN_OK; row++) {
        int64_t count = real_tokens_of(tokens, row);
        tokens->most = count > tokens->most ? count : tokens->most;
        tokens->all &= count == index->shape[1];
    }
}

void real_tokens_end(real_tokens *tokens)
{
    free(tokens->owned);
    *tokens = (real_tokens){0};
}

static bool same_padding(const real_tokens *tokens, int64_t a, int64_t b)
{
    for (int64_t t = 0; t < tokens->at->shape[1]; t++)
        if (is_real(tokens, a, t) != is_real(tokens, b, t))
            return false;
    return true;
}

/* rows batch rows from row on, which have the same padding. */
static void copy_rows(npu_run *r, const real_tokens *tokens, int64_t row, int64_t rows, const tn_tensor *x,
                      const tn_tensor *packed, bool back)
{
    int64_t count = tokens->at->shape[1], next = 0;
    for (int64_t t = 0, n = 1; t < count; t += n, n = 1) {
        if (!is_real(tokens, row, t))
            continue;
        while (t + n < count && is_real(tokens, row, t + n))
            n++;
        tn_tensor loose = npu_tokens(x, row, rows, t, n), dense = npu_tokens(packed, row, rows, next, n);
        npu_copy(r, back ? dense : loose, back ? loose : dense);
        next += n;
    }
}

static void copy(npu_run *r, const real_tokens *tokens, const tn_tensor *x, const tn_tensor *packed, bool back)
{
    for (int64_t row = 0, n = 1; row < x->shape[0] && r->status == TN_OK; row += n, n = 1) {
        while (row + n < x->shape[0] && same_padding(tokens, row, row + n))
            n++;
        copy_rows(r, tokens, row, n, x, packed, back);
    }
}

void real_tokens_pack(npu_run *r, const real_tokens *tokens, const tn_tensor *x, const tn_tensor *packed)
{
    copy(r, tokens, x, packed, false);
}

void real_tokens_unpack(npu_run *r, const real_tokens *tokens, const tn_tensor *packed, const tn_tensor *x)
{
    if (!tokens->all)
        npu_fill(r, *x, 0);
    copy(r, tokens, x, packed, true);
}
