/* Inside plugins/common: how an operator is called on views of tensors. */
#ifndef NPU_CALL_H
#define NPU_CALL_H

#include "npu_ops.h"

/* The first phase of each operator: notes its arguments, or makes an executor. */
#define NOTE(role, name) ascend_note(s, &name, sizeof name);
#define PASS(role, name) name,
#define ACL_OP(operator, need, chips, known, types, strides, arguments)                                                \
    static inline aclnnStatus first_##operator(arguments(ACL_TENSOR, ACL_VALUE) ascend_step *s)                        \
    {                                                                                                                  \
        if (s->noting) {                                                                                               \
            arguments(NOTE, NOTE);                                                                                     \
            return 0;                                                                                                  \
        }                                                                                                              \
        return s->api->operator##GetWorkspaceSize(arguments(PASS, PASS) & s->bytes, &s->executor);                     \
    }
#include "acl_ops.def"
#undef ACL_OP

/* A call whose result is y, of an operator with these arguments, which are gone through twice: what is made for them
 * belongs to the step s. */
#define CALL(r, y, operator, ...)                                                                                      \
    do {                                                                                                               \
        ascend_step s;                                                                                                 \
        if (npu_begin(r, &s, #operator, &(y))) {                                                                       \
            aclnnStatus first = first_##operator(__VA_ARGS__, &s);                                                     \
            if (!ascend_known(&s))                                                                                     \
                first = first_##operator(__VA_ARGS__, &s);                                                             \
            npu_end(r, &s, first, s.api->operator);                                                                    \
        }                                                                                                              \
    } while (0)
#define TENSOR(t) ascend_tensor(&s, &(t))
#define NUMBER(value) ascend_f32(&s, value)

/* What a product does with types: keeps them. The other settings lower the precision of f32. */
enum { KEEP_TYPES = 0 };

static inline aclTensorList *list_of(ascend_step *s, const tn_tensor *tensors, int64_t count)
{
    aclTensor *list[NPU_LIST_MOST];
    for (int64_t i = 0; i < count; i++)
        list[i] = ascend_tensor(s, &tensors[i]);
    return ascend_list(s, list, count);
}

#endif
