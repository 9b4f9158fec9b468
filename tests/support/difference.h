/* Gradients against finite differences of a reference in f64. */
#ifndef TEST_DIFFERENCE_H
#define TEST_DIFFERENCE_H

#include <stdbool.h>
#include <tenon/tenon.h>

/* A loss that reads its tensors through `values`: the numbers of a tensor of the call, one of which is moved. */
typedef struct difference {
    const tn_call *call;
    const tn_tensor *moved; /* tensor and element that are not what they are                       */
    int64_t index;
    double by;
    double (*loss)(const struct difference *d);
} difference;

/* An element of a tensor of the call, moved where it is the one that is. */
double difference_value(const difference *d, const tn_tensor *t, int64_t i);

/* got must be the derivative of the loss by the elements of t. */
void difference_expect(const tn_call *call, double (*loss)(const difference *), const tn_tensor *t,
                       const tn_tensor *got, const char *what);

/* Random values small enough that neither exponentials nor sums of products spoil a comparison. */
tn_tensor difference_random(tn_dtype dtype, int32_t ndim, const int64_t *shape, double factor, uint32_t seed);
void difference_fill(const tn_tensor *t, double x);

/* A parameter of the call's site, and its gradient. */
tn_tensor *difference_param(const tn_call *call, tn_role role);
const tn_tensor *difference_grad(const tn_call *call, tn_role role);

#endif
