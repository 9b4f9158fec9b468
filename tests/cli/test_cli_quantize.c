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

/* The text is read first: a column more, and a line on experts that no token reached. */
START_TEST(a_text_says_what_counts)
{
    char *out = tempdir_at(tempdir_new(), "demo.gguf"), same[1001];
    process_result r = TENON(NULL, "quantize", "models/demo", out, "--type=Q4_0", "--imatrix=models/demo/heldout.txt");
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out, "RMS ERROR  WEIGHED\n");
    ck_assert_ptr_null(strstr(r.out, "reached by no token"));
    memset(same, 'a', sizeof same - 1);
    same[sizeof same - 1] = '\0';
    for (int i = 1; i < 1000; i += 2)
        same[i] = ' ';
    r = TENON(same, "quantize", "models/demo", out, "--type=Q4_0", "--imatrix=-", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out,
                    " matrices of experts were reached by no token of standard input: their columns count alike\n");
}
END_TEST

/* One line each, and no file. */
START_TEST(texts_that_say_nothing)
{
    const char *folder = tempdir_new(), *out = tempdir_at(folder, "demo.gguf"), *text = tempdir_at(folder, "text");
#define QUANTIZE(type) TENON(NULL, "quantize", "models/demo", out, "--type", type, "--imatrix", text)
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: cannot open: ", NULL);
    tempdir_write(text, "", 0);
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: the text has 0 tokens; --imatrix needs at least 128", NULL);
    tempdir_write(text, "In the beginning", 16);
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: the text has ", "; give a longer one", NULL);
    tempdir_write(text, "GGUF\xff\xfe", 6);
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: is not UTF-8; give a text in that encoding", NULL);
    text = "models/demo/heldout.txt";
    process_expect_error(QUANTIZE("Q8_0"), 2, "a text changes nothing of Q8_0; leave it out", NULL);
    process_expect_error(QUANTIZE("FP8"), 2, "a text changes nothing of FP8; leave it out", NULL);
    ck_assert(!tempdir_exists(out));
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("quantize", 120);
    suite_add(tcase, a_table_of_tensors, the_demo_reads_as_well, a_text_says_what_counts, texts_that_say_nothing);
    return suite_run();
}
