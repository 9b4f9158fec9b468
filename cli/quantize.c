/* tenon quantize: a checkpoint in fewer bits. */
#include "cli.h"
#include "stop.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FEWEST = 128 }; /* tokens, as tn_quantize has it                                                   */

typedef struct quantize_run {
    progress bar;
    bool listed, weighed;
    int64_t values, bytes, unreached;
    table rows;
} quantize_run;

/* Where a signal is looked at: what has been written beside OUT goes first. */
static int show_progress(void *ctx, const char *what, int64_t done, int64_t total)
{
    quantize_run *r = ctx;
    progress_update(&r->bar, what, done, total);
    return stop_asked() != 0;
}

static void add_error(quantize_run *r, double error)
{
    if (error > 0)
        table_cell(&r->rows, "%.3f %%", error * 100);
    else
        table_cell(&r->rows, "%s", "");
}

static void add_tensor(void *ctx, const tn_quantized *t)
{
    quantize_run *r = ctx;
    char size[32];
    r->values += t->values;
    r->bytes += t->bytes;
    r->unreached += t->unreached;
    if (!r->listed)
        return;
    table_cell(&r->rows, "%s", t->name);
    table_cell(&r->rows, "%s", tn_dtype_name(t->from));
    table_cell(&r->rows, "%s", tn_dtype_name(t->to));
    table_cell(&r->rows, "%s", bytes_text((double)t->bytes, size));
    add_error(r, t->error);
    if (r->weighed)
        add_error(r, t->weighed);
}

static const char *text_name(const options *o)
{
    return strcmp(o->text[OPT_IMATRIX], "-") ? o->text[OPT_IMATRIX] : "standard input";
}

/* The tokens of --imatrix. A file of another program's, which is no text, is not taken for one. */
static tn_status read_text(const options *o, int64_t **ids, size_t *count, tn_error *err)
{
    const char *path = o->text[OPT_IMATRIX], *where = text_name(o);
    char *text = NULL;
    size_t length = 0;
    tn_status status = read_all(path, &text, &length, err);
    json_t *valid = status == TN_OK ? json_stringn(text, length) : NULL;
    if (status == TN_OK && !valid)
        status = json_lost() ? tn_fail(err, TN_E_MEMORY, where, "the text is too large for memory; split it")
                             : tn_fail(err, TN_E_INPUT, where, "is not UTF-8; give a text in that encoding");
    json_decref(valid);
    if (status == TN_OK)
        status = text_ids(o->argument[0], text, length, ids, count, err);
    free(text);
    if (status != TN_OK || *count >= FEWEST)
        return status;
    free(*ids);
    *ids = NULL;
    return tn_fail(err, TN_E_INPUT, where, "the text has %zu tokens; --imatrix needs at least %d; give a longer one",
                   *count, FEWEST);
}

static tn_status run_quantize(const options *o, tn_error *err)
{
    static const char *const titles[] = {"TENSOR", "FROM", "TO", "SIZE", "RMS ERROR", "WEIGHED"};
    quantize_run r = {.listed = !option_given(o, OPT_QUIET), .weighed = option_given(o, OPT_IMATRIX)};
    size_t columns = sizeof titles / sizeof *titles - !r.weighed, count = 0;
    int64_t *ids = NULL;
    char size[32];
    tn_quantize_options q = {.size = sizeof q,
                             .threads = (int32_t)option_integer(o, OPT_THREADS, 0),
                             .progress = show_progress,
                             .tensor = add_tensor,
                             .ctx = &r};
    const char *type = option_text(o, OPT_TYPE, NULL);
    if (!type)
        return tn_fail(err, TN_E_USAGE, "quantize", "--type is needed; see tenon quantize --help");
    if (strcasecmp(type, "FP8") != 0 && !is_gguf(o->argument[1])) /* no program would take it for what it is */
        return tn_fail(err, TN_E_USAGE, "quantize", "%s: the file's name must end in .gguf", o->argument[1]);
    if (r.weighed && read_text(o, &ids, &count, err) != TN_OK)
        return err->code;
    q.ids = ids;
    q.id_count = (int64_t)count;
    table_start(&r.rows, columns, 6);
    for (size_t i = 0; i < columns; i++)
        table_cell(&r.rows, "%s", titles[i]);
    stop_listen();
    progress_start(&r.bar, o);
    tn_status status = tn_quantize(o->argument[0], o->argument[1], type, &q, err);
    progress_clear(&r.bar);
    free(ids);
    if (status == TN_E_CANCELLED && stop_asked())
        raise(stop_asked());
    if (status == TN_OK && r.listed)
        status = table_print(&r.rows, err);
    else
        table_free(&r.rows);
    if (status == TN_OK && r.unreached > 0)
        printf("%lld matrices of experts were reached by no token of %s: their columns count alike\n",
               (long long)r.unreached, text_name(o));
    if (status == TN_OK)
        printf("%s: %s, %.2f bits per value\n", o->argument[1], bytes_text((double)r.bytes, size),
               r.values ? (double)r.bytes * 8 / (double)r.values : 0);
    return status;
}

static const option_spec own_options[] = {
    {OPT_TYPE, "type", "Q8_0|Q6_K|Q5_K_M|Q4_K_M|Q4_0|IQ4_NL|MXFP4|FP8", 0, OPTION_CHOICE, 0, 0,
     "what most matrices become; needed"},
    {OPT_IMATRIX, "imatrix", "FILE", 0, OPTION_TEXT, 0, 0,
     "a text, - for standard input: columns that it makes large are rounded with care"},
};

const command command_quantize = {
    .name = "quantize",
    .arguments = "MODEL OUT --type TYPE [--imatrix FILE]",
    .summary = "Writes MODEL in fewer bits: with its tokenizer as one .gguf file, or with --type FP8 as a folder.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 2,
    .max_arguments = 2,
    .missing = "MODEL and OUT are needed",
    .notes =
        "Each tensor gets the type that files of that name have: in Q4_K_M and Q5_K_M some get more bits, norms and\n"
        "routers stay as they are. The error is that of a tensor's values, in hundredths of their root mean square.\n"
        "FP8 makes a folder of one in safetensors: matrices of layers are E4M3 with a scale for each 128 by 128 "
        "values.\n"
        "With --imatrix the model reads a text first, at least 128 tokens, better 100,000, and how large each column "
        "of a\n"
        "matrix finds its input there (its mean square) is how much what the values are off by counts: WEIGHED is "
        "that\n"
        "error. It is no imatrix file of other programs. Q8_0 and FP8 are too fine for it.\n"
        "What is written appears when all of it is there. MODEL may be anything that runs, a .gguf too.",
    .example = "  tenon quantize models/demo demo.gguf --type Q4_K_M\n"
               "  tenon perplexity demo.gguf models/demo/heldout.txt",
    .run = run_quantize,
};
