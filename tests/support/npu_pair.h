/* For tests: the device npu, on the simulator of the vendor's libraries, beside the CPU, and calls on both. What fails
 * fails the test. */
#ifndef TENON_TESTS_NPU_PAIR_H
#define TENON_TESTS_NPU_PAIR_H

#include "check/draw_site.h"
#include "check/inputs.h"
#include "run/run.h"

#include "../ascend_sim/sim.h"

#include <check.h>

extern device npu_pair_npu, npu_pair_cpu;

/* The plugins of the build; a device of theirs, NULL: the CPU; a figure of the simulator's, and all that it counts; the
 * number-th call from now fails, 0: none does; that no rule of the vendor's was broken and nothing is left over. */
void npu_pair_scan(void);
device npu_pair_device(const char *name);
int64_t npu_pair_ask(const char *function);
sim_figures npu_pair_figures(void);
void npu_pair_let_fail(int64_t number);
void npu_pair_expect_clean(void);

/* Both devices; closing them looks for broken rules of the vendor's and for what is left over. */
void npu_pair_open(void);
void npu_pair_close(void);

/* A site drawn on the host, and the same with its parameters on the device. */
typedef struct npu_pair_sites {
    draw_site drawn;
    tn_site there;
    tn_tensor tensors[1024];
} npu_pair_sites;

/* The one in static memory: there is one at a time. */
npu_pair_sites *npu_pair_draw(const tn_site *like);
void npu_pair_drop(npu_pair_sites *s);

/* A copy of a dense tensor in the device's memory, which the caller frees. */
void npu_pair_upload(const tn_tensor *host, tn_tensor *there);

/* Performs the call, whose tensors are the host's and dense, on the device. */
void npu_pair_perform(const tn_site *there, tn_call *call);

/* Memory for a call's results, filled with what no operation writes. */
void npu_pair_give_results(tn_call *call);
void npu_pair_free_results(const tn_call *call);

/* Both results of a call that was drawn for the site on the host must agree within so many units of the last place of a
 * row's largest element; 0: be the same. */
void npu_pair_compare(const npu_pair_sites *s, inputs *in, double ulps);

/* In a child process, whose number-th call that can fail does: it has to end, and breaks no rule of the vendor's but
 * these: an operator may be asked without what could not be made, or without a workspace, so that it ends what it
 * prepared. */
void npu_pair_in_child(void (*body)(void *ctx), void *ctx, int64_t number);

/* Runs this program's test case of that name once more on the simulator without what the headers of 8.1.RC1 lack. */
void npu_pair_on_older(const char *test_case);

/* A test program's end: starts again with the simulator's folder, which lies beside it, in the loader's path. */
int npu_pair_main(char **argv);

#endif
