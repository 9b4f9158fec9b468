/* Quantised weights of every format, raw with the values that they stand for: eager must give these bits as rows of an
 * embedding, and products of them. */
#include "blocks.h"

#include "base/blocks.h"
#include "guarded.h"
#include "host.h"
#include "products.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = BLOCKS_TOKENS };

/* ---- sites ------------------------------------------------------------------------------------------ */

static void give(check_case *c, tn_role role, const tn_tensor *tensor)
{
    tn_tensor *kept = case_alloc(c, sizeof *kept);
    *kept = *tensor;
    if (tensor->dtype != TN_DTYPE_NONE)
        c->site.param[role] = (tn_param){kept, 1};
}

static check_case open_case(const blocks_matrix *m, tn_op op, const char *what)
{
    check_case c;
    case_init(&c, "cpu", op, TN_F32);
    snprintf(c.what, sizeof c.what, "%s, %s", m->name, what);
    c.site.meaning[TN_AXIS_WEIGHT] = (int32_t)m->codes.dtype;
    give(&c, TN_ROLE_WEIGHT, &m->codes);
    give(&c, TN_ROLE_SCALE_OF(TN_ROLE_WEIGHT), &m->parts.scale);
    give(&c, TN_ROLE_ZERO_OF(TN_ROLE_WEIGHT), &m->parts.zero);
    give(&c, TN_ROLE_GROUP_OF(TN_ROLE_WEIGHT), &m->parts.group);
    return c;
}

/* False after a failure. */
static bool perform(check_state *s, check_case *c)
{
    tn_error err = TN_ERROR_INIT;
    c->call.site = &c->site;
    if (host_eager(&c->call, &err) == TN_OK)
        return true;
    check_fail(s, c, "eager: %s", err.message);
    return false;
}

/* ---- bits ------------------------------------------------------------------------------------------- */

static int64_t order_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

/* The same bits, or so many units apart; what a NaN carries is not said, and a code that is an integer has one zero. */
static bool is_same(const blocks_matrix *m, float a, float b)
{
    int32_t ulps = m->ulps;
    if (m->codes.dtype == TN_I8 && a == 0 && b == 0)
        return true;
    if (isnan(a) || isnan(b) || ulps == 0)
        return (isnan(a) && isnan(b)) || !memcmp(&a, &b, sizeof a);
    return llabs(order_of(a) - order_of(b)) <= ulps;
}

/* Every row of the matrix is the embedding of its number. */
static void check_rows(check_state *s, const blocks_matrix *m)
{
    check_case c = open_case(m, TN_OP_EMBEDDING, "rows");
    int64_t rows = m->values.shape[0], columns = m->values.shape[1];
    int64_t *ids = case_in(&c, TN_I64, 1, &rows, NULL)->data;
    const float *want = m->values.data, *got = case_out(&c, TN_F32, 2, m->values.shape, NULL)->data;
    for (int64_t i = 0; i < rows; i++)
        ids[i] = i;
    bool done = perform(s, &c);
    for (int64_t i = 0; done && i < rows * columns; i++)
        if (!is_same(m, got[i], want[i]))
            check_fail(s, &c, "row %lld column %lld is %.9g instead of %.9g", (long long)(i / columns),
                       (long long)(i % columns), (double)got[i], (double)want[i]);
    case_free(&c);
}

/* ---- products --------------------------------------------------------------------------------------- */

static void compare(check_state *s, check_case *c, int64_t at, estimate want)
{
    double got = element_get(&c->call.out[0], at), off = fabs(got - want.value) / want.error;
    if (off > s->group_worst)
        s->group_worst = off;
    if (!(off <= 1) && got != want.value)
        check_fail(s, c, "element %lld is %.9g instead of %.9g, %.3g bounds away", (long long)at, got, want.value, off);
}

static void check_product(check_state *s, const blocks_matrix *m, int64_t tokens)
{
    check_case c = open_case(m, TN_OP_LINEAR, tokens == 1 ? "one token" : "tokens");
    int64_t out = m->values.shape[0], in = m->values.shape[1];
    random_state r = {(uint64_t)in};
    c.site.dim[TN_DIM_HIDDEN] = in;
    c.site.dim[TN_DIM_OUT] = out;
    tn_tensor *x = case_in(&c, TN_F32, 2, (int64_t[]){tokens, in}, NULL);
    case_out(&c, TN_F32, 2, (int64_t[]){tokens, out}, NULL);
    if (m->x.data)
        memcpy(x->data, m->x.data, (size_t)(tokens * in) * sizeof(float));
    else
        fill_normal(x, &r, 0, 1);
    const double *w = case_values(&c, &m->values);
    estimate *row = case_alloc(&c, (size_t)in * sizeof *row);
    bool done = perform(s, &c);
    for (int64_t t = 0; done && t < tokens; t++) {
        for (int64_t i = 0; i < in; i++)
            row[i] = estimate_exact(element_get(x, t * in + i));
        for (int64_t o = 0; o < out; o++)
            compare(s, &c, t * out + o, estimate_dot(TN_F32, row, w + o * in, 1, in, 0));
    }
    case_free(&c);
}

void blocks_check(check_state *s, const blocks_matrix *m)
{
    check_rows(s, m);
    if (m->product) {
        check_product(s, m, TOKENS);
        check_product(s, m, 1);
    }
    s->group_cases += m->product ? 3 : 1;
}

/* ---- files ------------------------------------------------------------------------------------------ */

typedef struct block_file {
    check_state *s;
    const char *folder, *format; /* the name without .safetensors                                    */
    tn_safetensors *file;
    bool known;
} block_file;

static bool get(const block_file *f, const char *name, tn_dtype dtype, tn_tensor *t)
{
    const check_case unknown = {.what = "the file"};
    if (tn_safetensors_get(f->file, name, t) && t->dtype == dtype && t->ndim == 2 && shards_aligned(t))
        return true;
    check_fail(f->s, &unknown, "lacks the tensor %s, or it is no matrix of %s", name, tn_dtype_name(dtype));
    return false;
}

/* Rows of whole blocks beside their values. */
static void check_blocks_of(const block_file *f, tn_dtype dtype, const char *blocks, const char *values, bool product)
{
    blocks_matrix m = {.name = values, .product = product};
    tn_tensor bytes;
    if (!get(f, blocks, TN_U8, &bytes) || !get(f, values, TN_F32, &m.values) || (product && !get(f, "x", TN_F32, &m.x)))
        return;
    if (bytes.shape[0] == m.values.shape[0] && m.values.shape[1] % tn_dtype_block_elements(dtype) == 0 &&
        (size_t)bytes.shape[1] == tn_dtype_bytes(dtype, m.values.shape[1]) &&
        (!product || (m.x.shape[0] == TOKENS && m.x.shape[1] == m.values.shape[1]))) {
        m.codes = tn_tensor_dense(bytes.data, dtype, 2, m.values.shape);
        blocks_check(f->s, &m);
    } else {
        const check_case unknown = {.what = "the file"};
        check_fail(f->s, &unknown, "the shapes of %s and of its values disagree", blocks);
    }
}

/* A type of blocks, which GGUF spells in capitals; else none. */
static tn_dtype block_type(const char *format)
{
    char name[32] = "";
    for (size_t i = 0; format[i] && i + 1 < sizeof name; i++) {
        if (islower((unsigned char)format[i]))
            return TN_DTYPE_NONE;
        name[i] = (char)tolower((unsigned char)format[i]);
    }
    return tn_dtype_parse(name);
}

/* The values of all codes. */
static bool check_tables(const block_file *f)
{
    static const struct {
        const char *name;
        tn_dtype dtype;
    } tables[] = {
        {"fp8_e4m3fn", TN_F8_E4M3}, {"fp8_e5m2", TN_F8_E5M2}, {"e8m0", TN_F8_E8M0}, {"e2m1", TN_E2M1}, {"nf4", TN_NF4}};
    uint8_t bytes[256];
    tn_tensor t;
    if (strcmp(f->format, "tables") != 0)
        return false;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        check_case table = {.kernel = NULL};
        snprintf(table.what, sizeof table.what, "%s", tables[i].name);
        int64_t count = tn_safetensors_get(f->file, tables[i].name, &t) && t.dtype == TN_F32 ? tn_tensor_count(&t) : 0;
        count = count < 256 ? count : 256;
        float values[256];
        for (int b = 0; b < 256; b++)
            bytes[b] = (uint8_t)(count > 16                  ? b
                                 : tables[i].dtype == TN_NF4 ? 32 * b + 2 * b + 1
                                                             : 2 * b + 16 * (2 * b + 1));
        blocks_matrix m = {.codes.dtype = tables[i].dtype};
        blocks_to_f32(tables[i].dtype, bytes, 0, count, values);
        for (int64_t c = 0; c < count; c++)
            if (!is_same(&m, values[c], ((const float *)t.data)[c]))
                check_fail(f->s, &table, "code %lld is %.9g", (long long)c, (double)values[c]);
        if (count != 16 && count != 256)
            check_fail(f->s, &table, "is not there, or no table of 16 or 256 values");
        f->s->group_cases++;
    }
    return true;
}

static void check_file(void *ctx)
{
    block_file *f = ctx;
    tn_dtype dtype = block_type(f->format);
    f->known = dtype != TN_DTYPE_NONE || check_tables(f) || blocks_packed(f->s, f->format, f->file);
    if (dtype == TN_DTYPE_NONE)
        return;
    check_blocks_of(f, dtype, "blocks", "values", true);
    check_blocks_of(f, dtype, "edge_blocks", "edge_values", false);
}

static void run_file(check_state *s, const char *folder, const char *format)
{
    char path[4096], crash[256] = "";
    const check_case unknown = {.what = "the file"};
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, format);
    block_file f = {.s = s, .folder = folder, .format = format, .file = tn_safetensors_open(path, &err)};
    if (!group_begin(s, "blocks %s f32 eager", format))
        goto done;
    if (f.file)
        guarded_call(check_file, &f, s->group, NULL, 0, crash, sizeof crash);
    if (!f.file || crash[0])
        check_fail(s, &unknown, "%s", f.file ? crash : err.message);
    else if (!f.known)
        check_skip(s, "no test reads it");
    s->group_cases += !s->group_cases;
    group_end(s);
done:
    tn_safetensors_close(f.file);
}

bool blocks_run(check_state *s, const char *folder)
{
    struct dirent **names;
    int found = scandir(folder, &names, NULL, alphasort);
    if (found < 0)
        fprintf(stderr, "check_kernels: %s: %s\n", folder, strerror(errno));
    for (int i = 0; i < found; i++) {
        char *suffix = strstr(names[i]->d_name, ".safetensors");
        if (suffix && !suffix[strlen(".safetensors")]) {
            *suffix = '\0';
            run_file(s, folder, names[i]->d_name);
        }
        free(names[i]);
    }
    if (found >= 0)
        free(names);
    return found >= 0;
}
