/* Masks of attention as places of queries and keys, which is how operations know them. */
#include "bridge.h"

#include <string.h>
#include <tenon/half.h>

/* 1: seen, 0: not, -1: something between. */
static int seen(const char *at, tn_dtype dtype)
{
    float value = 1, least = 0;
    uint16_t half;
    if (dtype == TN_BOOL)
        return *at != 0;
    if (dtype == TN_F32) {
        memcpy(&value, at, sizeof value);
        least = -0x1.fffffep127F;
    } else {
        memcpy(&half, at, sizeof half);
        value = dtype == TN_BF16 ? tn_bf16_to_f32(half) : tn_f16_to_f32(half);
        least = dtype == TN_BF16 ? -0x1.fep127F : -65504.0F;
    }
    return value == 0 ? 1 : value <= least ? 0 : -1;
}

/* A query is where the last key lies that it sees, nowhere where it sees none; a key is where it lies, nowhere where
 * nobody sees it. Whether that says all of the mask is seen afterwards. */
static bool row_indices(const tn_tensor *mask, int64_t row, int64_t window, bool zeros, int32_t *q, int32_t *k)
{
    const size_t size = tn_dtype_size(mask->dtype);
    const int64_t tokens = mask->shape[2], keys = mask->shape[3];
    const char *base = (const char *)mask->data + (size_t)(row * mask->stride[0]) * size;
    for (int64_t s = 0; s < keys; s++)
        k[s] = -1;
    for (int64_t t = 0; t < tokens; t++) {
        q[t] = -1;
        for (int64_t s = 0; s < keys; s++) {
            int see = seen(base + (size_t)(t * mask->stride[2] + s * mask->stride[3]) * size, mask->dtype);
            if (see < 0)
                return false;
            if (see)
                q[t] = k[s] = (int32_t)s;
        }
        if (q[t] < 0 && !zeros)
            return false;
    }
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t s = 0; s < keys; s++) {
            bool said = k[s] >= 0 && k[s] <= q[t] && (window == 0 || q[t] - k[s] < window);
            if (said != (seen(base + (size_t)(t * mask->stride[2] + s * mask->stride[3]) * size, mask->dtype) == 1))
                return false;
        }
    return true;
}

/* mask_indices(mask [B,1,T,S], window, whether a query that sees nothing gives zeros, q [B,T], k [B,S]) */
PyObject *bridge_mask_indices(PyObject *module, PyObject *arguments)
{
    PyObject *objects[3];
    tn_tensor mask, q, k;
    long long window;
    int zeros;
    const char *why;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLpOO", &objects[0], &window, &zeros, &objects[1], &objects[2]) ||
        !bridge_torch_load())
        return NULL;
    if (!bridge_view(objects[0], &mask, &why) || !bridge_view(objects[1], &q, &why) ||
        !bridge_view(objects[2], &k, &why))
        return Py_NewRef(Py_False);
    if (mask.ndim != 4 || q.dtype != TN_I32 || k.dtype != TN_I32 || q.shape[0] != mask.shape[0] ||
        q.shape[1] != mask.shape[2] || k.shape[1] != mask.shape[3])
        return Py_NewRef(Py_False);
    bool good = mask.dtype == TN_BOOL || mask.dtype == TN_F32 || mask.dtype == TN_BF16 || mask.dtype == TN_F16;
    Py_BEGIN_ALLOW_THREADS;
    for (int64_t row = 0; row < mask.shape[0] && good; row++)
        good = row_indices(&mask, row, window, zeros, (int32_t *)q.data + row * q.stride[0],
                           (int32_t *)k.data + row * k.stride[0]);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(good);
}
