/* Computes wrong numbers: one element of each row is off by one part in a thousand. Checked apply refuses it. */
#include "honest.h"

static tn_status wrong_forward(const tn_call *call, tn_error *err)
{
    tn_status status = honest_forward(call, err);
    const tn_tensor *y = &call->out[0];
    int64_t n = y->shape[y->ndim - 1], rows = tn_tensor_count(y) / n;
    for (int64_t r = 0; r < rows; r++) {
        float *row = honest_place(y, r);
        int64_t largest = 0;
        for (int64_t i = 1; i < n; i++)
            if (fabsf(row[i]) > fabsf(row[largest]))
                largest = i;
        row[largest] *= 1.001f;
    }
    return status;
}

HONEST_PLUGIN("wrong_numbers", "test_wrong_numbers", wrong_forward);
