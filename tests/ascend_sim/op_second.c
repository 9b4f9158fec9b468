/* The second phases of all operators: they differ in their names alone. Those of symbols that older versions lack are
 * in op_newer.c. */
#include "sim.h"

aclnnStatus aclnnRmsNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnRmsNorm", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnRmsNormGrad(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnRmsNormGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnAddRmsNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnAddRmsNorm", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGemmaRmsNorm(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGemmaRmsNorm", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSwiGlu(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSwiGlu", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSwiGluGrad(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSwiGluGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSilu(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSilu", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnRotaryPositionEmbedding(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                         aclrtStream stream)
{
    return sim_second("aclnnRotaryPositionEmbedding", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMm(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMm", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMatmul(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMatmul", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnBatchMatMul(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnBatchMatMul", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSoftmax(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSoftmax", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnTopk(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnTopk", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnCast(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnCast", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnPermute(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnPermute", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnIndexSelect(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnIndexSelect", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnInplaceCopy(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnInplaceCopy", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnCat(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnCat", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMul(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMul", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnInplaceMul(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnInplaceMul", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMuls(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMuls", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnAdd(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnAdd", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnAdds(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnAdds", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnDiv(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnDiv", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnReduceSum(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnReduceSum", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSigmoid(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSigmoid", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnHistc(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnHistc", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnBincount(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnBincount", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnInplaceZero(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnInplaceZero", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnInplaceFillScalar(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnInplaceFillScalar", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmul(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGroupedMatmul", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGroupedMatmulV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV3(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGroupedMatmulV3", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGroupedMatmulV4(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGroupedMatmulV4", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenPermute(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMoeTokenPermute", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenPermuteGrad(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                     aclrtStream stream)
{
    return sim_second("aclnnMoeTokenPermuteGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenUnpermute(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMoeTokenUnpermute", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeTokenUnpermuteGrad(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                       aclrtStream stream)
{
    return sim_second("aclnnMoeTokenUnpermuteGrad", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeGatingTopKSoftmax(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                      aclrtStream stream)
{
    return sim_second("aclnnMoeGatingTopKSoftmax", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeGatingTopKSoftmaxV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                        aclrtStream stream)
{
    return sim_second("aclnnMoeGatingTopKSoftmaxV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeInitRouting(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMoeInitRouting", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeInitRoutingV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMoeInitRoutingV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMoeFinalizeRoutingV2(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                                      aclrtStream stream)
{
    return sim_second("aclnnMoeFinalizeRoutingV2", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnTanh(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnTanh", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnErf(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnErf", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnExp(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnExp", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSqrt(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSqrt", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnRsqrt(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnRsqrt", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnRelu(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnRelu", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSoftplus(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSoftplus", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnClamp(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnClamp", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnMaximum(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnMaximum", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGtScalar(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGtScalar", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnGeScalar(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnGeScalar", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnLtScalar(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnLtScalar", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnSWhere(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnSWhere", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnCumsum(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnCumsum", workspace, workspaceSize, executor, stream);
}

aclnnStatus aclnnIndexAdd(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)
{
    return sim_second("aclnnIndexAdd", workspace, workspaceSize, executor, stream);
}
