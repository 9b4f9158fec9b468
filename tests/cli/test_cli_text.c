/* tokenize, run, perplexity and logits on the embedded model, against what its expected.json says. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

#define MODEL "models/demo"
#define PROMPT "And it came to pass"
#define PROMPT_IDS "296,354,473,290,619"

/* ---- helpers ------------------------------------------------------------------------------------ */

static json_t *expected(void)
{
    json_error_t err;
    json_t *root = json_load_file(MODEL "/expected.json", 0, &err);
    ck_assert_msg(root != NULL, "%s", err.text);
    return root;
}

/* ---- tokenize ------------------------------------------------------------------------------------- */

START_TEST(tokenize_gives_the_ids)
{
    json_t *all = expected(), *prompt;
    size_t i;
    json_array_foreach (json_object_get(all, "greedy"), i, prompt) {
        process_result r = TENON(NULL, "tokenize", MODEL, printed_string(prompt, "prompt"));
        ck_assert_str_eq(r.err, "");
        json_t *ids = printed_json(&r, 0);
        ck_assert(json_equal(ids, json_object_get(prompt, "prompt_ids")));
    }
    ck_assert_uint_gt(i, 0);
    json_decref(all);
    process_expect_output(TENON(NULL, "tokenize", MODEL, PROMPT), "[296, 354, 473, 290, 619]\n");
    process_expect_output(TENON(PROMPT, "tokenize", MODEL, "-"), "[296, 354, 473, 290, 619]\n");
    process_expect_output(TENON(PROMPT, "tokenize", MODEL), "[296, 354, 473, 290, 619]\n");
    process_expect_output(TENON(NULL, "tokenize", MODEL "/tokenizer.json", PROMPT, "--json"),
                          "[296, 354, 473, 290, 619]\n");
    process_expect_output(TENON("", "tokenize", MODEL), "[]\n");
}
END_TEST

START_TEST(tokenize_decodes)
{
    process_expect_output(TENON(NULL, "tokenize", MODEL, "--decode", PROMPT_IDS), PROMPT "\n");
    process_expect_output(TENON(NULL, "tokenize", MODEL, "--decode=" PROMPT_IDS), PROMPT "\n");
    process_expect_output(TENON("[296, 354,\n 473, 290, 619]\n", "tokenize", MODEL, "--decode", "-"), PROMPT "\n");
    process_expect_output(TENON("296 354 473 290 619", "tokenize", MODEL, "--decode"), PROMPT "\n");
    process_expect_output(TENON(NULL, "tokenize", MODEL, "--decode", "--json", "[" PROMPT_IDS "]"), "\"" PROMPT "\"\n");
    process_expect_output(TENON(NULL, "tokenize", MODEL, "--decode", "0,296"), "<|endoftext|>And\n");
    process_expect_output(TENON(NULL, "tokenize", MODEL, "--decode", "0,296", "--no-special"), "And\n");
    process_expect_error(TENON(NULL, "tokenize", MODEL, "--decode", "1,2048"), 4,
                         "token id 2048 is out of range; the model knows 0 to 2047", NULL);
    process_expect_error(TENON(NULL, "tokenize", MODEL, "--decode", "--", "-1"), 4, "token id -1 is", NULL);
    static const char *const lists[] = {"1,x", "[1", "1]", "[1] 2", "1.5", "1-2", "99999999999999999999"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        process_expect_error(TENON(NULL, "tokenize", MODEL, "--decode", lists[i]), 2, "tenon: tokenize: ", NULL);
}
END_TEST

/* ---- run -------------------------------------------------------------------------------------------- */

START_TEST(run_continues_as_expected)
{
    json_t *all = expected(), *prompt;
    size_t i;
    json_array_foreach (json_object_get(all, "greedy"), i, prompt) {
        process_result r = TENON(NULL, "run", "--temperature=0", MODEL, printed_string(prompt, "prompt"), "-n", "48",
                                 "--dtype=f32", "--kernels=none", "--json");
        json_t *run = printed_json(&r, 0);
        ck_assert(json_equal(json_object_get(run, "tokens"), json_object_get(prompt, "greedy_ids")));
        ck_assert_str_eq(printed_string(run, "text"), printed_string(prompt, "greedy_text"));
        ck_assert(json_equal(json_object_get(run, "prompt_ids"), json_object_get(prompt, "prompt_ids")));
        ck_assert(printed_number(run, "prompt_tokens") ==
                  (double)json_array_size(json_object_get(prompt, "prompt_ids")));
        ck_assert_str_eq(printed_string(run, "stop"), "length");
        const json_t *timings = json_object_get(run, "timings");
        ck_assert(printed_number(timings, "prompt_seconds") > 0 && printed_number(timings, "decode_seconds") > 0);
        ck_assert(printed_number(timings, "load_seconds") >= 0 &&
                  printed_number(timings, "decode_tokens_per_second") > 0);
        ck_assert_str_eq(printed_string(json_object_get(run, "kernels"), "spec"), "none");
    }
    ck_assert_uint_gt(i, 0);
    json_decref(all);
}
END_TEST

/* What the first n tokens of the first expected continuation say, and a line end. Owned. */
static char *continuation(const char *n)
{
    process_result r =
        TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n", n, "--dtype=f32", "--kernels=none", "--json");
    json_t *run = printed_json(&r, 0);
    size_t length = strlen(printed_string(run, "text"));
    char *line = malloc(length + 2);
    ck_assert_ptr_nonnull(line);
    snprintf(line, length + 2, "%s\n", printed_string(run, "text"));
    return line;
}

START_TEST(run_takes_arguments_in_any_form)
{
    char *line = continuation("9");
    ck_assert_str_eq(line, ", when the LORD had spoken unto Moses,\n");
    process_expect_output(
        TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n9", "--dtype", "f32", "--kernels", "none"), line);
    process_expect_output(TENON(NULL, "run", "--temperature=0", "--max-tokens=9", MODEL, "--dtype=f32", "--", PROMPT),
                          line);
    process_expect_output(TENON(NULL, "--dtype=f32", "-n", "9", "run", "--temperature=0", MODEL, PROMPT), line);
    process_expect_output(TENON(NULL, "--kernels=auto", MODEL, PROMPT, "--temperature=0", "-n", "9", "--dtype=f32"),
                          line);
    process_expect_output(TENON(NULL, MODEL, PROMPT, "--temperature=0", "-n", "9", "--dtype=f32", "--threads=2"), line);
    process_expect_output(TENON(PROMPT, "run", "--temperature=0", MODEL, "-", "-n", "9", "--dtype=f32"), line);
    process_expect_output(
        TENON(NULL, "run", "--temperature=0", MODEL, "--tokens", PROMPT_IDS, "-n9", "--dtype=f32", "--chunk=2"), line);
    /* As llama.cpp has them. */
    process_expect_output(TENON(NULL, "-m", MODEL, "-p", PROMPT, "-n9", "--temp", "0", "--dtype=f32", "-t2", "-c14"),
                          line);
    process_expect_output(
        TENON(NULL, "run", PROMPT, "-m", MODEL, "--n-predict=9", "--ctx-size=14", "--temp=0", "--dtype=f32"), line);
    process_expect_output(
        TENON(NULL, "run", MODEL, "--repeat-penalty=1", "-p", PROMPT, "-n9", "--temp=0", "--dtype=f32"), line);
    free(line);
}
END_TEST

START_TEST(dtypes_have_the_names_of_others)
{
    static const char *const same[][2] = {{"--dtype=float32", "f32"},
                                          {"--dtype=torch.bfloat16", "bf16"},
                                          {"--dtype=half", "f16"},
                                          {"--dtype=auto", "bf16"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        process_result r = TENON(NULL, "run", MODEL, PROMPT, "-n1", "--kernels=none", "--json", same[i][0]);
        json_t *run = printed_json(&r, 0);
        ck_assert_str_eq(printed_string(run, "dtype"), same[i][1]);
    }
}
END_TEST

/* Kernels as ever, but unchecked: a busy machine, where a check cannot see all, is told of. */
#define UNCHECKED "--config", "tests/data/unchecked.json"

START_TEST(run_reports_on_stderr)
{
    process_result r = TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n", "4", "--kernels=none");
    ck_assert_int_eq(r.status, 0);
    ck_assert_msg(strncmp(r.err, "prompt: 5 tokens in ", 20) == 0, "%s", r.err);
    suite_expect_in(r.err, "; generated: 4 tokens in ");
    r = TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n", "1", "-q", UNCHECKED);
    ck_assert_int_eq(r.status, 0);
    ck_assert_str_eq(r.err, "");
    r = TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n", "1", "--verbose");
    ck_assert_int_eq(r.status, 0);
    suite_expect_in(r.err, "config: ");
    suite_expect_in(r.err, "model: Qwen3MoeForCausalLM, 4 layers, 2.8 million parameters, ");
}
END_TEST

START_TEST(run_samples_by_seed)
{
    process_result first = TENON(NULL, "run", MODEL, "Psalms", "-n12", "--temperature=0.9", "--top-k=40", "--seed=7");
    ck_assert_int_eq(first.status, 0);
    process_expect_output(TENON(NULL, "run", MODEL, "Psalms", "-n12", "--temperature=0.9", "--top-k=40", "--seed=7"),
                          first.out);
    process_result other = TENON(NULL, "run", MODEL, "Psalms", "-n12", "--temperature=0.9", "--top-k=40", "--seed=8");
    ck_assert_int_eq(other.status, 0);
    ck_assert_str_ne(first.out, other.out);
    /* In 16 bits two tokens may be equally likely, and the one best token be two. */
    process_result greedy = TENON(NULL, "run", "--temperature=0", MODEL, "Psalms", "-n12", "--dtype=f32");
    process_expect_output(TENON(NULL, "run", MODEL, "Psalms", "-n12", "--temperature=0.9", "--top-k=1", "--dtype=f32"),
                          greedy.out);
}
END_TEST

START_TEST(run_stops_where_the_context_ends)
{
    process_result r = TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "--context", "8", "--json");
    json_t *run = printed_json(&r, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(run, "tokens")), 4);
    ck_assert_str_eq(printed_string(run, "stop"), "context");
    r = TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n1", "--context=513", "--kernels=none");
    ck_assert_int_eq(r.status, 0);
    suite_expect_in(r.err, "tenon: warning: --context: 513 positions are more than the 512 that");
}
END_TEST

/* What generation_config.json of the model says, unless an option says otherwise. */
START_TEST(run_draws_as_the_model_says)
{
    process_result r = TENON(NULL, "run", MODEL, "Psalms", "-n12", "--seed=7", "--kernels=none");
    ck_assert_int_eq(r.status, 0);
    ck_assert_msg(
        strncmp(r.err, "sampling: temperature 0.7, top-k 40, top-p 0.95, as generation_config.json says\n", 80) == 0,
        "%s", r.err);
    process_expect_output(TENON(NULL, "run", MODEL, "Psalms", "-n12", "--seed=7", "--kernels=none", "--temperature=0.7",
                                "--top-k=40", "--top-p=0.95", "--threads=1", "--chunk=1"),
                          r.out);
    r = TENON(NULL, "run", MODEL, "Psalms", "-n1", "--kernels=none", "--temperature=1.5", "--top-k=0");
    suite_expect_in(r.err, "sampling: top-p 0.95, as generation_config.json says\n");
    r = TENON(NULL, "run", MODEL, "Psalms", "-n1", "--kernels=none", "--temperature=0", "--json");
    ck_assert_ptr_null(strstr(r.err, "sampling"));
    json_t *run = printed_json(&r, 0);
    ck_assert(printed_number(json_object_get(run, "sampling"), "temperature") == 0);
    ck_assert(printed_number(json_object_get(run, "sampling"), "repetition_penalty") == 1);
}
END_TEST

/* "when the LORD had spoken unto Moses,": tokens end inside of these texts, and nothing of them is printed. */
START_TEST(run_ends_before_a_stop_text)
{
    static const struct {
        const char *stop, *other, *text, *why;
    } stops[] = {{"LORD had", "xyz", ", when the ", "stop"},
                 {"xyz", "poken u", ", when the LORD had s", "stop"},
                 {"Moses, Go", "LORDS", ", when the LORD had spoken unto Moses,", "length"},
                 {",", "when", "", "stop"}};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        char line[64];
        process_result r = TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n9", "--dtype=f32", "--kernels=none",
                                 "--stop", stops[i].stop, "--stop", stops[i].other, "--json");
        json_t *run = printed_json(&r, 0);
        ck_assert_str_eq(printed_string(run, "text"), stops[i].text);
        ck_assert_str_eq(printed_string(run, "stop"), stops[i].why);
        snprintf(line, sizeof line, "%s\n", stops[i].text);
        process_expect_output(TENON(NULL, "run", "--temperature=0", MODEL, PROMPT, "-n9", "--dtype=f32",
                                    "--kernels=none", "--stop", stops[i].stop, "--stop", stops[i].other),
                              line);
    }
}
END_TEST

/* generation_config.json's texts end one, too: unless --stop names others, --ignore-eos wants to go on, or only ids are
 * printed, which is told. */
START_TEST(run_stops_where_the_model_says)
{
    static const char file[] = "{\"stop_strings\": [\"xyz\", \"poken u\"]}";
    char *folder = tempdir_new(), *path = tempdir_at(folder, "generation_config.json");
    tempdir_copy(MODEL, folder);
    tempdir_write(path, file, strlen(file));
    process_result r = TENON(NULL, "run", folder, PROMPT, "-n9", "--dtype=f32", "--kernels=none");
    ck_assert_str_eq(r.out, ", when the LORD had s\n");
    suite_expect_in(r.err, "stop: \"xyz\" and others, as generation_config.json says\n");
    process_expect_output(TENON(NULL, "run", folder, PROMPT, "-n9", "--dtype=f32", "--kernels=none", "--stop=LORD had"),
                          ", when the \n");
    r = TENON(NULL, "run", folder, PROMPT, "-n9", "--dtype=f32", "--kernels=none", "--ignore-eos");
    ck_assert_str_eq(r.out, ", when the LORD had spoken unto Moses,\n");
    ck_assert_ptr_null(strstr(r.err, "stop:"));
    char *tokenizer = tempdir_at(folder, "tokenizer.json");
    remove(tokenizer);
    r = TENON(NULL, "run", folder, "--tokens=" PROMPT_IDS, "-n5", "--dtype=f32", "--kernels=none");
    ck_assert_str_eq(r.out, "12 435 259 342 474\n");
    suite_expect_in(r.err, "tenon: warning: token ids are printed: the texts that");
}
END_TEST

/* A file is the prompt but for one line end; so is standard input. */
START_TEST(run_reads_a_file)
{
    char *line = continuation("9"), *folder = tempdir_new(), *path = tempdir_at(folder, "prompt");
    static const char *const ends[] = {"", "\n", "\r\n"};
    for (size_t i = 0; i < 3; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, PROMPT "%s", ends[i]);
        tempdir_write(path, prompt, strlen(prompt));
        process_expect_output(TENON(NULL, "run", "--temperature=0", MODEL, "--prompt-file", path, "-n9", "--dtype=f32"),
                              line);
        process_expect_output(
            TENON(prompt, "run", "--temperature=0", MODEL, "--prompt-file", "-", "-n9", "--dtype=f32"), line);
        process_expect_output(TENON(prompt, "run", "--temperature=0", MODEL, "-n9", "--dtype=f32"), line);
    }
    process_expect_error(TENON(NULL, "run", MODEL, "x", "--prompt-file", path), 2, "more than one of PROMPT", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--prompt-file", "/nonexistent/p"), 4, "/nonexistent/p",
                         "check the path", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--prompt-file", folder), 4, "cannot read", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--prompt-file", "/dev/zero"), 4, "has more than 64 MiB", NULL);
    tempdir_write(path, "\n", 1);
    process_expect_error(TENON(NULL, "run", MODEL, "--prompt-file", path), 4, "the prompt is empty", NULL);
    free(line);
}
END_TEST

START_TEST(run_refuses_wrong_prompts)
{
    process_expect_error(TENON(NULL, "run", MODEL, ""), 4, "prompt: the prompt is empty", NULL);
    process_expect_error(TENON("", "run", MODEL, "-"), 4, "the prompt is empty", NULL);
    process_expect_error(TENON("\n", "run", MODEL), 2, "no prompt given; write it behind MODEL or into standard input",
                         NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--tokens", ","), 4, "the prompt is empty", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, PROMPT, "--context=4"), 4,
                         "prompt: has 5 tokens, and the context holds 4", "raise --context", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--tokens=1,2048"), 4, "--tokens: token id 2048 is out of range",
                         NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--tokens=-1"), 4, "--tokens: token id -1 is out of range", NULL);
    size_t length;
    char *book = tempdir_read(MODEL "/heldout.txt", &length);
    process_expect_error(TENON(book, "run", MODEL, "-"), 4, "prompt: has 7143 tokens, and the model is made for 512; ",
                         "--context N", NULL);
    free(book);
}
END_TEST

/* A line from a pipe means the line, however it ends; only one end is taken away. */
START_TEST(standard_input_loses_one_final_newline)
{
    static const struct {
        const char *input, *as;
    } same[] = {{PROMPT "\n", PROMPT}, {PROMPT "\r\n", PROMPT}, {PROMPT, PROMPT}, {PROMPT "\n\n", PROMPT "\n"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        process_result want =
            TENON(NULL, "run", "--temperature=0", MODEL, same[i].as, "-n3", "--json", "--kernels=none");
        process_result got =
            TENON(same[i].input, "run", "--temperature=0", MODEL, "-", "-n3", "--json", "--kernels=none");
        json_t *a = printed_json(&want, 0), *b = printed_json(&got, 0);
        ck_assert(json_equal(json_object_get(a, "prompt_ids"), json_object_get(b, "prompt_ids")));
    }
    process_expect_error(TENON("\n", "run", MODEL, "-"), 4, "the prompt is empty", NULL);
}
END_TEST

#define TWENTY "1,5,9,2,11,3,7,4,6,8,1,5,9,2,11,3,7,4,6,8"

/* Their frequencies follow the length: 16 positions are where that begins and not where the model ends. */
START_TEST(dynamic_rotary_scaling_has_no_bound)
{
    static const char dynamic[] = "tests/data/models/llama_dynamic";
    process_result r = TENON(NULL, "run", "--temperature=0", dynamic, "--tokens", TWENTY, "-n", "20", "--ignore-eos",
                             "--json", UNCHECKED);
    ck_assert_ptr_null(process_warning(r.err));
    json_t *run = printed_json(&r, 0);
    ck_assert_str_eq(printed_string(run, "stop"), "length");
    ck_assert_uint_eq(json_array_size(json_object_get(run, "tokens")), 20);
    r = TENON(NULL, "bench", dynamic, "--prompt=40", "--decode=0", "--repeat=1", "--kernels=none");
    ck_assert_msg(r.status == 0, "%s", r.err);
}
END_TEST

/* A folder without tokenizer.json: ids in, ids out. */
START_TEST(run_works_on_ids_alone)
{
    char *folder = tempdir_new(), *tokenizer = tempdir_at(folder, "tokenizer.json");
    tempdir_copy(MODEL, folder);
    remove(tokenizer);
    process_expect_error(TENON(NULL, "run", folder, PROMPT), 4, "tokenizer.json", NULL);
    process_expect_output(
        TENON(NULL, "run", "--temperature=0", folder, "--tokens=" PROMPT_IDS, "-n5", "--dtype=f32", "--kernels=none"),
        "12 435 259 342 474\n");
    process_result r = TENON(NULL, "run", "--temperature=0", folder, "--tokens=" PROMPT_IDS, "-n5", "--json");
    json_t *run = printed_json(&r, 0);
    ck_assert(json_is_null(json_object_get(run, "text")));
    tempdir_write(tokenizer, "{", 1);
    r = TENON(NULL, "run", "--temperature=0", folder, "--tokens=" PROMPT_IDS, "-n5", "--dtype=f32", "--kernels=none");
    ck_assert_str_eq(r.out, "12 435 259 342 474\n");
    ck_assert_msg(strncmp(r.err, "tenon: warning: ", 16) == 0 && strstr(r.err, "tokenizer.json"), "%s", r.err);
    process_expect_error(TENON(NULL, "tokenize", folder, "x"), 4, "tokenizer.json", NULL);
}
END_TEST

/* ---- perplexity -------------------------------------------------------------------------------------- */

START_TEST(perplexity_is_reproduced)
{
    json_t *all = expected();
    const json_t *wanted = json_array_get(json_object_get(json_object_get(all, "heldout"), "results"), 0);
    process_result r =
        TENON(NULL, "perplexity", MODEL, MODEL "/heldout.txt", "--dtype=f32", "--kernels=none", "--json");
    json_t *got = printed_json(&r, 0);
    ck_assert(printed_number(got, "tokens") == 7144 &&
              printed_number(got, "context") == printed_number(wanted, "window"));
    ck_assert(printed_number(got, "tokens_predicted") == printed_number(wanted, "tokens_predicted"));
    /* The six figures of the model's README; evaluation orders of f32 differ by less. */
    ck_assert_double_eq_tol(printed_number(got, "perplexity"), printed_number(wanted, "perplexity"), 5e-5);
    ck_assert_double_eq_tol(exp(printed_number(got, "nll_mean")), printed_number(got, "perplexity"), 1e-6);
    json_decref(all);
}
END_TEST

START_TEST(perplexity_of_a_window_that_does_not_fit)
{
    process_result one = TENON(PROMPT, "perplexity", MODEL, "-", "--context=100", "--dtype=f32");
    ck_assert_msg(strncmp(one.out, "perplexity ", 11) == 0, "%s%s", one.out, one.err);
    ck_assert_ptr_nonnull(strstr(one.out, " (4 tokens predicted, windows of 100, f32)\n"));
    process_expect_error(TENON("a", "perplexity", MODEL, "-"), 4, "needs at least two", NULL);
    process_expect_error(TENON("", "perplexity", MODEL, "-"), 4, "the text has 0 tokens", NULL);
}
END_TEST

/* ---- logits ------------------------------------------------------------------------------------------- */

static void write_ids(const char *path, const char *name, tn_dtype dtype, int32_t ndim, void *data, int64_t tokens)
{
    int64_t shape[] = {1, tokens, 1};
    tn_named_tensor tensors[] = {{name, tn_tensor_dense(data, dtype, ndim, shape)}};
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_safetensors_write(path, tensors, 1, &err) == TN_OK, "%s", err.message);
}

START_TEST(logits_are_those_of_run)
{
    char *folder = tempdir_new(), *in = tempdir_at(folder, "in.safetensors"),
         *out = tempdir_at(folder, "out.safetensors");
    int32_t ids[] = {296, 354, 473, 290, 619};
    write_ids(in, "input_ids", TN_I32, 2, ids, 5);
    process_result r =
        TENON(NULL, "logits", MODEL, "--input", in, "--output", out, "--hidden", "--dtype=f32", "--kernels=none");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_str_eq(r.out, "");
    tn_safetensors *file = tn_safetensors_open(out, NULL);
    tn_tensor t;
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(tn_safetensors_count(file), 6);
    ck_assert(tn_safetensors_get(file, "hidden.0", &t) && tn_safetensors_get(file, "hidden.4", &t));
    ck_assert(t.dtype == TN_F32 && t.shape[0] == 1 && t.shape[1] == 5 && t.shape[2] == 192);
    ck_assert(tn_safetensors_get(file, "logits", &t));
    ck_assert(t.dtype == TN_F32 && t.ndim == 3 && t.shape[0] == 1 && t.shape[1] == 5 && t.shape[2] == 2048);
    json_t *all = expected();
    const json_t *top = json_object_get(json_array_get(json_object_get(all, "greedy"), 0), "first_step_top10"), *entry;
    size_t i;
    json_array_foreach (top, i, entry) {
        size_t id = (size_t)json_integer_value(json_array_get(entry, 0));
        double wanted = json_real_value(json_array_get(entry, 1));
        ck_assert_double_eq_tol(((const float *)t.data)[4 * 2048 + id], wanted, 1e-4);
    }
    ck_assert_uint_eq(i, 10);
    json_decref(all);
    tn_safetensors_close(file);
}
END_TEST

/* What a processor makes of pictures and sounds: a golden case's file has it beside what comes of it. */
START_TEST(logits_of_pictures_and_sounds)
{
    static const char *const models[] = {"qwen2_vl", "llava_next", "qwen2_5_omni_thinker", "qwen3_vl", "gemma4"};
    char in[300], model[256], *out = tempdir_at(tempdir_new(), "out.safetensors");
    tn_error err = TN_ERROR_INIT;
    tn_tensor made, wanted;
    snprintf(model, sizeof model, "tests/data/models/%s", models[_i]);
    snprintf(in, sizeof in, "%s/expected.safetensors", model);
    process_expect_output(TENON(NULL, "logits", model, "--input", in, "--output", out, "--dtype", "f32"), NULL);
    tn_safetensors *file = tn_safetensors_open(out, &err), *golden = tn_safetensors_open(in, &err);
    ck_assert(file && golden && tn_safetensors_get(file, "logits", &made));
    ck_assert(tn_safetensors_get(golden, "logits", &wanted));
    ck_assert_int_eq(tn_tensor_count(&made), tn_tensor_count(&wanted));
    for (int64_t i = 0; i < tn_tensor_count(&made); i++)
        ck_assert_float_eq_tol(((const float *)made.data)[i], ((const float *)wanted.data)[i], 1e-4f);
    tn_safetensors_close(file);
    tn_safetensors_close(golden);
}
END_TEST

#define SEEING "tests/data/models/qwen2_vl"
#define PHOTO "tests/data/media/files/exif6_100x60.jpg"

/* The template's one token becomes as many as the picture has rows: 60 by 100 pixels, upright, within 1024 as 24 by 40.
 */
START_TEST(run_sees_pictures)
{
    process_result r =
        TENON(NULL, "run", SEEING, "What is this", "--image", PHOTO, "-n4", "--temperature=0", "--json", UNCHECKED);
    process_result two = TENON(NULL, "run", SEEING, "What is this", "--image", PHOTO, "--image",
                               "tests/data/media/files/tiny_3x5.png", "-n4", "--temperature=0", "--json", UNCHECKED);
    json_t *one = printed_json(&r, 0), *both = printed_json(&two, 0), *id;
    size_t i, seen[2] = {0, 0};
    json_array_foreach (json_object_get(one, "prompt_ids"), i, id)
        seen[0] += json_integer_value(id) == 5;
    json_array_foreach (json_object_get(both, "prompt_ids"), i, id)
        seen[1] += json_integer_value(id) == 5;
    ck_assert_uint_eq(seen[0], 24 / 8 * 40 / 8);
    ck_assert_uint_gt(seen[1], seen[0]);
    ck_assert_int_eq(json_integer_value(json_object_get(one, "generated_tokens")), 4);
}
END_TEST

START_TEST(run_refuses_pictures)
{
    static const struct {
        const char *model, *image, *with, *value, *says;
    } bad[] = {{"models/demo", PHOTO, "-n", "1", "sees none; leave them out"},
               {SEEING, "README.md", "-n", "1", "README.md: is no PNG, JPEG or WebP file"},
               {SEEING, "tests/data/media/files/none.png", "-n", "1", "none.png"},
               {SEEING, "tests/data/media/files/flat_260x1.png", "-n", "1", "one side may be 200 times the other"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        process_expect_error(
            TENON(NULL, "run", bad[i].model, "x", "--image", bad[i].image, bad[i].with, bad[i].value, "-q"), 4,
            bad[i].says, NULL);
    process_expect_error(TENON(NULL, "run", SEEING, "--tokens", "1,5", "--image", PHOTO), 2,
                         "--image goes with a prompt", NULL);
}
END_TEST

START_TEST(pictures_for_a_model_of_text)
{
    static const char in[] = "tests/data/models/qwen2_vl/expected.safetensors";
    char *out = tempdir_at(tempdir_new(), "out");
    process_expect_error(TENON(NULL, "-q", "logits", "tests/data/models/llama", "--input", in, "--output", out), 4,
                         "the model has no tokens for images; leave them out", NULL);
    ck_assert(!tempdir_exists(out));
}
END_TEST

START_TEST(logits_refuses_wrong_input)
{
    char *folder = tempdir_new(), *in = tempdir_at(folder, "in.safetensors"), *out = tempdir_at(folder, "out");
    int64_t ids[] = {296, 2048};
    float pixels[] = {0, 0};
#define REFUSED(...) process_expect_error(TENON(NULL, "logits", MODEL, "--input", in, "--output", out), 4, __VA_ARGS__)
    REFUSED(in, NULL);
    write_ids(in, "input_ids", TN_I64, 2, ids, 2);
    REFUSED(in, "token id 2048 is out of range", NULL);
    write_ids(in, "input_ids", TN_I64, 1, ids, 1);
    REFUSED("input_ids: has 1 dimensions", NULL);
    write_ids(in, "input_ids", TN_F32, 2, pixels, 2);
    REFUSED("input_ids: the type is f32; store it as i64 or i32", NULL);
    write_ids(in, "pixel_values", TN_F32, 2, pixels, 2);
    REFUSED("holds no tensor input_ids", NULL);
    write_ids(in, "ids", TN_I64, 2, ids, 2);
    REFUSED("holds no tensor input_ids", NULL);
    tempdir_write(in, "12345678", 8);
    REFUSED(in, NULL);
#undef REFUSED
    ck_assert(!tempdir_exists(out));
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: text", 600); /* process.c has its own limit, which says more                  */
    suite_add(all, tokenize_gives_the_ids, tokenize_decodes, run_continues_as_expected, run_takes_arguments_in_any_form,
              dtypes_have_the_names_of_others, run_reports_on_stderr, run_samples_by_seed,
              run_stops_where_the_context_ends, run_draws_as_the_model_says, run_ends_before_a_stop_text,
              run_stops_where_the_model_says, run_reads_a_file, run_refuses_wrong_prompts, run_works_on_ids_alone,
              standard_input_loses_one_final_newline, dynamic_rotary_scaling_has_no_bound, perplexity_is_reproduced,
              perplexity_of_a_window_that_does_not_fit, logits_are_those_of_run, logits_refuses_wrong_input,
              pictures_for_a_model_of_text, run_sees_pictures, run_refuses_pictures);
    tcase_add_loop_test(all, logits_of_pictures_and_sounds, 0, 4);
    return process_main();
}
