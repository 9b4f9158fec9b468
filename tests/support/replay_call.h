/* The call of a file that --shadow wrote, performed as `tenon check --replay` has eager perform it. */
#ifndef TEST_REPLAY_CALL_H
#define TEST_REPLAY_CALL_H

#include "base/tensor.h"
#include "check/callfile.h"
#include "check/unclear.h"
#include "eager/eager.h"
#include "run/run.h"

#include <stdlib.h>

static inline tn_status replay_call_perform(const callfile *c, tn_error *err)
{
    tn_call call = c->call;
    bool *skip = NULL;
    for (int i = 0; i < call.out_count; i++)
        if (!(call.out[i].data = aligned_alloc(64, tensor_padded_bytes(&call.out[i]) + 64)))
            abort();
    tn_status status = unclear_find(&call, &skip, err);
    if (status == TN_OK)
        status = run_alone(&cpu_device, NULL, NULL, &call, err);
    for (int i = 0; i < call.out_count; i++)
        free(call.out[i].data);
    free(skip);
    return status;
}

#endif
