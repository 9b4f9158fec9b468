/* Reading a golden case. */
#include "golden.h"
#include "base/gguf.h"
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Those with a gated delta net add up over the whole row: transformers' own other orders are further apart. */
static const double BOUND = 1e-4, BOUND_DELTA = 5e-4;

static void get(const golden *g, const char *name, tn_dtype dtype, int ndim, tn_tensor *t)
{
    if (!tn_safetensors_get(g->expected, name, t) || t->dtype != dtype || t->ndim != ndim)
        *t = (tn_tensor){0};
}

static void get_all(golden *g)
{
    const struct {
        const char *name;
        tn_dtype dtype;
        int ndim;
        tn_tensor *to;
    } list[] = {{"input_ids", TN_I64, 2, &g->ids},
                {"attention_mask", TN_I64, 2, &g->mask},
                {"position_ids", TN_I64, 3, &g->positions},
                {"logits", TN_F32, 3, &g->logits},
                {"logits_bf16", TN_F32, 3, &g->bf16},
                {"logits_act", TN_F32, 3, &g->act},
                {"logits_bf16_truth", TN_F32, 3, &g->truth},
                {"greedy", TN_I64, 1, &g->greedy},
                {"pixel_values", TN_F32, 2, &g->pixels},
                {"image_grid_thw", TN_I64, 2, &g->grid},
                {"image_sizes", TN_I64, 2, &g->sizes},
                {"pixel_values_videos", TN_F32, 2, &g->videos},
                {"video_grid_thw", TN_I64, 2, &g->video_grid},
                {"second_per_grid_ts", TN_F32, 1, &g->video_seconds},
                {"video_features", TN_F32, 2, &g->video_features},
                {"image_position_ids", TN_I64, 3, &g->places},
                {"input_features", TN_F32, 3, &g->sound},
                {"feature_attention_mask", TN_I64, 2, &g->sound_mask},
                {"mm_token_type_ids", TN_I32, 2, &g->token_types},
                {"image_features", TN_F32, 2, &g->image_features},
                {"audio_features", TN_F32, 2, &g->audio_features},
                {"embedding", TN_F32, 2, &g->embedding},
                {"embedding_bf16", TN_F32, 2, &g->embedding_bf16},
                {"last_hidden_state", TN_F32, 3, &g->last_hidden}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        get(g, list[i].name, list[i].dtype, list[i].ndim, list[i].to);
    for (int ndim = 3; ndim <= 5 && !g->pixels.data; ndim++)
        get(g, "pixel_values", TN_F32, ndim, &g->pixels);
    if (!g->video_seconds.data)
        get(g, "video_second_per_grid", TN_F32, 1, &g->video_seconds);
    get(g, "token_type_ids", TN_I64, 2, &g->mutual);
    if (!g->mutual.data)
        get(g, "mm_token_type_ids", TN_I64, 2, &g->mutual);
    if (!g->positions.data)
        get(g, "position_ids", TN_I64, 2, &g->positions);
    if (!g->positions.data) /* where they may be fractions of a second */
        get(g, "position_ids", TN_F32, 3, &g->positions);
    for (int i = 0; i < GOLDEN_DEEP; i++) {
        char name[32];
        snprintf(name, sizeof name, "deepstack.%d", i);
        get(g, name, TN_F32, 2, &g->deepstack[i]);
        g->deep_count += g->deepstack[i].data != NULL;
    }
    if (!g->truth.data)
        g->truth = g->logits;
}

/* The object that describes the text model: the file itself, or one inside it. */
static config_reader text_config(const config_reader *root)
{
    config_reader c = *root;
    if (config_has(&c, "thinker_config"))
        c = config_child(&c, "thinker_config");
    return config_has(&c, "text_config") ? config_child(&c, "text_config") : c;
}

static bool has_delta_net(const config_reader *c)
{
    const char *type = config_str(c, "model_type", "");
    bool delta = !strncmp(type, "qwen3_next", 10) || !strncmp(type, "qwen3_5", 7) || !strcmp(type, "kimi_linear");
    for (int64_t i = 0; i < config_list(c, "layer_types"); i++)
        delta = delta || !strcmp(config_list_str(c, "layer_types", i), "linear_attention");
    return delta;
}

/* Where frequencies follow the length of the row, steps give something else than one pass: what is in the cache keeps
 * those of its time; where Phi-3's long ones begin, all of it is computed anew. */
static void find_steady(golden *g, const config_reader *c)
{
    config_reader old = config_child(c, "rope_scaling"), now = config_child(c, "rope_parameters");
    const config_reader *rope = config_has(c, "rope_scaling") ? &old : &now;
    const char *type = config_str(rope, "rope_type", config_str(rope, "type", "default"));
    int64_t positions = config_i64(c, "max_position_embeddings", INT64_MAX, 1, INT64_MAX), original;
    original = config_i64(rope, "original_max_position_embeddings", positions, 1, INT64_MAX);
    original = config_i64(c, "original_max_position_embeddings", original, 1, INT64_MAX);
    g->steady_until = INT64_MAX;
    if (!strcmp(type, "dynamic"))
        g->steady_until = positions;
    if (!strcmp(type, "longrope") || !strcmp(type, "su")) {
        bool anew = !strncmp(config_str(c, "model_type", ""), "phi3", 4);
        g->steady_until = original;
        g->steady_from = anew ? original : 0;
    }
}

static int64_t token(const config_reader *root, const char *id, const char *index)
{
    config_reader thinker = config_child(root, "thinker_config");
    const config_reader *c = config_has(root, "thinker_config") ? &thinker : root;
    return config_i64(c, id, config_i64(c, index, -1, 0, INT64_MAX), 0, INT64_MAX);
}

static config_file *open_config(const golden *g, tn_error *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/config.json", g->model);
    if (!gguf_is_named(g->model))
        return config_open(path, err);
    gguf *file = gguf_open(g->model, err);
    config_file *config = file ? gguf_config_read(file, err) : NULL;
    gguf_close(file);
    return config;
}

static bool read_config(golden *g, tn_error *err)
{
    tn_status status = TN_OK;
    config_file *file = open_config(g, err);
    if (!file)
        return false;
    config_reader root = config_root(file, &status, err), text = text_config(&root);
    g->bound = has_delta_net(&text) || has_delta_net(&root) ? BOUND_DELTA : BOUND;
    g->image_token = token(&root, "image_token_id", "image_token_index");
    g->video_token = token(&root, "video_token_id", "video_token_index");
    g->audio_token = token(&root, "audio_token_id", "audio_token_index");
    find_steady(g, &text);
    config_close(file);
    return status == TN_OK;
}

static bool is_file(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int is_gguf(const struct dirent *entry)
{
    return gguf_is_named(entry->d_name);
}

/* What is opened: the folder, or the first .gguf in it. false: neither is there. */
static bool find_model(const char *folder, char path[static 4096])
{
    struct dirent **list = NULL;
    bool plain = is_file(folder, "config.json");
    int count = plain ? 0 : scandir(folder, &list, is_gguf, alphasort);
    snprintf(path, 4096, "%s%s%s", folder, count > 0 ? "/" : "", count > 0 ? list[0]->d_name : "");
    for (int i = 0; i < count; i++)
        free(list[i]);
    free(list);
    return plain || count > 0;
}

bool golden_open(golden *g, const char *folder, const char *name, tn_error *err)
{
    char path[4096];
    *g = (golden){.name = name};
    find_model(folder, g->model);
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    g->expected = tn_safetensors_open(path, err);
    if (!g->expected)
        return false;
    get_all(g);
    if (g->ids.data && (g->logits.data || g->embedding.data))
        return read_config(g, err);
    tn_fail(err, TN_E_INPUT, path, "has no input_ids [B,T], or neither logits [B,T,V] nor embedding [B,width]");
    return false;
}

void golden_close(golden *g)
{
    tn_safetensors_close(g->expected);
    g->expected = NULL;
}

bool golden_is_case(const char *folder)
{
    char path[4096];
    return is_file(folder, "expected.safetensors") && find_model(folder, path);
}

/* Of models with several streams, [n,B,T,H], a session gives the first. */
bool golden_hidden(const golden *g, int64_t i, int64_t width, tn_tensor *hidden)
{
    char name[32];
    snprintf(name, sizeof name, "hidden.%lld", (long long)i);
    if (!tn_safetensors_get(g->expected, name, hidden) || hidden->dtype != TN_F32)
        return false;
    int32_t streams = hidden->ndim == 4;
    if (hidden->ndim != 3 + streams)
        return false;
    const int64_t *shape = hidden->shape + streams;
    return shape[0] == g->ids.shape[0] && shape[1] == g->ids.shape[1] && shape[2] == width;
}

bool golden_has_media(const golden *g)
{
    return g->pixels.data || g->videos.data || g->sound.data;
}

float golden_position(const golden *g, int64_t i)
{
    return g->positions.dtype == TN_F32 ? ((const float *)g->positions.data)[i]
                                        : (float)((const int64_t *)g->positions.data)[i];
}

bool golden_masked(const golden *g, int64_t i)
{
    return g->mask.data && ((const int64_t *)g->mask.data)[i] == 0;
}
