/* tenon quantize: what it prints, and that what it writes runs. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static double perplexity_of(const char *model)
{
    process_result r = TENON(NULL, "perplexity", model, "models/demo/heldout.txt", "--kernels=none", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    return strtod(r.out + strlen("perplexity "), NULL);
}

/* What is printed of each tensor, and how many bits a value has in the end. */
START_TEST(a_table_of_tensors)
{
    char *out = tempdir_at(tempdir_new(), "demo.gguf");
    process_result r = TENON(NULL, "quantize", "models/demo", out, "--type", "Q4_K_M");
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out, "TENSOR ");
    suite_expect_in(r.out, "RMS ERROR\n");
    suite_expect_in(r.out, "token_embd.weight ");
    suite_expect_in(r.out, "blk.3.ffn_down_exps.weight ");
    suite_expect_in(r.out, "/demo.gguf: 2.2 MiB, 6.5");
    suite_expect_in(r.out, " bits per value\n");
    r = TENON(NULL, "quantize", "models/demo", out, "--type", "Q8_0", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_msg(strstr(r.out, "TENSOR") == NULL && strchr(r.out, '\n')[1] == '\0', "%s", r.out);
}
END_TEST

/* Within 2 % of the plain checkpoint. */
START_TEST(the_demo_reads_as_well)
{
    char *out = tempdir_at(tempdir_new(), "demo.gguf");
    process_result r = TENON(NULL, "quantize", "models/demo", out, "--type", "Q4_K_M", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_double_le(perplexity_of(out), 1.02 * perplexity_of("models/demo"));
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("quantize", 120);
    suite_add(tcase, a_table_of_tensors, the_demo_reads_as_well);
    return suite_run();
}
