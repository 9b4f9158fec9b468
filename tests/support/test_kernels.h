/* Kernels of a test's own: part of the program, registered by the test that wants them. Each test runs in a process of
 * its own, so what one registers no other sees. */
#ifndef TEST_KERNELS_H
#define TEST_KERNELS_H

#include <tenon/tenon.h>

/* What a kernel does; the rest are right answers and a plain match. */
typedef struct test_kernel {
    const char *id;
    tn_op op; /* RMS_NORM, ADD_RMS_NORM, ROPE, MLP, LINEAR, MOE_BLOCK                             */
    int32_t priority;
    tn_status (*available)(tn_error *err);
    tn_status (*plan)(const tn_site *site, tn_plan *plan, tn_error *err);
    tn_status (*pack)(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err);
    tn_status (*forward)(const tn_call *call, tn_error *err); /* NULL: right                      */
    double ulps;                                              /* of its tolerance; 0: 64          */
    uint64_t acts; /* for an MLP: TN_TAKES(...); 0: silu                                         */
    tn_status (*backward)(const tn_call *call, tn_error *err); /* NULL: none                       */
    double gradient_ulps;                                      /* 0: as ulps                       */
    uint32_t optional_outputs;
    uint64_t traits;
    const char *device; /* NULL: the CPU                                                          */
} test_kernel;

/* Registers it; fails the test when it is refused. The second form takes one as plugins have them. */
void test_kernel_add(const test_kernel *kernel);
void test_kernel_register(const tn_kernel *kernel);

/* What a kernels.json with this content says. Until the test ends (suite.h). */
tn_config *test_config(const char *json);

/* The right answer for the operations above, any dtype and strides. */
tn_status test_kernel_forward(const tn_call *call, tn_error *err);

/* The right gradients for RMS_NORM, ADD_RMS_NORM, ROPE, LINEAR. */
tn_status test_kernel_backward(const tn_call *call, tn_error *err);

#endif
