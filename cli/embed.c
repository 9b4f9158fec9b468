/* tenon embed: the vectors of texts, as sentence-transformers makes them of a model. */
#include "cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Texts that are computed before their vectors are written. */
#define TOGETHER 64

typedef struct text {
    const char *at;
    size_t length;
    int64_t *ids; /* owned                                                                       */
    size_t count;
} text;

typedef struct embed_state {
    workspace w;
    tn_tokenizer *tokenizer;
    tn_embedder *embedder;
    tn_embedder_info info;
    const char *prompt; /* what stands before each text                                          */
    int64_t *prompt_ids;
    size_t prompt_count;
    char *input; /* standard input, in which texts are lines                                     */
    text *texts;
    size_t count;
    int64_t *ids, *mask; /* [TOGETHER, tokens of the longest text]                               */
    float *vectors;      /* [TOGETHER, width], or of all texts for a file                        */
    int64_t longest;
} embed_state;

/* ---- texts ------------------------------------------------------------------------------------- */

static tn_status take_arguments(const options *o, embed_state *s, tn_error *err)
{
    s->count = (size_t)o->argument_count - 1;
    s->texts = calloc(s->count + 1, sizeof *s->texts);
    for (size_t i = 0; s->texts && i < s->count; i++)
        s->texts[i] = (text){.at = o->argument[i + 1], .length = strlen(o->argument[i + 1])};
    return s->texts ? TN_OK : tn_fail(err, TN_E_MEMORY, "embed", "out of memory; close other programs");
}

/* Each line is a text; what follows the last line end is one unless it is empty. */
static tn_status take_lines(embed_state *s, tn_error *err)
{
    size_t length = 0, lines = 1;
    tn_status status = read_all("-", &s->input, &length, err);
    if (status)
        return status;
    for (size_t i = 0; i < length; i++)
        lines += s->input[i] == '\n';
    s->texts = calloc(lines + 1, sizeof *s->texts);
    if (!s->texts)
        return tn_fail(err, TN_E_MEMORY, "standard input", "out of memory; split it");
    for (size_t at = 0; at < length;) {
        const char *end = memchr(s->input + at, '\n', length - at);
        size_t size = end ? (size_t)(end - s->input) - at : length - at;
        s->texts[s->count++] = (text){.at = s->input + at, .length = size};
        at += size + 1;
    }
    return s->count ? TN_OK : tn_fail(err, TN_E_INPUT, "standard input", "is empty; give a text in each line");
}

static tn_status take_texts(const options *o, embed_state *s, tn_error *err)
{
    if (o->argument_count > 1)
        return take_arguments(o, s, err);
    if (isatty(STDIN_FILENO))
        return tn_fail(err, TN_E_USAGE, "embed", "no text given; write texts behind MODEL, or pipe lines of text");
    return take_lines(s, err);
}

/* Prompt and text without ASCII white space around. */
static tn_status encode(embed_state *s, size_t i, tn_error *err)
{
    static const char white[] = " \t\r\n\v\f";
    text *t = &s->texts[i];
    size_t before = strlen(s->prompt), length = before + t->length;
    char *whole = malloc(length + 1), *from = whole;
    if (!whole)
        return tn_fail(err, TN_E_MEMORY, "embed", "out of memory; close other programs");
    memcpy(whole, s->prompt, before);
    memcpy(whole + before, t->at, t->length);
    for (; length > 0 && memchr(white, *from, sizeof white - 1); length--)
        from++;
    while (length > 0 && memchr(white, from[length - 1], sizeof white - 1))
        length--;
    tn_status status = tn_tokenizer_encode(s->tokenizer, from, length, true, &t->ids, &t->count, err);
    free(whole);
    if (status == TN_OK && s->info.max_tokens > 0 && t->count > (size_t)s->info.max_tokens)
        status = tn_fail(err, TN_E_INPUT, "embed", "text %zu has %zu tokens, the model takes at most %lld; shorten it",
                         i, t->count, (long long)s->info.max_tokens);
    s->longest = (int64_t)t->count > s->longest ? (int64_t)t->count : s->longest;
    return status;
}

/* ---- vectors ------------------------------------------------------------------------------------- */

/* How many of a text's first tokens are those of the prompt: a special one at its end is not among them. */
static int64_t prompt_of(const embed_state *s, const text *t)
{
    size_t n = 0;
    while (n < s->prompt_count && n < t->count && t->ids[n] == s->prompt_ids[n])
        n++;
    return (int64_t)n;
}

static tn_status embed_some(embed_state *s, size_t first, size_t count, int64_t prompt, float *out, tn_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const text *t = &s->texts[first + i];
        for (int64_t j = 0; j < s->longest; j++) {
            bool real = j < (int64_t)t->count;
            s->ids[(int64_t)i * s->longest + j] = real ? t->ids[j] : 0;
            s->mask[(int64_t)i * s->longest + j] = real;
        }
    }
    tn_batch batch = {
        .size = sizeof batch, .rows = (int64_t)count, .tokens = s->longest, .ids = s->ids, .mask = s->mask};
    tn_status status = tn_embed(s->embedder, &batch, prompt, out, err);
    if (status == TN_OK || first == 0)
        return status;
    tn_error of = *err; /* which counts from the first of these texts                                */
    return tn_fail(err, status, "embed", "behind the first %zu texts: %s", first, of.message);
}

static tn_status print_vector(const options *o, const embed_state *s, size_t i, const float *vector, tn_error *err)
{
    json_t *root = json_object(), *list = json_array();
    const text *t = &s->texts[i];
    for (int64_t j = 0; j < s->info.width; j++)
        json_array_append_new(list, json_number((double)vector[j]));
    json_object_set_new(root, "index", json_integer((json_int_t)i));
    json_t *own = option_given(o, OPT_TEXT) ? json_stringn(t->at, t->length) : NULL;
    if (option_given(o, OPT_TEXT) && !own && !json_lost()) {
        json_decref(root);
        json_decref(list);
        return tn_fail(err, TN_E_INPUT, "embed", "text %zu is not UTF-8, which JSON cannot hold; leave --text out", i);
    }
    if (own)
        json_object_set_new(root, "text", own);
    json_object_set_new(root, "embedding", list);
    return json_print(root, true, err);
}

/* The .npy of an f32 [count, width], which numpy.load reads: its header is filled up to a multiple of 64 bytes. */
static tn_status write_npy(const embed_state *s, const char *path, tn_error *err)
{
    char header[192];
    int n = snprintf(header, sizeof header,
                     "\x93NUMPY%c%c%c%c{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %lld), }", 1, 0, 118, 0,
                     s->count, (long long)s->info.width);
    size_t bytes = s->count * (size_t)s->info.width * sizeof(float), whole = 128;
    char *file = n > 0 && n < 128 ? malloc(whole + bytes) : NULL;
    if (!file)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory; split the texts");
    memcpy(file, header, (size_t)n);
    memset(file + n, ' ', whole - (size_t)n);
    file[whole - 1] = '\n';
    memcpy(file + whole, s->vectors, bytes);
    tn_status status = replace_file(path, file, whole + bytes, err);
    free(file);
    return status;
}

static tn_status embed_all(const options *o, embed_state *s, tn_error *err)
{
    const char *npy = o->text[OPT_NPY];
    size_t tokens = (size_t)s->longest * TOGETHER * sizeof(int64_t), kept = npy ? s->count : TOGETHER;
    tn_status status = TN_OK;
    s->ids = malloc(tokens + 1);
    s->mask = malloc(tokens + 1);
    s->vectors = malloc(kept * (size_t)s->info.width * sizeof *s->vectors + 1);
    if (!s->ids || !s->mask || !s->vectors)
        return tn_fail(err, TN_E_MEMORY, "embed", "out of memory; split the texts");
    for (size_t first = 0, count; first < s->count && status == TN_OK; first += count) {
        int64_t prompt = s->info.include_prompt ? 0 : prompt_of(s, &s->texts[first]);
        float *out = s->vectors + (npy ? first * (size_t)s->info.width : 0);
        for (count = 1; count < TOGETHER && first + count < s->count; count++)
            if (!s->info.include_prompt && prompt_of(s, &s->texts[first + count]) != prompt)
                break;
        status = embed_some(s, first, count, prompt, out, err);
        workspace_notices(&s->w);
        for (size_t i = 0; i < count && !npy && status == TN_OK; i++)
            status = print_vector(o, s, first + i, out + i * (size_t)s->info.width, err);
    }
    return status == TN_OK && npy ? write_npy(s, npy, err) : status;
}

/* ---- the command --------------------------------------------------------------------------------- */

static uint32_t pooling_of(const options *o)
{
    static const struct {
        const char *name;
        uint32_t pooling;
    } names[] = {
        {"mean", TN_POOLING_MEAN}, {"last", TN_POOLING_LAST}, {"cls", TN_POOLING_CLS}, {"max", TN_POOLING_MAX}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(option_text(o, OPT_POOLING, ""), names[i].name))
            return names[i].pooling;
    return 0;
}

static tn_status open_embedder(const options *o, embed_state *s, tn_error *err)
{
    tn_embedder_options options = {.size = sizeof options, .pooling = pooling_of(o)};
    s->info.size = sizeof s->info;
    if (!(s->embedder = tn_embedder_open(s->w.model, &options, err)) ||
        tn_embedder_get_info(s->embedder, &s->info) != TN_OK ||
        !(s->prompt = tn_embedder_prompt(s->embedder, o->text[OPT_PROMPT_NAME], err)) ||
        !(s->tokenizer = tn_tokenizer_open(o->argument[0], err)))
        return err->code;
    return tn_tokenizer_encode(s->tokenizer, s->prompt, strlen(s->prompt), true, &s->prompt_ids, &s->prompt_count, err);
}

static tn_status run_embed(const options *o, tn_error *err)
{
    embed_state s = {0};
    tn_status status = take_texts(o, &s, err);
    if (status == TN_OK)
        status = workspace_model(&s.w, o, o->argument[0], err);
    if (status == TN_OK)
        status = open_embedder(o, &s, err);
    for (size_t i = 0; i < s.count && status == TN_OK; i++)
        status = encode(&s, i, err);
    if (status == TN_OK)
        status = workspace_apply(&s.w, err);
    if (status == TN_OK)
        status = embed_all(o, &s, err);
    for (size_t i = 0; s.texts && i < s.count; i++)
        free(s.texts[i].ids);
    free(s.texts);
    free(s.input);
    free(s.prompt_ids);
    free(s.ids);
    free(s.mask);
    free(s.vectors);
    tn_embedder_close(s.embedder);
    tn_tokenizer_free(s.tokenizer);
    workspace_close(&s.w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_PROMPT_NAME, "prompt", "NAME", 0, OPTION_TEXT, 0, 0,
     "put this prompt of config_sentence_transformers.json before each text"},
    {OPT_POOLING, "pooling", "mean|last|cls|max", 0, OPTION_CHOICE, 0, 0,
     "pool so, and normalise, whatever the files of sentence-transformers say"},
    {OPT_TEXT, "text", NULL, 0, OPTION_FLAG, 0, 0, "print the text beside its vector"},
    {OPT_NPY, "npy", "FILE", 0, OPTION_TEXT, 0, 0, "write numpy's f32 [texts, width] to FILE and print nothing"},
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    {OPT_SHADOW, "shadow", "P", 0, OPTION_REAL, 0, 1, "compare this part of kernel calls with eager; 0.01 costs 1 %"},
};

const command command_embed = {
    .name = "embed",
    .arguments = "MODEL [TEXT...] [--prompt NAME] [--pooling KIND] [--text] [--npy FILE]",
    .summary = "Prints the vector of each text as a line of JSON. Without TEXT the lines of standard input are texts.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = INT_MAX,
    .missing = "no model given",
    .notes =
        "How the states of a text's tokens become a vector is what the files of sentence-transformers say that lie\n"
        "beside the model: modules.json and the folders that it names. A checkpoint without them needs --pooling.",
    .example = "  tenon embed models/embeddinggemma --prompt query \"And it came to pass\"\n"
               "  tenon embed models/embeddinggemma --npy vectors.npy < lines.txt",
    .run = run_embed,
};
