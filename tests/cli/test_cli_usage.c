/* The command line's help, its arguments, and what it says about wrong ones. Needs no model. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static const char *const names[] = {"run",    "kernels",  "check",      "inspect",  "verify",
                                    "logits", "bench",    "perplexity", "tokenize", "chat",
                                    "cache",  "quantize", "embed",      "train",    "merge"};
enum { NAMES = sizeof names / sizeof *names };

/* ---- help ------------------------------------------------------------------------------------- */

static void expect_help(process_result r, const char *first, const char *const *words)
{
    ck_assert_int_eq(r.status, 0);
    ck_assert_str_eq(r.err, "");
    ck_assert_int_eq(strncmp(r.out, first, strlen(first)), 0);
    for (; *words; words++)
        ck_assert_msg(strstr(r.out, *words), "'%s' is not in: %s", *words, r.out);
    for (const char *line = r.out; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 112, "too wide: %.120s", line);
}

START_TEST(program_help_lists_every_command)
{
    const char *const words[] = {
        "run ",       "chat ",  "kernels ",    "check ",    "inspect ",   "verify ",
        "logits ",    "bench ", "perplexity ", "tokenize ", "cache ",     "quantize ",
        "embed ",     "train ", "merge ",      "--config ", "--threads ", "Exit status: 0 done; 1 internal; 2 usage; 3",
        "example:\n", NULL};
    expect_help(TENON(NULL, "--help"), "usage: tenon COMMAND", words);
    expect_help(TENON(NULL, "-h"), "usage: tenon COMMAND", words);
    expect_help(TENON(NULL, "help"), "usage: tenon COMMAND", words);
    expect_help(TENON(NULL, "--kernels=auto", "--help"), "usage: tenon COMMAND", words);
}
END_TEST

START_TEST(command_help_shows_an_example)
{
    const char *name = names[_i];
    char first[64], example[64];
    const char *const words[] = {"\nexample:\n", example, "common options:\n", "--plugins DIR", "--only-plugins DIR",
                                 "--quiet",      NULL};
    snprintf(first, sizeof first, "usage: tenon %s ", name);
    snprintf(example, sizeof example, "  tenon %s ", name);
    if (strcmp(name, "run") == 0)
        strcpy(example, "tenon run models/demo ");
    expect_help(TENON(NULL, name, "--help"), first, words);
    expect_help(TENON(NULL, name, "some", "-h"), first, words);
    expect_help(TENON(NULL, "help", name), first, words);
    expect_help(TENON(NULL, "--verbose", name, "--help"), first, words);
}
END_TEST

START_TEST(version_is_printed)
{
    static const char *const lines[][4] = {
        {"--version"}, {"run", "--version"}, {"-V"}, {"version"}, {"--threads", "1", "-V"}};
    char want[512] = "tenon " TN_VERSION "\n";
    if (tn_trial_unfiltered()) /* which is a line more; test_cli_kernels looks at it                          */
        snprintf(want, sizeof want, "tenon " TN_VERSION "\nplugins are tried without a filter of system calls: %s\n",
                 tn_trial_unfiltered());
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        process_expect_output(process_run(NULL, lines[i]), want);
}
END_TEST

/* ---- wrong arguments ---------------------------------------------------------------------------- */

START_TEST(nothing_given_prints_the_usage)
{
    process_result r = TENON(NULL, "--kernels=auto");
    ck_assert_int_eq(r.status, 2);
    ck_assert_str_eq(r.out, "");
    suite_expect_in(r.err, "usage: tenon COMMAND");
    suite_expect_in(r.err, "\ntenon: no command and no model given; ");
    r = TENON(NULL, "-p", "And");
    ck_assert_int_eq(r.status, 2);
    suite_expect_in(r.err, "\ntenon: no command and no model given; ");
    r = process_run(NULL, (const char *const[]){NULL});
    ck_assert_int_eq(r.status, 2);
    suite_expect_in(r.err, "usage: tenon COMMAND");
}
END_TEST

typedef struct wrong_line {
    const char *arguments[8]; /* NULL ends them                                                 */
    const char *says;
} wrong_line;

static const wrong_line wrong_lines[] = {
    {{"kernles"}, "tenon: unknown command 'kernles'; did you mean 'tenon kernels'?"},
    {{"perp"}, "did you mean 'tenon perplexity'?"},
    {{"frobnicate"}, "unknown command 'frobnicate'; see tenon --help"},
    {{"help", "toknize"}, "did you mean 'tenon tokenize'?"},
    {{"run", "m", "p", "--kernles=auto"}, "tenon: run: unknown option '--kernles'; did you mean '--kernels'?"},
    {{"run", "m", "p", "--penalty=2"}, "unknown option '--penalty'; did you mean '--repetition-penalty'?"},
    {{"--nonsense"}, "tenon: unknown option '--nonsense'; see tenon --help"},
    {{"-x"}, "tenon: unknown option '-x'; see tenon --help"},
    {{"--kernles=auto"}, "unknown option '--kernles'; did you mean '--kernels'? see tenon --help"},
    {{"--threads=0"}, "tenon: --threads: 0 is out of range"},
    {{"vershion"}, "did you mean 'tenon version'?"},
    {{"run", "m", "p", "--explain"}, "'--explain', which belongs to tenon inspect; see tenon run --help"},
    {{"run", "m", "p", "--wibble"}, "unknown option '--wibble'; see tenon run --help"},
    {{"run", "m", "p", "-x"}, "unknown option '-x'"},
    {{"kernels", "--temperature", "1"}, "tenon: kernels: unknown option '--temperature'"},
    {{"check"}, "tenon: check: no plugin given; usage: tenon check FILE.so"},
    {{"check", "p.so", "--site=0"}, "--site: 0 is out of range; give 1 to "},
    {{"run"}, "tenon: run: no model given; usage: tenon run MODEL"},
    {{"run", "m"}, "tenon: run: no prompt given; "},
    {{"run", "m", "p", "--tokens", "1"}, "more than one of PROMPT, --prompt-file, --messages and --tokens given"},
    {{"run", "m", "p", "q"}, "unexpected argument 'q'; usage: tenon run"},
    {{"run", "m", "p", "-m", "q"}, "unexpected argument 'p'; usage: tenon run"},
    {{"run", "m", "p", "-p", "q"}, "unexpected argument 'p'; usage: tenon run"},
    {{"run", "-p", "q"}, "tenon: run: no model given; usage: tenon run MODEL"},
    {{"run", "m", "p", "-n"}, "-n needs a value; give N"},
    {{"run", "m", "p", "-n", "0"}, "--max-tokens: 0 is out of range; give 1 to "},
    {{"run", "m", "p", "-nx"}, "--max-tokens: 'x' is not a whole number"},
    {{"run", "m", "p", "--max-tokens=1.5"}, "'1.5' is not a whole number"},
    {{"run", "m", "p", "--max-tokens=99999999999999999999"}, "out of range"},
    {{"run", "m", "p", "--temperature", "-1"}, "--temperature: -1 is out of range; give 0 to 100"},
    {{"run", "m", "p", "--temperature=nan"}, "--temperature: nan is out of range"},
    {{"run", "m", "p", "--top-p=2"}, "--top-p: 2 is out of range; give 0 to 1"},
    {{"run", "m", "p", "--dtype=f99"}, "--dtype: unknown value 'f99'; choose auto|f32|bf16|f16"},
    {{"run", "m", "p", "--dtype=torch.int8"}, "--dtype: unknown value 'torch.int8'; choose auto|f32|bf16|f16"},
    {{"run", "m", "p", "--threads=0"}, "--threads: 0 is out of range; give 1 to 1024"},
    {{"run", "m", "p", "--quiet=1"}, "--quiet takes no value"},
    {{"run", "m", "p", "--config="}, "--config: the value is empty"},
    {{"inspect", "m", "--format", "png"}, "choose text|json|dot|svg"},
    {{"logits", "m", "--output", "/tmp/x"}, "no input file given; add --input FILE.safetensors"},
    {{"logits", "m", "--input", "x"}, "no output file given"},
    {{"perplexity", "m"}, "MODEL and FILE are needed; usage: tenon perplexity MODEL FILE"},
    {{"merge", "m", "a"}, "MODEL, ADAPTER and OUT are needed; usage: tenon merge MODEL ADAPTER OUT"},
    {{"quantize", "m"}, "MODEL and OUT are needed; usage: tenon quantize MODEL OUT --type TYPE [--imatrix FILE]"},
    {{"quantize", "m", "o"}, "tenon: quantize: --type is needed; see tenon quantize --help"},
    {{"quantize", "m", "o", "--type=Q4_0"}, "tenon: quantize: o: the file's name must end in .gguf"},
    {{"quantize", "m", "o", "--type=Q4"},
     "--type: unknown value 'Q4'; choose Q8_0|Q6_K|Q5_K_M|Q4_K_M|Q4_0|IQ4_NL|MXFP4|FP8"},
    {{"tokenize", "m", "1", "--decode=2"}, "given twice"},
    {{"--threads", "1", "kernles"}, "no prompt given"}, /* a model may have any name */
};

START_TEST(wrong_arguments_are_usage_errors)
{
    const wrong_line *w = &wrong_lines[_i];
    process_expect_error(process_run(NULL, w->arguments), 2, w->says, NULL);
}
END_TEST

/* ---- what is read before any model ---------------------------------------------------------------- */

START_TEST(folders_and_files_that_are_not_there)
{
    process_expect_error(TENON(NULL, "run", "/nonexistent/model", "x"), 4, "/nonexistent/model: ", NULL);
    process_expect_error(TENON(NULL, "/nonexistent/model", "x"), 4, "/nonexistent/model: ", NULL);
    process_expect_error(TENON(NULL, "tokenize", "/nonexistent/model", "x"), 4, "/nonexistent/model", NULL);
    process_expect_error(TENON(NULL, "perplexity", "m", "/nonexistent/text"), 4,
                         "/nonexistent/text: cannot open: No such", NULL);
    process_expect_error(TENON(NULL, "perplexity", "m", "/tmp"), 4, "tenon: /tmp: cannot read: Is a directory; ", NULL);
    process_expect_error(TENON(NULL, "run", "m", "x", "--plugins", "/nonexistent/p"), 3,
                         "tenon: /nonexistent/p: no such plugin folder", NULL);
    process_expect_error(TENON(NULL, "run", "m", "x", "--only-plugins", "/dev/null"), 3, "/dev/null: is not a folder",
                         NULL);
    process_expect_error(TENON(NULL, "kernels", "--config", "/nonexistent/c.json"), 3, "/nonexistent/c.json", NULL);
    process_expect_error(TENON(NULL, "logits", "m", "--input=i", "--output=/nonexistent/o"), 4,
                         "cannot write to folder '/nonexistent'", NULL);
    process_expect_error(TENON(NULL, "logits", "m", "--input=i", "--output=/tmp"), 4, "/tmp: is a folder", NULL);
}
END_TEST

START_TEST(a_missing_model_says_how_to_get_one)
{
    static const char hub[] = "; fetch it: hf download Qwen/Qwen3-0.6B\n";
    static const char plain[] =
        "no such folder; a model is a folder with config.json, *.safetensors and tokenizer.json";
    process_expect_error(TENON(NULL, "Qwen/Qwen3-0.6B", "hello"), 4, hub, NULL);
    process_expect_error(TENON(NULL, "run", "Qwen/Qwen3-0.6B", "hello"), 4, hub, NULL);
    process_expect_error(TENON(NULL, "inspect", "Qwen/Qwen3-0.6B"), 4, hub, NULL);
    process_expect_error(TENON(NULL, "tokenize", "Qwen/Qwen3-0.6B", "hello"), 4, hub, NULL);
    process_expect_error(TENON(NULL, "perplexity", "Qwen/Qwen3-0.6B", "README.md"), 4, hub, NULL);
    process_expect_error(TENON(NULL, "verify", "no-such-model"), 4, "; fetch it: hf download no-such-model\n", NULL);
    process_expect_error(TENON(NULL, "verify", "/nonexistent/model"), 4, plain, "fetched with hf download\n", NULL);
    process_expect_error(TENON(NULL, "run", "/nonexistent/model", "x"), 4, plain, NULL);
    process_expect_error(TENON(NULL, "run", "a/b/c", "x"), 4, plain, NULL);
    process_expect_error(TENON(NULL, "run", "./b", "x"), 4, plain, NULL);
    char *folder = tempdir_new();
    static const char itself[] = "; give the folder of a checkpoint itself";
    process_expect_error(TENON(NULL, "run", folder, "x"), 4, folder,
                         "/config.json: is not there, nor is tokenizer.json", itself, NULL);
    process_expect_error(TENON(NULL, "tokenize", folder, "x"), 4, folder,
                         "/tokenizer.json: is not there, nor is config.json", itself, NULL);
    process_expect_error(TENON(NULL, "chat", folder), 4, "/tokenizer.json: is not there, nor is ", itself, NULL);
    char *config = tempdir_at(folder, "config.json");
    tempdir_write(config, "{\"model_type\": \"lama\"}", 22);
    process_expect_error(TENON(NULL, "inspect", folder), 4,
                         "model_type 'lama' is not supported, the nearest that is known is 'llama'; docs/models.md",
                         NULL);
}
END_TEST

START_TEST(more_threads_than_processors_are_warned_about)
{
    process_result r = TENON(NULL, "run", "models/demo", "x", "-n1", "--threads=1000", "--kernels=none");
    ck_assert_int_eq(r.status, 0);
    suite_expect_in(r.err, "tenon: warning: --threads: 1000 are more than the ");
    suite_expect_in(r.err, " are made, and they wait for each other\n");
    r = TENON(NULL, "run", "models/demo", "x", "-n1", "--threads=1", "--kernels=none");
    ck_assert_ptr_null(strstr(r.err, "--threads"));
}
END_TEST

/* Kernels do not decline for the scratch of a thousand, and compute the same. */
START_TEST(more_threads_than_serve_change_nothing)
{
    char *folder = tempdir_new(), *config = tempdir_at(folder, "kernels.json");
    const char *const threads[] = {"--threads=2", "--threads=1000"};
    char *tree[2], *words[2];
    tempdir_write(config, "{\"verify\": \"never\"}", 19);
    for (int i = 0; i < 2; i++) {
        process_result r = TENON(NULL, "inspect", "models/demo", "--explain", "--config", config, threads[i]);
        ck_assert_msg(r.status == 0 && !strstr(r.out, "bytes of scratch"), "%s%s", r.err, r.out);
        tree[i] = r.out;
        r = TENON(NULL, "run", "models/demo", "And", "-n8", "--temperature=0", "-v", "--config", config, threads[i]);
        ck_assert_msg(r.status == 0 && strstr(r.err, "nothing is left to eager"), "%s", r.err);
        words[i] = r.out;
    }
    ck_assert_str_eq(tree[0], tree[1]);
    ck_assert_str_eq(words[0], words[1]);
}
END_TEST

START_TEST(a_wrong_configuration_names_its_key)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "kernels.json");
    tempdir_write(path, "{\"plugin\": []}", 14);
    process_expect_error(TENON(NULL, "kernels", "--config", path), 3, "plugin", "plugins", NULL);
    setenv("TENON_CONFIG", path, 1);
    process_expect_error(TENON(NULL, "kernels"), 3, path, NULL);
    tempdir_write(path, "{\"plugins\": [", 13);
    process_expect_error(TENON(NULL, "kernels"), 3, path, NULL);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: usage", 0);
    tcase_add_loop_test(all, command_help_shows_an_example, 0, NAMES);
    tcase_add_loop_test(all, wrong_arguments_are_usage_errors, 0, (int)(sizeof wrong_lines / sizeof *wrong_lines));
    suite_add(all, program_help_lists_every_command, version_is_printed, nothing_given_prints_the_usage,
              folders_and_files_that_are_not_there, a_missing_model_says_how_to_get_one,
              more_threads_than_processors_are_warned_about, more_threads_than_serve_change_nothing,
              a_wrong_configuration_names_its_key);
    return process_main();
}
