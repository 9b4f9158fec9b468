/* Attention in one call. */
#include "npu_call.h"

#include <stdint.h>

/* What the arguments say (the vendor's names: sparseMode, innerPrecise, blockSize and the modes of quantised numbers).
 */
enum { MASK_AS_GIVEN = 0, PRECISE = 0, NO_BLOCKS = 0, NO_CODES = 0, HEAD_STEP = 16, HEAD_MOST = 256, RATIO_MOST = 64 };

bool npu_attends(const tn_tensor *q, const tn_tensor *k, const tn_tensor *v)
{
    int64_t d = q->shape[3];
    return (q->dtype == TN_BF16 || q->dtype == TN_F16) && k->dtype == q->dtype && v->dtype == q->dtype &&
           v->shape[3] == d && d % HEAD_STEP == 0 && d <= HEAD_MOST && k->shape[2] > 0 &&
           q->shape[2] % k->shape[2] == 0 && q->shape[2] / k->shape[2] <= RATIO_MOST && k->shape[1] > 0 &&
           ascend_is_dense(q) && ascend_is_dense(k) && ascend_is_dense(v) &&
           ascend_has("aclnnFusedInferAttentionScoreV2");
}

void npu_attend(npu_run *r, tn_tensor q, tn_tensor k, tn_tensor v, const tn_tensor *hidden, double scale, tn_tensor y)
{
    static char layout[] = "BSND";
    CALL(r, y, aclnnFusedInferAttentionScoreV2, TENSOR(q), list_of(&s, &k, 1), list_of(&s, &v, 1), NULL,
         hidden ? TENSOR(*hidden) : NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         NULL, NULL, NULL, NULL, NULL, NULL, q.shape[2], scale, INT32_MAX, INT32_MAX, layout, k.shape[2], MASK_AS_GIVEN,
         PRECISE, NO_BLOCKS, NO_CODES, false, NO_CODES, NO_CODES, TENSOR(y), NULL);
}
