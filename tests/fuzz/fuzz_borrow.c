/* Any bytes as the text of a config.json and, behind a NUL, a list of lent tensors, a line each: a name, a type, a
 * shape with commas, and what is wrong with it. The model is opened as a live one is, and some of its sites are called.
 */
#include "fuzz.h"
#include "open/model.h"

FUZZ_ENTRY(fuzz_borrow)

enum { MOST = 64, LINE = 200, BYTES = 1 << 16 };

/* What lies behind all of them. */
static _Alignas(64) char memory[BYTES + 64];

/* "NAME TYPE 3,4 [s][u]": strides changed over, not aligned. A tensor that is larger than the memory has none. */
static int read_line(const char *line, char name[LINE], tn_tensor *t)
{
    char type[16] = "", shape[64] = "", wrong[8] = "";
    int64_t sizes[TN_MAX_DIMS];
    int32_t ndim = 0;
    if (sscanf(line, "%199s %15s %63s %7s", name, type, shape, wrong) < 3)
        return 0;
    for (char *at = shape; *at && ndim < TN_MAX_DIMS; ndim++) {
        sizes[ndim] = strtoll(at, &at, 10);
        at += *at == ',' ? 1 : (int)strlen(at);
    }
    *t = tn_tensor_dense(memory, tn_dtype_parse(type), ndim, sizes);
    if (tn_dtype_bytes(t->dtype, tn_tensor_count(t)) > BYTES)
        t->data = NULL;
    if (strchr(wrong, 's') && t->ndim == 2) {
        t->stride[0] = 1;
        t->stride[1] = t->shape[0];
    }
    if (strchr(wrong, 'u') && t->data)
        t->data = memory + 1;
    return 1;
}

static void call_sites(tn_model *m)
{
    const graph *g = m->target.graph;
    for (size_t i = 0; i < g->site_count && i < 32; i++) {
        const graph_site *s = g->sites[i];
        tn_error err = TN_ERROR_INIT;
        fuzz_require(!s->lacking || (s->declined && s->declined[0]), "something is lacking for no reason");
        tn_bound *b = tn_site_bind(m, s->site.path, s->site.op, 0, &err);
        fuzz_agree(b != NULL, &err);
        /* Shared paths lead to the first of them. */
        for (int role = 0; b && role < TN_ROLE_MAX; role++)
            for (int64_t j = 0; j < tn_bound_site(b)->param[role].count; j++)
                fuzz_require(tn_bound_site(b)->param[role].tensors[j].data != NULL, "a parameter lies nowhere");
        tn_bound_close(b);
    }
}

int fuzz_borrow(const uint8_t *data, size_t size)
{
    static char names[MOST][LINE];
    static tn_tensor tensors[MOST];
    const char *list[MOST];
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size), count = 0;
    char *config = strndup((const char *)data, first), *lines = rest ? strndup((const char *)rest, rest_size) : NULL;
    for (char *line = lines, *next; line && count < MOST; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        list[count] = names[count];
        count += (size_t)read_line(line, names[count], &tensors[count]);
    }
    for (int mode = 0; mode < 3; mode++) {
        tn_error err = TN_ERROR_INIT;
        const tn_model_options o = {
            .size = sizeof o, .threads = 1, .partial = mode > 0, .weights_change = mode > 1, .per_module = mode > 1};
        tn_model *m = tn_model_borrow(config, list, tensors, count, &o, &err);
        fuzz_agree(m != NULL, &err);
        if (m)
            call_sites(m);
        tn_model_close(m);
    }
    free(config);
    free(lines);
    return 0;
}
