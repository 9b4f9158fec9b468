/* Opening a checkpoint folder as a model. */
#include "base/clock.h"
#include "base/gguf.h"
#include "base/hub.h"
#include "base/notices.h"
#include "base/place.h"
#include "base/structs.h"
#include "bind/apply.h"
#include "models/multimodal.h"
#include "op/op.h"
#include "open/generation.h"
#include "open/locking.h"
#include "open/parallel.h"
#include "open/trust_device.h"
#include "plugin/environment.h"
#include "plugin/registry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static char *path_in(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static tn_status check_folder(const char *folder, tn_error *err)
{
    struct stat st;
    if (stat(folder, &st) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return tn_fail(err, TN_E_INPUT, folder,
                       "no such folder; a model is a folder with config.json, *.safetensors and tokenizer.json, or the "
                       "name ORG/NAME of one that was fetched with hf download");
    if (stat(folder, &st) != 0)
        return tn_fail(err, TN_E_INPUT, folder, "cannot be opened: %s; check the path and its permissions",
                       strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return tn_fail(err, TN_E_INPUT, folder, "is not a folder; give the folder that holds config.json, or a .gguf");
    return TN_OK;
}

config_reader model_config(const tn_model *model, tn_status *status, tn_error *err)
{
    config_reader root = config_root(model->config, status, err);
    return model->wrapper ? config_child(&root, model->wrapper->config) : root;
}

/* Is class_name what the class of a whole model is without its head: "Qwen3Model" of Qwen3ForCausalLM,
 * "Gemma3TextModel" of Gemma3ForCausalLM? */
static bool is_base(const char *class_name, const char *whole)
{
    const char *end = strstr(whole, "For");
    size_t stem = end ? (size_t)(end - whole) : strlen(whole);
    return !strncmp(class_name, whole, stem) &&
           (!strcmp(class_name + stem, "Model") || !strcmp(class_name + stem, "TextModel"));
}

/* Which architecture config.json asks for. */
static tn_status find_arch(tn_model *m, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader root = config_root(m->config, &status, err);
    const char *type = config_str(&root, "model_type", NULL), *inner = type;
    if (status == TN_OK && !type)
        config_fail(&root, "model_type", "is missing; this is not a model's config");
    if (status != TN_OK)
        return status;
    if ((m->wrapper = models_wrapper(type)) != NULL) {
        config_reader object = model_config(m, &status, err);
        inner = config_str(&object, "model_type", m->wrapper->inner);
        if (status != TN_OK)
            return status;
    }
    if (!(m->arch = models_find(inner, err)))
        return TN_E_INPUT;
    m->flow = models_flow(m->arch, m->wrapper);
    if (config_list(&root, "architectures") < 1)
        return status;
    const char *class_name = config_list_str(&root, "architectures", 0);
    const char *known = m->wrapper ? m->wrapper->class_name : m->arch->class_name;
    m->base = is_base(class_name, known);
    /* PhiMoEForCausalLM of older files is PhimoeForCausalLM. */
    if (m->borrowed)
        m->base = strcasecmp(class_name, known) != 0; /* another head is what the program does itself     */
    else if (strcasecmp(class_name, known) != 0 && !m->base)
        config_fail(&root, "architectures", "is '%s', which is not supported, only %s of model_type %s", class_name,
                    known, type);
    return status;
}

/* Opens the files; what they hold quantised is found under the names of the plain checkpoint. */
static tn_status open_weights(tn_model *m, const char *folder, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader root = config_root(m->config, &status, err);
    if (m->borrowed)
        return TN_OK;
    if (!m->weights && !(m->weights = shards_open(folder, err)))
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    if (locking_weights(m, err) != TN_OK)
        return err->code;
    if ((status = quantised_resolve(m->weights, &root, tn_parallel_for, err)) != TN_OK)
        return status;
    return locking_watch(m, err);
}

/* The dtype asked for, else the config's, else the checkpoint's. */
static tn_status find_dtype(tn_model *m, const char *asked, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader root = config_root(m->config, &status, err);
    if (asked && !strcmp(asked, "mixed")) {
        m->dtype = TN_F32;
        m->narrow = TN_BF16;
        return status;
    }
    bool auto_dtype = !asked || !strcmp(asked, "auto");
    const char *name = !auto_dtype   ? asked
                       : m->borrowed ? tn_dtype_name(m->lacks.dtype)
                                     : config_str(&root, "dtype", config_str(&root, "torch_dtype", NULL));
    if (status != TN_OK)
        return status;
    m->dtype = name ? tn_dtype_parse(name) : shards_dtype(m->weights);
    if (m->dtype == TN_F64 && auto_dtype)
        m->dtype = TN_F32;
    if (m->dtype != TN_F32 && m->dtype != TN_BF16 && m->dtype != TN_F16)
        return tn_fail(err, auto_dtype ? TN_E_INPUT : TN_E_USAGE, auto_dtype ? "config.json" : "dtype",
                       "dtype '%s' cannot be computed with; choose auto, f32, bf16 or f16", name ? name : "(none)");
    return TN_OK;
}

/* What the table asks of every site: kernels rely on it. */
static tn_status check_sites(const graph *g, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < g->site_count && status == TN_OK; i++)
        status = g->sites[i]->by_parts ? TN_OK : op_check_site(&g->sites[i]->site, err);
    return status == TN_OK ? TN_OK : TN_E_INPUT;
}

static tn_status build_graph(tn_model *m, const tn_model_options *options, tn_error *err)
{
    m->target.graph = graph_new(m->dtype, m->arch->model_type, err);
    if (!m->target.graph)
        return TN_E_MEMORY;
    m->target.graph->narrow = m->narrow;
    m->target.graph->root->class_name = m->arch->class_name;
    m->copies.device = m->target.device;
    struct group *parts = m->by_layers ? m->group->stage : m->group; /* of whom a layer's are                     */
    graph_builder b = {.graph = m->target.graph,
                       .weights = m->weights,
                       .device = m->target.device,
                       .copies = &m->copies,
                       .dtype = m->dtype,
                       .progress = options->progress,
                       .progress_ctx = options->progress_ctx,
                       .total_bytes = shards_bytes(m->weights),
                       .group = m->by_sums ? NULL : parts,
                       .sums = m->by_sums ? parts : NULL,
                       .whole_experts = m->by_experts,
                       .stages = m->by_layers ? m->group : NULL,
                       .dequantise = options->dequantise,
                       .base = m->base,
                       .lacks = m->borrowed ? &m->lacks : NULL,
                       .outer = m->wrapper ? m->wrapper->aliases : NULL,
                       .err = err};
    config_reader root = config_root(m->config, &b.status, err), config = model_config(m, &b.status, err);
    m->arch_state = models_build(m->arch, m->wrapper, &b, &root, &config);
    if (b.status == TN_OK && (options->adapter || options->lora))
        m->adapter = peft_attach(&b, options->adapter, options->lora, m->folder, options->training);
    build_end(&b);
    if (b.lacks && b.status == TN_OK)
        lacks_settle(&b);
    build_copies_protect(&m->copies);
    if (!m->arch_state && b.status == TN_OK)
        b.status = tn_fail(err, TN_E_INTERNAL, m->folder, "the model could not be built");
    return b.status == TN_OK ? check_sites(m->target.graph, err) : b.status;
}

static int64_t count_parameters(const graph_module *m)
{
    int64_t n = m->parameters;
    for (const graph_module *child = m->first_child; child; child = child->next)
        n += count_parameters(child);
    return n;
}

static void fill_info(tn_model *m)
{
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): no failure becomes TN_OK in model_files_check
    const model_shape *shape = m->flow->shape(m->arch_state);
    m->info.folder = m->folder;
    m->info.model_type = m->arch->model_type;
    m->info.class_name = m->arch->class_name;
    m->info.device = m->device.ops->name;
    m->info.device_ordinal = m->device.ordinal;
    m->info.dtype = m->dtype;
    m->info.layers = shape->layers;
    m->info.hidden = shape->hidden;
    m->info.vocab = shape->vocab;
    m->info.max_positions = shape->max_positions;
    m->info.eos_ids = m->eos;
    m->info.eos_total = m->eos_count;
    for (int64_t i = 0; i < m->eos_count && i < (int64_t)(sizeof m->info.eos / sizeof *m->info.eos); i++)
        m->info.eos[m->info.eos_count++] = m->eos[i];
    m->info.unbounded = shape->rope_count > 0 && shape->rope[0].kind == ROPE_DYNAMIC;
    m->info.parameters = count_parameters(m->target.graph->root);
    m->info.weight_bytes = shards_bytes(m->weights);
    m->info.relaid_bytes = shards_kept_bytes(m->weights);
    m->info.converted_bytes = m->copies.total;
    const group *ranks = parallel_ranks(m);
    m->info.rank = ranks ? ranks->end.rank : 0;
    m->info.ranks = ranks ? ranks->end.ranks : 1;
}

/* A config.json of fewer layers, or of another model, would otherwise go unseen. */
static void tell_unread(const tn_model *m)
{
    size_t count = 0;
    const char *first = NULL;
    bool hears = false; /* what nothing of this model would                                           */
    const model_shape *shape = m->flow->shape(m->arch_state);
    int64_t layers = shape->layers;
    if (m->wrapper && m->wrapper->text_only && !shape->media)
        notices_add("%s: its text model is used; what sees and hears beside it is not read", m->folder);
    for (size_t i = 0; i < shards_count(m->weights) && !shards_is_record(m->weights); i++) {
        const char *name = shards_name(m->weights, i);
        hears |= !shards_taken(m->weights, i) && strstr(name, "audio_tower.");
        if (shards_taken(m->weights, i) || models_leaves(m->arch->model_type, layers, name))
            continue;
        first = first ? first : name;
        count++;
    }
    if (hears && shape->media && !shape->media->audio)
        notices_add("%s: what hears beside its text model is not read", m->folder);
    if (count > 0)
        notices_add("%s: %zu of %zu tensors are read by nothing, %s among them; is config.json that of these weights?",
                    m->folder, count, shards_count(m->weights), first);
}

/* Is m->folder a file that stands for a folder? */
static bool is_gguf(const tn_model *m)
{
    return gguf_is_named(m->folder) && check_folder(m->folder, NULL) != TN_OK;
}

static tn_status check_places(const tn_model *m, tn_error *err)
{
    tn_status status = check_folder(m->folder, err);
    if (status == TN_OK)
        status = place_check(m->folder, "config.json", err);
    return status == TN_OK && !m->weights ? place_check_weights(m->folder, err) : status;
}

static tn_status open_config(tn_model *m, tn_error *err)
{
    tn_status status = check_places(m, err);
    if (status == TN_OK)
        status = locking_folder(m, true, err);
    char *path = status == TN_OK ? path_in(m->folder, "config.json") : NULL;
    if (path)
        m->config = config_open(path, err);
    else if (status == TN_OK)
        status = tn_fail(err, TN_E_MEMORY, m->folder, "out of memory");
    free(path);
    return m->config ? TN_OK : status != TN_OK ? status : err->code;
}

/* The config and, where they are not given, the weights. */
static tn_status open_gguf(tn_model *m, tn_error *err)
{
    gguf *file = locking_folder(m, false, err) == TN_OK ? gguf_open(m->folder, err) : NULL;
    if (!file)
        return err->code;
    m->config = gguf_config_read(file, err);
    if (m->config && !m->weights)
        m->weights = gguf_names_open(file, err);
    else
        gguf_close(file);
    return m->config && m->weights ? TN_OK : err->code;
}

static tn_status open_folder(tn_model *m, const char *name, tn_error *err)
{
    if (!(m->folder = hub_find(name, err)))
        return err->code;
    return is_gguf(m) ? open_gguf(m, err) : open_config(m, err);
}

static tn_status open_text(tn_model *m, const char *text, tn_error *err)
{
    m->config = config_open_text("config.json", text, err);
    if (m->config && !(m->folder = strdup("borrowed model")))
        return tn_fail(err, TN_E_MEMORY, "config.json", "out of memory");
    return m->config ? TN_OK : err->code;
}

/* name: of the folder, or the text of a borrowed model's configuration. */
static tn_status open_parts(tn_model *m, const char *name, const tn_model_options *options, tn_error *err)
{
    tn_status status = m->borrowed ? open_text(m, name, err) : open_folder(m, name, err);
    const char *folder = m->folder;
    if (status != TN_OK)
        return status;
    if ((status = find_arch(m, err)) != TN_OK)
        return status;
    int32_t ordinal;
    const tn_device *found = registry_device(options->device, &ordinal, err);
    if (!found)
        return TN_E_KERNEL;
    if ((status = device_open(&m->device, found, ordinal, registry_device_file(found->name) != NULL, err)) != TN_OK)
        return status;
    m->target.device = &m->device;
    if ((status = open_weights(m, folder, err)) != TN_OK)
        return status;
    m->target.weights_identity = shards_identity(m->weights);
    if ((status = find_dtype(m, options->dtype, err)) != TN_OK)
        return status;
    if ((status = build_graph(m, options, err)) != TN_OK)
        return status;
    if ((status = locking_end(m, err)) != TN_OK)
        return status;
    if ((status = run_supported(&m->device, m->target.graph, err)) != TN_OK)
        return status;
    if ((status = trust_device(m, err)) != TN_OK)
        return status;
    return generation_read(m, err);
}

tn_model *tn_model_open(const char *folder, const tn_model_options *options, tn_error *err)
{
    return model_open(folder, options, NULL, err);
}

/* An empty model; what it was asked for in *asked. weights are its own, also after an error. */
static tn_model *new_model(const tn_model_options *options, tn_model_options *asked, bool borrowed, shards *weights,
                           tn_error *err)
{
    *asked = (tn_model_options){.size = sizeof *asked};
    tn_status status = environment_check(err);
    if (status == TN_OK && options)
        status = structs_take(asked, sizeof *asked, options, "tn_model_options", err);
    if (status == TN_OK && !borrowed && (asked->per_module || asked->weights_change || asked->partial))
        status = tn_fail(err, TN_E_USAGE, "tn_model_options",
                         "per_module, weights_change and partial are for tn_model_borrow; leave them out");
    if (status == TN_OK && asked->adapter && asked->lora)
        status = tn_fail(err, TN_E_USAGE, "tn_model_options", "has adapter and lora; choose one");
    if (status == TN_OK && borrowed && (asked->adapter || asked->lora))
        status = tn_fail(err, TN_E_USAGE, "tn_model_options", "adapter and lora are for tn_model_open; leave them out");
    if (status == TN_OK && asked->lock && (borrowed || asked->adapter))
        status = tn_fail(err, TN_E_USAGE, "lock", "%s is in no lock; leave it out",
                         borrowed ? "borrowed memory" : "an adapter");
    if (status == TN_OK && asked->parallel)
        status = parallel_check(asked, borrowed, err);
    bool mixed = status == TN_OK && asked->dtype && !strcmp(asked->dtype, "mixed");
    if (mixed && (!asked->training || asked->adapter || asked->lora || borrowed))
        status = tn_fail(err, TN_E_USAGE, "dtype",
                         "mixed is for training all weights; an adapter's are trained beside weights in bf16");
    tn_model *m = status == TN_OK ? calloc(1, sizeof *m) : NULL;
    if (!m) {
        shards_close(weights);
        if (status == TN_OK)
            tn_fail(err, TN_E_MEMORY, "model", "out of memory");
        return NULL;
    }
    pthread_rwlock_init(&m->calls, NULL);
    atomic_store(&m->forks, model_forks());
    m->weights = weights;
    m->borrowed = borrowed;
    return m;
}

/* text: of the configuration, or NULL: the folder's is read. */
static tn_model *open_model(const char *folder, const char *text, const tn_model_options *options, shards *weights,
                            tn_dtype dtype, tn_error *err)
{
    tn_error local = TN_ERROR_INIT;
    tn_model_options defaults;
    double start = clock_seconds();
    tn_model *m = new_model(options, &defaults, text, weights, err);
    if (!m)
        return NULL;
    threads_set(defaults.threads);
    m->lacks = (build_lacks){.partial = defaults.partial,
                             .weights_change = defaults.weights_change,
                             .per_module = defaults.per_module,
                             .dtype = dtype};
    m->target.weights_change = defaults.weights_change;
    m->target.training = defaults.training;
    m->target.together = defaults.parallel;
    m->dequantise = defaults.dequantise;
    m->target.applying = defaults.applying;
    m->target.applying_ctx = defaults.progress_ctx;
    tn_status status = parallel_open(m, &defaults, &local);
    if (status == TN_OK)
        status = locking_begin(m, &defaults, &local);
    if (status == TN_OK)
        status = open_parts(m, text ? text : folder, &defaults, &local);
    if (status == TN_OK)
        status = parallel_count(m, &local);
    status = parallel_meet(m, model_files_check(m, status, &local), &local);
    if (status != TN_OK) {
        /* Architectures know their file as "config.json" only. */
        bool config = m->folder && !text && !strcmp(local.where, "config.json");
        char *path = !config ? NULL : is_gguf(m) ? strdup(m->folder) : path_in(m->folder, "config.json");
        if (m->folder && !text)
            hub_explain(folder, m->folder, &local);
        tn_fail(err, local.code, path ? path : local.where, "%s", local.message);
        free(path);
        tn_model_close(m);
        return NULL;
    }
    fill_info(m);
    if (!m->borrowed)
        tell_unread(m);
    m->info.load_seconds = clock_seconds() - start;
    return m;
}

tn_model *model_open(const char *folder, const tn_model_options *options, shards *weights, tn_error *err)
{
    if (folder)
        return open_model(folder, NULL, options, weights, TN_DTYPE_NONE, err);
    structs_missing("folder", err);
    shards_close(weights);
    return NULL;
}

tn_model *model_open_lent(const char *config, const tn_model_options *options, shards *weights, tn_dtype dtype,
                          tn_error *err)
{
    return open_model(NULL, config, options, weights, dtype, err);
}

void tn_model_close(tn_model *m)
{
    if (!m)
        return;
    parallel_end(m);
    apply_close(&m->target);
    if (m->arch_state)
        m->flow->free_state(m->arch_state);
    graph_free(m->target.graph);
    if (m->copies.device)
        build_copies_free(&m->copies);
    device_close(&m->device);
    shards_close(m->weights);
    peft_close(m->adapter);
    lacks_free(&m->lacks);
    config_close(m->config);
    group_close(parallel_ranks(m));
    lockfile_close(m->lock);
    free(m->eos);
    generation_free(m);
    free(m->folder);
    pthread_rwlock_destroy(&m->calls);
    free(m);
}

tn_status tn_model_get_info(const tn_model *model, tn_model_info *info)
{
    if (!model)
        return TN_E_USAGE;
    tn_model_info own = model->info;
    own.packed_bytes = model->target.packed_bytes;
    const group *ranks = parallel_ranks(model);
    if (ranks) {
        own.messages = ranks->messages;
        own.message_bytes = ranks->given;
        own.message_seconds = ranks->seconds;
    }
    return structs_give(info, &own, sizeof own, "tn_model_info", NULL);
}
