/* Tests of single operations: buffers with guards, calls of the cpu device, and comparing with golden data. */
#ifndef TEST_OPTEST_H
#define TEST_OPTEST_H

#include <stdbool.h>
#include <stdint.h>
#include <tenon/tenon.h>

/* All memory that a test takes here is released together; guards around each block are checked then. */
void optest_setup(void);
void optest_teardown(void);

/* A dense tensor in guarded memory: zero bytes; seeded values of about unit size, which bf16 and f16 hold exactly;
 * converted from given f32 values. */
tn_tensor optest_zeros(tn_dtype dtype, int32_t ndim, const int64_t *shape);
tn_tensor optest_random(tn_dtype dtype, int32_t ndim, const int64_t *shape, uint32_t seed);
tn_tensor optest_from(tn_dtype dtype, const tn_tensor *source);

/* Element i in row-major order, whatever the strides, as a double. */
double optest_at(const tn_tensor *t, int64_t i);
void optest_set(tn_tensor *t, int64_t i, double value);

/* Half the distance of 1 to the next number, relative: the error of one rounding. And x, rounded so. */
double optest_epsilon(tn_dtype dtype);
double optest_rounded(double x, tn_dtype dtype);

/* A view with two dimensions exchanged. */
tn_tensor optest_transpose(tn_tensor t, int32_t a, int32_t b);

/* A site with this operation and dtype; parameters are kept until teardown. */
tn_site optest_site(tn_op op, tn_dtype dtype);
void optest_param(tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count);

/* Performs call->op through the cpu device with guarded scratch of exactly the size that it asks for. The first form
 * expects success. */
void optest_run(tn_call *call);
tn_status optest_try(tn_call *call, tn_error *err);

/* Runs with 1, 2 and 3 threads and expects the same bits in out[0 .. out_count) each time. */
void optest_threads(tn_call *call);

/* The same for the gradients that call->grads asks for, through the device's backward. */
void optest_backward(tn_call *call);
tn_status optest_try_backward(tn_call *call, tn_error *err);
void optest_backward_threads(tn_call *call);

/* Performs a contract, composed ones included, or its gradients where call->grads is set, as kernels are compared with:
 * in an arena of exactly the size that measuring says, its contents undefined. Expects success. */
void optest_composed(const tn_call *call);

/* Upstream gradients: seeded values for every output, dense. All gradients of floating-point inputs and parameters
 * wanted, zeroed and dense. call->in, call->out and the site's parameters must be complete. */
void optest_grads(tn_call *call, tn_grads *grads, uint32_t seed);

/* Within absolute + relative * |expected|, element by element. */
void optest_close(const tn_tensor *got, const tn_tensor *expected, double absolute, double relative, const char *what);

/* The rule of the golden data: rms(got - truth) <= 1.5 rms(theirs - truth); f32: within 2e-5 and 2e-5 relative. */
void optest_golden(const tn_tensor *got, const tn_tensor *truth, const tn_tensor *theirs, const char *what);

/* rms(got - truth) / rms(truth). */
double optest_error(const tn_tensor *got, const tn_tensor *truth);

/* The same rule for gradients: bf16, f16: rms(got - truth) <= 4 eps rms(truth) + 2e-5. */
void optest_golden_grad(const tn_tensor *got, const tn_tensor *truth, const char *what);

/* f' at x in double precision: central differences at h and 2h. Its error is h^4/30 of the fifth derivative. */
double optest_derivative(double (*f)(void *ctx, double x), void *ctx, double x, double h);

/* A golden file under tests/data/ops, and the tensors of its numbered cases. */
tn_safetensors *optest_open(const char *op);
bool optest_has(const tn_safetensors *file, int number, const char *name);
tn_tensor optest_get(const tn_safetensors *file, int number, const char *name, const char *suffix);
double optest_number(const tn_safetensors *file, int number, const char *name);

#endif
