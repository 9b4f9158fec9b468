/* Tests of single operations: buffers with guards, calls of the cpu device, and comparing with golden data. */
#ifndef TEST_OPTEST_H
#define TEST_OPTEST_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <tenon/tenon.h>

/* All memory that a test takes here is released together; guards around each block are checked then. */
void optest_setup(void);
void optest_teardown(void);

/* A test case of the program's suite (suite.h) whose tests have both around them. */
TCase *optest_suite(const char *name, double seconds);

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

/* A call of the operation at such a site, which is kept until teardown as well: its tensors are to come. And the site,
 * to be completed. */
tn_call optest_call(tn_op op, tn_dtype dtype, int32_t in_count, int32_t out_count);
tn_site *optest_site_of(const tn_call *call);

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
 * wanted, zeroed and dense. call->in, call->out and the site's parameters must be complete. Kept until teardown; the
 * second form gives those that the call has. */
tn_grads *optest_grads(tn_call *call, uint32_t seed);
tn_grads *optest_grads_of(const tn_call *call);

/* Within absolute + relative * |expected|, element by element. */
void optest_close(const tn_tensor *got, const tn_tensor *expected, double absolute, double relative, const char *what);

void optest_expect_zero(const tn_tensor *t);

/* Performs a call again, whose result there is: output 0 in the memory of input 0, or the gradient of input 0 in that
 * of the upstream one of output 0. Expects the same; the call stays so. */
void optest_in_place(tn_call *call);
void optest_backward_in_place(tn_call *call);

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

/* A case of a golden file in one type. All that have a tensor of this name, in f32, bf16 and f16 each:
 *     for (optest_case c = optest_cases("swiglu", "x"); optest_next(&c, 4);)
 * The last call closes the file and expects that there were so many cases. */
typedef struct optest_case {
    const char *op, *tensor;
    tn_safetensors *file;
    int number;
    tn_dtype dtype;
} optest_case;
optest_case optest_cases(const char *op, const char *tensor);
bool optest_next(optest_case *c, int cases);

/* A tensor of the case, in its type; what it must be and what transformers computes in that type. */
tn_tensor optest_input(const optest_case *c, const char *name);
tn_tensor optest_truth(const optest_case *c, const char *name);
tn_tensor optest_theirs(const optest_case *c, const char *name);

/* The rules of optest_golden and optest_golden_grad, for the tensor of that name. */
void optest_expect(const optest_case *c, const char *name, const tn_tensor *got);
void optest_expect_grad(const optest_case *c, const char *name, const tn_tensor *got);

#endif
