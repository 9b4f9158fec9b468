/* Operators that older versions of the vendor's libraries lack: the simulator is also built without this file. */
#include "ops.h"

aclnnStatus aclnnRotaryPositionEmbeddingV2GetWorkspaceSize(const aclTensor *x, const aclTensor *cos,
                                                           const aclTensor *sin, int64_t mode, const aclTensor *rotate,
                                                           aclTensor *out, uint64_t *workspaceSize,
                                                           aclOpExecutor **executor)
{
    SIM_HOLD;
    if (rotate)
        return sim_violation(161002, "aclnnRotaryPositionEmbeddingV2: rotate is not simulated, it has to be NULL");
    return ops_rotary("aclnnRotaryPositionEmbeddingV2", x, cos, sin, mode, true, out, workspaceSize, executor);
}

aclnnStatus aclnnRotaryPositionEmbeddingGradGetWorkspaceSize(const aclTensor *dy, const aclTensor *cos,
                                                             const aclTensor *sin, const aclTensor *xOptional,
                                                             int64_t mode, const aclTensor *dxOut,
                                                             const aclTensor *dcosOut, const aclTensor *dsinOut,
                                                             uint64_t *workspaceSize, aclOpExecutor **executor)
{
    SIM_HOLD;
    ops_rotary_tensors t = {dy, cos, sin, xOptional, dxOut, dcosOut, dsinOut};
    return ops_rotary_grad("aclnnRotaryPositionEmbeddingGrad", &t, mode, workspaceSize, executor);
}

aclnnStatus aclnnGroupedMatmulV5GetWorkspaceSize(
    const aclTensorList *x, const aclTensorList *weight, const aclTensorList *biasOptional,
    const aclTensorList *scaleOptional, const aclTensorList *offsetOptional,
    const aclTensorList *antiquantScaleOptional, const aclTensorList *antiquantOffsetOptional,
    const aclTensorList *perTokenScaleOptional, const aclTensor *groupListOptional,
    const aclTensorList *activationInputOptional, const aclTensorList *activationQuantScaleOptional,
    const aclTensorList *activationQuantOffsetOptional, int64_t splitItem, int64_t groupType, int64_t groupListType,
    int64_t actType, aclIntArray *tuningConfigOptional, aclTensorList *out, aclTensorList *activationFeatureOutOptional,
    aclTensorList *dynQuantScaleOutOptional, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    SIM_HOLD;
    (void)tuningConfigOptional; /* for speed */
    ops_grouped call = {.x = x,
                        .weight = weight,
                        .bias = biasOptional,
                        .absent = {scaleOptional, offsetOptional, antiquantScaleOptional, antiquantOffsetOptional,
                                   perTokenScaleOptional, activationInputOptional, activationQuantScaleOptional,
                                   activationQuantOffsetOptional, activationFeatureOutOptional,
                                   dynQuantScaleOutOptional},
                        .y = out,
                        .group_list = groupListOptional,
                        .split_item = splitItem,
                        .group_type = groupType,
                        .group_list_type = groupListType,
                        .act_type = actType,
                        .newer = true};
    return ops_grouped_matmul("aclnnGroupedMatmulV5", &call, workspaceSize, executor);
}

/* ---- second phases --------------------------------------------------------------------------------------------- */

SIM_SECOND(aclnnRotaryPositionEmbeddingV2)
SIM_SECOND(aclnnRotaryPositionEmbeddingGrad)
SIM_SECOND(aclnnGroupedMatmulV5)
