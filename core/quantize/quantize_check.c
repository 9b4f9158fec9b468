/* Whether a .gguf means what its checkpoint does: its header is read back, with data that are holes, before any value
 * is encoded. So what cannot be said in a .gguf is found, instead of being dropped. */
#include "quantize/quantize.h"

#include "base/output.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the model ------------------------------------------------------------------------------------------- */

static bool is_near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-6 * fmax(fabs(a), fabs(b));
}

/* What may be otherwise: types, and the order of rows. */
static bool is_free(int axis, bool pairs)
{
    return axis == TN_AXIS_DTYPE || axis == TN_AXIS_WEIGHT || axis == TN_AXIS_LAYOUT || (pairs && axis == TN_AXIS_ROPE);
}

/* Without the name of a modeling file: mistral is said as llama, and functions stand there. */
static const char *bare_path(const char *path)
{
    const char *dot = strncmp(path, "modeling_", strlen("modeling_")) ? NULL : strchr(path, '.');
    return dot ? dot : path;
}

static bool same_site(const tn_site *a, const tn_site *b, bool pairs)
{
    static const uint64_t codes = TN_HAS_MIXED | TN_HAS_SCALES | TN_HAS_ZERO_POINTS;
    bool same = a->op == b->op && !strcmp(bare_path(a->path), bare_path(b->path)) &&
                !((a->features ^ b->features) & ~codes) && !memcmp(a->dim, b->dim, sizeof a->dim);
    for (int i = 0; i < TN_AXIS_MAX; i++)
        same = same && (a->meaning[i] == b->meaning[i] || is_free(i, pairs));
    for (int i = 0; i < TN_NUM_MAX; i++)
        same = same && is_near(a->num[i], b->num[i]);
    return same;
}

static bool same_rope(const rope_params *a, const rope_params *b)
{
    bool same = a->dim == b->dim && is_near((double)a->scaling, (double)b->scaling);
    for (int64_t i = 0; same && i < a->dim / 2; i++)
        same = is_near((double)a->inv_freq[i], (double)b->inv_freq[i]);
    return same;
}

/* The site of that number or a later one: that of kv_b_proj, which a .gguf has in two, is none that anything is called
 * at. NULL: there are no more. */
static const tn_site *next_site(const graph *g, size_t *at)
{
    static const char apart[] = ".kv_b_proj";
    for (; *at < g->site_count; ++*at) {
        const char *end = strstr(g->sites[*at]->site.path, apart);
        if (!end || end[strlen(apart)])
            return &g->sites[(*at)++]->site;
    }
    return NULL;
}

/* The path of the first module that differs, or what else does; NULL: nothing. */
static const char *difference(const tn_model *a, const tn_model *b, bool pairs)
{
    const graph *g = a->target.graph, *h = b->target.graph;
    const model_shape *s = a->flow->shape(a->arch_state), *t = b->flow->shape(b->arch_state);
    const tn_site *x = NULL, *y = NULL;
    size_t i = 0, j = 0;
    while (s->layers == t->layers && (x = next_site(g, &i)) && (y = next_site(h, &j)))
        if (!same_site(x, y, pairs))
            return x->path;
    if (x || next_site(h, &j) || s->rope_count != t->rope_count || s->layers != t->layers)
        return "the number of layers or modules";
    for (int32_t r = 0; r < s->rope_count; r++)
        if (!same_rope(&s->rope[r], &t->rope[r]))
            return "the rotation of keys";
    for (int64_t l = 0; l < s->layers; l++)
        if (s->layer[l].window != t->layer[l].window)
            return "the window of layers";
    return NULL;
}

tn_status quantize_check_model(const tn_model *model, const char *written, bool pairs, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    tn_model_options options = {.size = sizeof options, .dtype = tn_dtype_name(model->dtype)};
    tn_model *read = tn_model_open(written, &options, &why);
    const char *what = read ? difference(model, read, pairs) : NULL;
    tn_status status = TN_OK;
    if (!read && why.code == TN_E_MEMORY)
        status = tn_fail(err, why.code, why.where, "%s", why.message);
    else if (!read)
        status = tn_fail(err, TN_E_INPUT, model->folder, "cannot be said in that form: %s", why.message);
    else if (what)
        status = tn_fail(err, TN_E_INPUT, model->folder, "cannot be said in that form: %s would be another", what);
    tn_model_close(read);
    return status;
}

/* ---- the tokenizer ----------------------------------------------------------------------------------------- */

static const char *const probes[] = {
    "Hello, world! It's 2026; we'll see: 12345 + 67890 = 80235.\n\n\tdef f(x):\n        return x ** 2  # twice\r\n",
    " Zwei Wörter, café naïve, ÀÉÎ, ß; Привет, мир! 你好，世界。こんにちは 한국어 مرحبا हिन्दी ไทย",
    "emoji 👍🏽 👨‍👩‍👧, don't DON'T I'M they'VE, CamelCaseWords",
    "a_b-c/d\\e, 3.14e-10, ½ ² ①\u00a0x\u3000y",
    "   leading, trailing   ",
    "\n",
    "<|endoftext|><s></s><|im_start|>user",
    ""};

static tn_status compare_ids(const tn_tokenizer *a, const tn_tokenizer *b, const char *text, bool special, bool *same,
                             tn_error *err)
{
    int64_t *x = NULL, *y = NULL;
    size_t n = 0, m = 0, length = strlen(text);
    tn_status status = tn_tokenizer_encode(a, text, length, special, &x, &n, err);
    if (status == TN_OK)
        status = tn_tokenizer_encode(b, text, length, special, &y, &m, err);
    *same = status == TN_OK && n == m && (n == 0 || !memcmp(x, y, n * sizeof *x));
    free(x);
    free(y);
    return status;
}

static tn_status check_tokenizer(const char *path, const char *file, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    tn_tokenizer *have = tn_tokenizer_open(path, &why), *read = have ? tn_tokenizer_open(file, &why) : NULL;
    tn_status status = TN_OK;
    if (!read && why.code == TN_E_MEMORY)
        status = tn_fail(err, why.code, why.where, "%s", why.message);
    else if (have && !read)
        status = tn_fail(err, TN_E_INPUT, path, "its tokenizer cannot be said in a .gguf: %s", why.message);
    for (size_t i = 0; read && status == TN_OK && i < 2 * sizeof probes / sizeof *probes; i++) {
        bool same;
        status = compare_ids(have, read, probes[i / 2], i % 2, &same, err);
        if (status == TN_OK && !same)
            status = tn_fail(err, TN_E_INPUT, path,
                             "its tokenizer cannot be said in a .gguf: some text would get other tokens");
    }
    tn_tokenizer_free(have);
    tn_tokenizer_free(read);
    return status;
}

/* ---- the file ---------------------------------------------------------------------------------------------- */

static off_t data_bytes(const quantize_plan *p)
{
    off_t bytes = 0;
    for (size_t i = 0; i < p->count; i++)
        bytes += (off_t)quantize_padded(p->tensors[i].bytes);
    return bytes;
}

/* Factors of frequencies are read with the config. */
static bool write_factors(const quantize_plan *p, int fd, off_t at)
{
    bool written = true;
    for (size_t i = 0; i < p->count; i++) {
        const quantize_tensor *t = &p->tensors[i];
        if (t->made >= 0)
            written = written && pwrite(fd, p->factors + t->made, t->bytes, at) == (ssize_t)t->bytes;
        at += (off_t)quantize_padded(t->bytes);
    }
    return written;
}

/* A file of holes behind the header. */
static tn_status make_file(const quantize_plan *p, const char *where, char *name, const char *header, size_t size,
                           tn_error *err)
{
    output out = {.fd = mkstemps(name, (int)strlen(".gguf")), .path = name};
    tn_status status = TN_OK;
    if (out.fd < 0)
        return tn_fail(err, TN_E_INPUT, where, "cannot write: %s", strerror(errno));
    status = output_write(&out, header, size, err);
    if (status == TN_OK &&
        (ftruncate(out.fd, (off_t)size + data_bytes(p)) != 0 || !write_factors(p, out.fd, (off_t)size)))
        status = tn_fail(err, TN_E_INPUT, where, "cannot write: %s", strerror(errno));
    close(out.fd);
    return status;
}

tn_status quantize_check(const quantize_plan *p, const char *path, const char *out, const char *header, size_t size,
                         tn_error *err)
{
    char name[4096];
    if (text_cut(name, sizeof name, "%s.XXXXXX.gguf", out) + 1 >= sizeof name)
        return tn_fail(err, TN_E_INPUT, out, "is too long a name; choose a shorter one");
    tn_status status = make_file(p, out, name, header, size, err);
    if (status == TN_OK)
        status = quantize_check_model(p->model, name, p->arch->traits & GGUF_PAIRS, err);
    if (status == TN_OK)
        status = check_tokenizer(path, name, err);
    unlink(name);
    return status;
}
