/* A model that is cut over ranks, or that ranks train: opening the group, are all alike, and what rank 0 tells the
 * others. */
#include "open/parallel.h"

#include "base/hash.h"
#include "base/structs.h"
#include "device/hoststate.h"
#include "graph/elsewhere.h"
#include "plugin/kernels_config.h"
#include "plugin/plugins.h"
#include "plugin/registry.h"

#include <stdlib.h>
#include <string.h>
#include <tenon/parallel.h>
#include <unistd.h>

enum { PATIENCE = 60, MOST_RANKS = 4096 };

typedef enum way { WAY_NONE, WAY_TENSOR, WAY_SUMS, WAY_EXPERTS, WAY_PIPELINE, WAY_REPLICAS, WAYS } way;

static const char *const way_names[WAYS] = {NULL, "tensor", "sums", "experts", "pipeline", "replicas"};

/* What tn_model_options.parallel says. */
typedef struct asked {
    way how;       /* WAY_NONE: nothing of ours                                                       */
    bool staged;   /* layers are dealt out, to groups that are cut in that way or (WAY_PIPELINE) one rank each  */
    int64_t ranks; /* of all; 0: it does not say                                                      */
    int64_t each;  /* of each stage                                                                   */
} asked;

/* The name of a way, or one with "=N"; *ranks 0: not said. *rest is what stands behind it. */
static way parse_one(const char *text, int64_t *ranks, const char **rest)
{
    size_t length = strcspn(text, "=,");
    char *end = NULL;
    *ranks = 0;
    *rest = text + length;
    for (int i = WAY_NONE + 1; i < WAYS; i++) {
        if (strlen(way_names[i]) != length || strncmp(text, way_names[i], length) != 0)
            continue;
        if (text[length] != '=')
            return (way)i;
        *ranks = strtoll(text + length + 1, &end, 10);
        *rest = end;
        return *ranks >= 1 && *ranks <= MOST_RANKS ? (way)i : WAY_NONE;
    }
    return WAY_NONE;
}

static asked parse(const char *text)
{
    asked a = {.each = 1};
    a.how = parse_one(text, &a.ranks, &text);
    a.staged = a.how == WAY_PIPELINE;
    if (a.staged && a.ranks && *text == ',') {
        a.how = parse_one(text + 1, &a.each, &text);
        a.ranks *= a.each;
        if (a.how == WAY_PIPELINE || a.how == WAY_REPLICAS || a.ranks < 1 || a.ranks > MOST_RANKS)
            a.how = WAY_NONE;
    }
    if (*text)
        a.how = WAY_NONE;
    return a;
}

int64_t tn_parallel_ranks(const char *parallel, int64_t *each)
{
    const asked a = parallel ? parse(parallel) : (asked){0};
    int64_t ranks = a.how != WAY_NONE ? a.ranks : 0;
    if (each)
        *each = a.staged && ranks ? a.each : ranks;
    return ranks;
}

tn_status parallel_check(const tn_model_options *options, bool borrowed, tn_error *err)
{
    way how = parse(options->parallel).how;
    if (how == WAY_NONE)
        return tn_fail(err, TN_E_USAGE, "parallel",
                       "'%.64s' is no way to cut a model; give tensor, sums, experts or pipeline, tensor=N for N "
                       "ranks, or pipeline=2,tensor=4 for stages of four%s",
                       options->parallel, options->training ? "; or replicas to train it" : "");
    if (how == WAY_REPLICAS && !options->training)
        return tn_fail(err, TN_E_USAGE, "parallel",
                       "replicas are for training; give tensor, sums, experts or pipeline");
    if (options->training && !borrowed)
        return how == WAY_REPLICAS
                   ? TN_OK
                   : tn_fail(err, TN_E_USAGE, "parallel", "training is not cut over ranks; give replicas");
    const char *what = borrowed                            ? "a borrowed model"
                       : options->adapter || options->lora ? "a model with an adapter"
                                                           : NULL;
    return what ? tn_fail(err, TN_E_USAGE, "parallel", "%s is not cut over ranks", what) : TN_OK;
}

/* What a plugin brings is opened with everything of the process that it may not change as it was. */
static tn_status open_kind(const tn_model_options *options, tn_group *end, tn_error *err)
{
    const char *file;
    char changed[256];
    const tn_group_kind *kind = registry_group(&file);
    if (!kind)
        return tn_fail(err, TN_E_KERNEL, "parallel",
                       "no plugin connects ranks; mpi.so does, which belongs beside the others");
    hoststate *before = hoststate_save();
    *end = (tn_group){.size = sizeof *end};
    tn_status status = kind->open(end, options->patience > 0 ? options->patience : PATIENCE, err);
    hoststate_restore(before, changed, sizeof changed);
    return status;
}

tn_status parallel_open(tn_model *m, const tn_model_options *options, tn_error *err)
{
    tn_group end = {0};
    if (!options->parallel)
        return TN_OK;
    const asked a = parse(options->parallel);
    tn_status status = options->group ? structs_take(&end, sizeof end, options->group, "tn_group", err)
                                      : open_kind(options, &end, err);
    if (status == TN_OK && (end.ranks < 1 || end.rank < 0 || end.rank >= end.ranks || !end.gather || !end.tell))
        status = tn_fail(err, options->group ? TN_E_USAGE : TN_E_KERNEL, "tn_group",
                         "it has rank %d of %d, or lacks gather or tell", (int)end.rank, (int)end.ranks);
    if (status != TN_OK)
        return status;
    if (!(m->group = group_new(&end, err)))
        return TN_E_MEMORY;
    m->by_layers = a.staged;
    m->by_experts = a.how == WAY_EXPERTS;
    m->by_sums = a.how == WAY_SUMS || m->by_experts;
    if (m->by_layers && !end.pass)
        return tn_fail(err, TN_E_USAGE, "tn_group", "it has no pass, which a pipeline wants; use tensor");
    if (a.how == WAY_REPLICAS) {
        m->replicas = m->group;
        m->group = NULL;
    }
    m->target.cut = m->group && !m->by_sums;
    if (m->replicas && !end.pass)
        return tn_fail(err, TN_E_USAGE, "tn_group", "it has no pass, which replicas want");
    if (a.ranks && a.ranks != end.ranks)
        return tn_fail(err, TN_E_USAGE, "parallel", "%s asks for %lld ranks, %d were started", options->parallel,
                       (long long)a.ranks, (int)end.ranks);
    if (!a.ranks && end.ranks == 1)
        return tn_fail(err, TN_E_USAGE, "parallel",
                       "there is one process; start several, as with mpirun -n 2, or give %s=1", way_names[a.how]);
    if (options->device && strcmp(options->device, "auto") != 0 && strncmp(options->device, "cpu", 3) != 0)
        return tn_fail(err, TN_E_USAGE, "parallel", "device %s does not compute with other ranks; use cpu",
                       options->device);
    return a.staged && a.how != WAY_PIPELINE ? group_divide(m->group, (int32_t)a.each, err) : TN_OK;
}

group *parallel_ranks(const tn_model *m)
{
    return m->group ? m->group : m->replicas;
}

tn_status parallel_agree(const tn_model *m, tn_status status, tn_error *err)
{
    return m->replicas ? status : parallel_meet(m, status, err);
}

tn_status parallel_meet(const tn_model *m, tn_status status, tn_error *err)
{
    group *g = parallel_ranks(m);
    return g && !g->failed ? group_agree(g, status, err) : status;
}

tn_status tn_ranks_share(tn_model *model, tn_status status, const void *own, void *all, int64_t bytes, tn_error *err)
{
    if (!model || bytes < 0 || (bytes > 0 && (!own || !all)))
        return tn_fail(err, TN_E_USAGE, "tn_ranks_share", "model, own or all is NULL, or bytes are negative");
    if (status > TN_OK)
        return tn_fail(err, TN_E_USAGE, "tn_ranks_share", "status is %d, which is no error", (int)status);
    if (status != TN_OK)
        tn_fail(err, status, "tn_ranks_share", "failed without a message"); /* where there is none               */
    if (model->group)
        return parallel_refuse(model, "what ranks share", err);
    group *g = model->replicas;
    if (g)
        status = group_settle(g, status, err);
    if (status == TN_OK && g && bytes > 0)
        return group_exchange(g, own, (size_t)bytes, all, err);
    if (status == TN_OK && bytes > 0)
        memcpy(all, own, (size_t)bytes);
    return status;
}

tn_status parallel_tell(const tn_model *m, const parallel_order *order, const void *bytes, tn_error *err)
{
    parallel_order out = *order;
    if (!m->group || m->group->end.rank > 0)
        return TN_OK;
    if (m->group->failed)
        return tn_fail(err, TN_E_KERNEL, "parallel", "ranks did not answer before; start all of them again");
    tn_status status = group_tell(m->group, &out, sizeof out, true, err);
    if (status == TN_OK && order->bytes > 0)
        status = group_tell(m->group, (void *)(uintptr_t)bytes, (size_t)order->bytes, false, err);
    return status;
}

tn_status parallel_apply(const tn_model *m, const tn_config *config, const char *spec, tn_error *err)
{
    if (!m->group)
        return TN_OK;
    if (m->group->end.rank > 0)
        return m->following ? TN_OK
                            : tn_fail(err, TN_E_USAGE, "parallel", "rank 0 applies kernels for all; call tn_follow");
    spec = spec ? spec : tn_config_kernels(config);
    const parallel_order order = {.kind = ORDER_APPLY,
                                  .bytes = (int64_t)strlen(spec) + 1,
                                  .number = {kernels_config_same_bits(config), kernels_config_exact(config)}};
    return parallel_tell(m, &order, spec, err);
}

tn_status parallel_refuse(const tn_model *m, const char *what, tn_error *err)
{
    return m->group ? tn_fail(err, TN_E_USAGE, "parallel", "%s is not told to other ranks; use tn_apply_kernels", what)
                    : TN_OK;
}

void parallel_end(const tn_model *m)
{
    if (m->group && !m->group->failed && m->info.ranks > 0)
        parallel_tell(m, &(parallel_order){.kind = ORDER_END}, NULL, NULL);
}

/* ---- what is here ------------------------------------------------------------------------------------- */

typedef struct piece {
    const char *data;
    size_t bytes;
    bool cut;
} piece;

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->data != y->data ? (x->data > y->data) - (x->data < y->data)
                              : (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* A site's own parameters; what it is composed of has those that it lends. */
static size_t add_pieces(const graph *g, const tn_site *site, bool cut, piece *to)
{
    size_t count = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++) {
            const tn_tensor *t = &site->param[role].tensors[i];
            if (elsewhere_has(g, t->data))
                continue;
            if (to)
                to[count] = (piece){t->data, tn_dtype_bytes(t->dtype, tn_tensor_count(t)), cut};
            count++;
        }
    return count;
}

static size_t all_pieces(const graph *g, piece *to)
{
    size_t count = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *s = g->sites[i];
        if (!s->part[0] && !s->part[1] && !s->by_parts)
            count += add_pieces(g, &s->site, s->cut.group || s->staged, to ? to + count : NULL);
    }
    for (size_t i = 0; i < g->step_count; i++)
        count += add_pieces(g, &g->steps[i]->site, false, to ? to + count : NULL);
    return count;
}

/* A linear layer as wide as the vocabulary is the head, which sees the last token alone. */
static bool is_head(const graph_site *s, int64_t vocab)
{
    return s->site.op == TN_OP_LINEAR && (s->cut.group && !s->adds ? s->cut.total : s->site.dim[TN_DIM_OUT]) == vocab;
}

/* What of the parts of a site is this rank's. */
static int64_t own_part(const graph_site *s, int64_t all)
{
    int64_t first;
    const group *g = s->cut.group;
    return g && s->by_parts ? group_share(g, g->end.rank, s->cut.total, s->cut.unit, &first) : all;
}

static bool is_of_tower(const graph_module *m)
{
    while (m && !m->apart)
        m = m->parent;
    return m;
}

static void set_once(int64_t *number, int64_t value)
{
    *number = *number ? *number : value;
}

static void count_own(tn_model *m)
{
    const graph *g = m->target.graph;
    tn_model_info *info = &m->info;
    int64_t vocab = m->flow->shape(m->arch_state)->vocab;
    for (size_t i = 0; i < g->site_count && m->group; i++) {
        const graph_site *s = g->sites[i];
        const int64_t *dim = s->site.dim;
        if (s->lacking || is_of_tower(s->module))
            continue;
        if (s->site.op == TN_OP_ATTENTION) {
            set_once(&info->own_heads, dim[TN_DIM_Q_HEADS]);
            set_once(&info->own_kv_heads, dim[TN_DIM_KV_HEADS]);
        }
        if (s->site.op == TN_OP_MLP || s->site.op == TN_OP_MOE_EXPERTS)
            set_once(&info->own_inner, own_part(s, dim[TN_DIM_INTER]));
        if (s->site.op == TN_OP_MOE_EXPERTS)
            set_once(&info->own_experts, dim[TN_DIM_EXPERTS]);
        if (is_head(s, vocab))
            set_once(&info->own_vocab, dim[TN_DIM_OUT]);
    }
}

tn_status parallel_count(tn_model *m, tn_error *err)
{
    size_t count = m->group ? all_pieces(m->target.graph, NULL) : 0;
    piece *list = calloc(count + 1, sizeof *list);
    const char *end = NULL;
    if (!list)
        return tn_fail(err, TN_E_MEMORY, "parallel", "out of memory");
    if (m->group)
        all_pieces(m->target.graph, list);
    count_own(m);
    qsort(list, count, sizeof *list, by_place);
    for (size_t i = 0; i < count; i++) {
        if (!end || list[i].data >= end) /* a head may be a part of the embedding                            */
            *(list[i].cut ? &m->info.cut_bytes : &m->info.whole_bytes) += (int64_t)list[i].bytes;
        end = !end || list[i].data + list[i].bytes > end ? list[i].data + list[i].bytes : end;
    }
    free(list);
    return TN_OK;
}

/* How many experts a token chooses; 0: there are none. */
static int64_t chosen_experts(const graph *g)
{
    int64_t most = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        const tn_site *s = &g->sites[i]->site;
        if ((s->op == TN_OP_MOE_ROUTE || s->op == TN_OP_MOE_EXPERTS) && s->dim[TN_DIM_TOP_K] > most)
            most = s->dim[TN_DIM_TOP_K];
    }
    return most;
}

static double part_of_experts(const tn_site *site, int64_t chosen)
{
    int64_t experts = site->dim[TN_DIM_EXPERTS];
    bool of_experts = site->op == TN_OP_MOE_EXPERTS || site->op == TN_OP_GROUPED_MATMUL;
    return of_experts && experts > chosen && chosen > 0 ? (double)chosen / (double)experts : 1;
}

void parallel_work(const tn_model *m, int64_t tokens, double *bytes, double *operations)
{
    const graph *g = m->target.graph;
    int64_t chosen = chosen_experts(g);
    *bytes = *operations = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *s = g->sites[i];
        double share = part_of_experts(&s->site, chosen),
               read = share * (double)tokens < 1 ? share * (double)tokens : 1;
        double rows = is_head(s, m->info.vocab) ? 1 : share * (double)tokens;
        if (s->part[0] || s->part[1] || s->by_parts || s->site.op == TN_OP_EMBEDDING)
            continue;
        for (int role = 0; role < TN_ROLE_MAX; role++)
            for (int64_t j = 0; j < s->site.param[role].count; j++) {
                const tn_tensor *t = &s->site.param[role].tensors[j];
                double count = elsewhere_has(g, t->data) ? 0 : (double)tn_tensor_count(t);
                *bytes += count > 0 ? read * (double)tn_dtype_bytes(t->dtype, tn_tensor_count(t)) : 0;
                *operations += 2 * count * rows;
            }
    }
}

/* ---- are all alike? ----------------------------------------------------------------------------------- */

enum { FACT_VERSION, FACT_SETS, FACT_CONFIG, FACT_TENSORS, FACT_ADAPTER, FACT_OPTIONS, FACT_KERNELS, FACTS };

typedef struct facts {
    uint64_t of[FACTS];
    char host[64];
} facts;

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text ? text : "", text ? strlen(text) + 1 : 1);
}

/* Names and shapes of all tensors, and the beginnings of some. */
static uint64_t hash_tensors(const tn_model *m)
{
    enum { SOME = 64, BYTES = 256 };
    uint64_t hash = HASH_START;
    size_t count = shards_count(m->weights), step = count / SOME + 1;
    for (size_t i = 0; i < count; i++) {
        tn_tensor t;
        const char *name = shards_name(m->weights, i);
        hash = hash_text(hash, name);
        if (!shards_get(m->weights, name, &t))
            continue;
        size_t bytes = tn_dtype_bytes(t.dtype, tn_tensor_count(&t));
        hash = hash_bytes(hash, t.shape, (size_t)t.ndim * sizeof *t.shape);
        hash = hash_bytes(hash, &t.dtype, sizeof t.dtype);
        if (i % step == 0)
            hash = hash_bytes(hash, t.data, bytes < BYTES ? bytes : BYTES);
    }
    return hash;
}

static uint64_t hash_adapter(const tn_model *m)
{
    uint64_t hash = HASH_START;
    for (size_t i = 0; m->adapter && i < m->adapter->count; i++) {
        const tn_tensor *t = &m->adapter->tensors[i];
        hash = hash_bytes(hash, t->data, tn_dtype_bytes(t->dtype, tn_tensor_count(t)));
    }
    return hash;
}

/* Who computes what every rank computes whole; a kernel may decline a part of one size and take that of another. */
static uint64_t hash_kernels(const graph *g, bool all)
{
    uint64_t hash = HASH_START;
    char digest[PLUGINS_SHA256];
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *s = g->sites[i];
        bool whole = s->site.op != TN_OP_ATTENTION && s->site.op != TN_OP_ROPE;
        if (s->cut.group || s->by_parts || s->staged || (!whole && !all))
            continue;
        bool known = s->bound.impl && s->bound.file && plugins_sha256(s->bound.file, digest);
        hash = hash_text(hash, s->site.path);
        hash = hash_text(hash, s->bound.impl ? s->bound.id : "");
        hash = hash_text(hash, known ? digest : "");
    }
    return hash;
}

tn_status parallel_alike(const tn_model *m, tn_error *err)
{
    static const char *const what[FACTS] = {
        "another version of tenon",  "other instruction sets; set TENON_CPU to what all have",
        "another config.json",       "other tensors in the checkpoint",
        "another adapter",           "another dtype or lock, or other options",
        "other kernels at its sites"};
    group *g = parallel_ranks(m);
    facts own = {
        .of = {hash_text(HASH_START, TN_VERSION), tn_cpu_flags(), config_hash(m->config), hash_tensors(m),
               hash_adapter(m),
               ((uint64_t)m->narrow << 9 | (uint64_t)m->dtype << 1 | m->dequantise) ^ (m->lock ? m->lock->hash : 0),
               hash_kernels(m->target.graph, m->replicas)}};
    facts *all = calloc((size_t)g->end.ranks, sizeof *all);
    if (!all)
        return tn_fail(err, TN_E_MEMORY, "parallel", "out of memory");
    gethostname(own.host, sizeof own.host - 1);
    tn_status status = group_exchange(g, &own, sizeof own, all, err);
    for (int32_t r = 1; r < g->end.ranks && status == TN_OK; r++)
        for (int f = 0; f < FACTS && status == TN_OK; f++)
            if (all[r].of[f] != all[0].of[f]) {
                all[r].host[sizeof own.host - 1] = all[0].host[sizeof own.host - 1] = '\0';
                status =
                    tn_fail(err, f == FACT_CONFIG || f == FACT_TENSORS || f == FACT_ADAPTER ? TN_E_INPUT : TN_E_KERNEL,
                            "parallel", "rank %d on %s is not like rank 0 on %s: %s", (int)r, all[r].host, all[0].host,
                            what[f]);
            }
    free(all);
    return status;
}
