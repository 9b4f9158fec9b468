/* Pieces of work for test_memory: what programs do with the library. */
#include "memory_pieces.h"

#include "tempdir.h"
#include "test_kernels.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder, *checked, *unchecked; /* the last two: files of settings */

const char *pieces_folder(void)
{
    return folder;
}

void piece_add(uint64_t *sum, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        *sum = (*sum ^ ((const unsigned char *)data)[i]) * 1099511628211ULL;
}

void piece_add_file(uint64_t *sum, const char *path)
{
    char bytes[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t n; fd >= 0 && (n = read(fd, bytes, sizeof bytes)) > 0;)
        piece_add(sum, bytes, (size_t)n);
    if (fd >= 0)
        close(fd);
}

static tn_status describe(tn_model *m, uint64_t *sum, tn_error *err)
{
    for (tn_graph_format f = TN_GRAPH_TEXT; f <= TN_GRAPH_DOT; f++) {
        char *text = tn_model_describe(m, NULL, f, true, err);
        if (!text)
            return err->code;
        piece_add(sum, text, strlen(text));
        free(text);
    }
    return TN_OK;
}

static tn_status open_model(const char *path, uint64_t *sum, tn_error *err)
{
    tn_model *m = tn_model_open(path, NULL, err);
    tn_status status = m ? describe(m, sum, err) : err->code;
    tn_model_close(m);
    return status;
}

static tn_status generate(const char *path, uint64_t *sum, tn_error *err)
{
    const int64_t prompt[] = {3, 1, 4, 1, 5};
    int64_t out[4] = {0};
    tn_model *m = tn_model_open(path, NULL, err);
    tn_session_options so = {.size = sizeof so, .context = 32, .chunk = 4};
    tn_session *s = m ? tn_session_new(m, &so, err) : NULL;
    tn_generate_options go = {
        .size = sizeof go, .max_tokens = 4, .temperature = 1, .top_k = 9, .top_p = 0.9, .seed = 7};
    go.repetition_penalty = 1.1;
    go.ignore_eos = true;
    tn_generate_result r = {.size = sizeof r};
    tn_status status = s ? tn_generate(s, prompt, 5, &go, out, &r, err) : err->code;
    if (status == TN_OK)
        piece_add(sum, out, sizeof out);
    tn_session_reset(s);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 5, .ids = prompt};
    if (status == TN_OK && (status = tn_generate_rows(s, &batch, &go, out, NULL, err)) == TN_OK)
        piece_add(sum, out, sizeof out);
    tn_session_free(s);
    tn_model_close(m);
    return status;
}

static tn_status embed(const char *path, uint64_t *sum, tn_error *err)
{
    const int64_t ids[] = {3, 1, 4, 1, 5, 9};
    float out[256] = {0};
    tn_model *m = tn_model_open(path, NULL, err);
    tn_embedder *e = m ? tn_embedder_open(m, NULL, err) : NULL;
    tn_embedder_info info = {.size = sizeof info};
    tn_batch batch = {.size = sizeof batch, .rows = 2, .tokens = 3, .ids = ids};
    tn_status status = !e ? err->code : tn_embedder_get_info(e, &info);
    if (status == TN_OK && (status = tn_embed(e, &batch, 0, out, err)) == TN_OK)
        piece_add(sum, out, (size_t)(2 * info.width) * sizeof *out);
    tn_embedder_close(e);
    tn_model_close(m);
    return status;
}

static int add_text(void *sum, const char *text, size_t length)
{
    piece_add(sum, text, length);
    return 0;
}

static tn_status continue_text(const char *path, uint64_t *sum, tn_error *err)
{
    tn_continue_options o = {.size = sizeof o, .kernels = "none", .max_tokens = 3, .on_text = add_text, .ctx = sum};
    return tn_continue_text(path, "And", &o, err);
}

/* Kernels of this program, applied with or without the check in a child; what they do is not compared: where memory
 * is out a kernel may be declined. */
static tn_config *kernels_known(bool check, tn_error *err)
{
    tn_config *c = tn_config_load(check ? checked : unchecked, err);
    return c && tn_scan(c, err) == TN_OK ? c : (tn_config_free(c), NULL);
}

static tn_status run_applied(tn_model *m, tn_error *err)
{
    const int64_t ids[] = {3, 1, 4};
    tn_packed **packed = NULL;
    size_t count = 0;
    tn_session_options so = {.size = sizeof so, .context = 16};
    tn_session *s = tn_session_new(m, &so, err);
    tn_batch b = {.size = sizeof b, .rows = 1, .tokens = 3, .ids = ids};
    tn_status status = s ? tn_session_run(s, &b, NULL, err) : err->code;
    tn_session_free(s);
    if (status == TN_OK)
        status = tn_model_packed(m, &packed, &count, err);
    free(packed);
    return status;
}

static tn_status apply(const char *path, uint64_t *sum, tn_error *err)
{
    tn_report *report = NULL;
    tn_config *c = kernels_known(false, err);
    tn_model *m = c ? tn_model_open(path, NULL, err) : NULL;
    tn_status status = m ? tn_apply_kernels(m, c, "auto", &report, err) : err->code;
    for (tn_graph_format f = TN_GRAPH_TEXT; status == TN_OK && f <= TN_GRAPH_DOT; f++) {
        char *text = tn_model_describe(m, report, f, true, err);
        status = text ? TN_OK : err->code;
        free(text);
    }
    tn_report_free(report);
    report = status == TN_OK ? tn_model_report(m, err) : NULL;
    status = report ? tn_model_shadow(m, 0.5, "shadow", err) : err->code;
    tn_report_free(report);
    status = status == TN_OK ? run_applied(m, err) : status;
    status = status == TN_OK ? tn_apply_kernel(m, c, "norm", "model.layers.0.*", err) : status;
    status = status == TN_OK ? tn_revert_kernel(m, "norm", err) : status;
    *sum = 0;
    tn_model_close(m);
    tn_config_free(c);
    return status;
}

static tn_status apply_checked(const char *path, uint64_t *sum, tn_error *err)
{
    tn_config *c = kernels_known(true, err);
    tn_model *m = c ? tn_model_open(path, NULL, err) : NULL;
    tn_report *report = m ? tn_model_plan(m, c, "auto", err) : NULL;
    tn_status status = report ? tn_apply_kernels(m, c, "norm", NULL, err) : err->code;
    status = status == TN_OK ? run_applied(m, err) : status; /* first calls are compared              */
    *sum = 0;
    tn_report_free(report);
    tn_model_close(m);
    tn_config_free(c);
    return status;
}

static tn_status verify(const char *path, uint64_t *sum, tn_error *err)
{
    tn_verify_row **rows = NULL;
    size_t count = 0;
    tn_config *c = kernels_known(false, err);
    tn_model *m = c ? tn_model_open(path, NULL, err) : NULL;
    tn_status status = m ? tn_apply_kernels(m, c, "norm", NULL, err) : err->code;
    status = status == TN_OK ? tn_verify(m, &rows, &count, err) : status;
    *sum = 0;
    free(rows);
    tn_model_close(m);
    tn_config_free(c);
    return status;
}

static tn_status compare_text(const char *path, uint64_t *sum, tn_error *err)
{
    const int64_t ids[] = {3, 1, 4, 1, 5, 9, 2, 6};
    tn_text_options o = {.size = sizeof o, .window = 4};
    tn_text_report *report = NULL;
    tn_config *c = kernels_known(false, err);
    tn_model *m = c ? tn_model_open(path, NULL, err) : NULL;
    tn_status status = m ? tn_apply_kernels(m, c, "auto", NULL, err) : err->code;
    status = status == TN_OK ? tn_compare_text(m, ids, 8, &o, &report, err) : status;
    for (size_t i = 0; report && i < report->row_count; i++) {
        const tn_text_row *row = report->rows[i];
        const double seen[] = {row->rms,   row->distance_eager,   row->distance_kernels,
                               row->worst, row->perplexity_eager, row->perplexity_kernels};
        piece_add(sum, seen, sizeof seen);
    }
    tn_text_report_free(report);
    tn_model_close(m);
    tn_config_free(c);
    return status;
}

static tn_status one_site(const char *path, uint64_t *sum, tn_error *err)
{
    static float x[2 * 64], y[2 * 64], up[2 * 64], down[2 * 64];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = up[i] = (float)(i % 5) - 2;
    tn_tensor in = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){2, 64}), out = in, grad_out = in, grad_in = in;
    out.data = y;
    grad_out.data = up;
    grad_in.data = down;
    tn_model_options o = {.size = sizeof o, .training = true};
    tn_model *m = tn_model_open(path, &o, err);
    const tn_grads grads = {.size = sizeof grads, .out = {grad_out}, .in = {grad_in}};
    tn_status status = m ? tn_site_forward(m, "model.layers.0.mlp", TN_OP_MLP, &in, 1, &out, 1, err) : err->code;
    if (status == TN_OK)
        status = tn_site_backward(m, "model.layers.0.mlp", TN_OP_MLP, &in, 1, &grads, err);
    if (status == TN_OK) {
        piece_add(sum, y, sizeof y);
        piece_add(sum, down, sizeof down);
    }
    tn_model_close(m);
    return status;
}

static const char TEXT[] =
    "It\xe2\x80\x99s 12,345 na\xc3\xafve caf\xc3\xa9s \xe4\xb8\xad\xe6\x96\x87 <s>and</s>\n\n  so on, "
    "internationalization-antidisestablishmentarianism!";

static tn_status stream(const tn_tokenizer *t, const int64_t *ids, size_t count, uint64_t *sum, tn_error *err)
{
    size_t length;
    tn_stream *s = tn_stream_new(t, false, err);
    for (size_t i = 0; s && i < count; i++) {
        const char *text = tn_stream_push(s, ids[i], &length, err);
        if (!text)
            break;
        piece_add(sum, text, length);
    }
    const char *rest = s && err->code == TN_OK ? tn_stream_flush(s, &length, err) : NULL;
    if (rest)
        piece_add(sum, rest, length);
    tn_stream_free(s);
    return err->code;
}

static tn_status tokenize(const char *path, uint64_t *sum, tn_error *err)
{
    int64_t *ids = NULL;
    char *text = NULL;
    size_t count = 0, length = 0;
    tn_tokenizer *t = tn_tokenizer_open(path, err);
    tn_status status = t ? tn_tokenizer_encode(t, TEXT, sizeof TEXT - 1, true, &ids, &count, err) : err->code;
    if (status == TN_OK)
        status = tn_tokenizer_decode(t, ids, count, true, &text, &length, err);
    if (status == TN_OK)
        status = stream(t, ids, count, sum, err);
    if (status == TN_OK) {
        piece_add(sum, ids, count * sizeof *ids);
        piece_add(sum, text, length);
    }
    free(ids);
    free(text);
    tn_tokenizer_free(t);
    return status;
}

static tn_status stop(const char *path, uint64_t *sum, tn_error *err)
{
    static const char *const texts[] = {"END", "\n\n", "</s>"};
    size_t length = 0;
    bool found;
    tn_stop_text *s = tn_stop_text_new(texts, 3, err);
    const char *out = s ? tn_stop_text_push(s, path, strlen(path), &length, &found, err) : NULL;
    if (out)
        piece_add(sum, out, length);
    tn_stop_text_free(s);
    return out ? TN_OK : err->code;
}

static const char MESSAGES[] =
    "[{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"Weather?\"},"
    " {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"abc123def\", \"type\": \"function\","
    " \"function\": {\"name\": \"get\", \"arguments\": {\"city\": \"Paris\", \"n\": 1.5}}}]},"
    " {\"role\": \"tool\", \"name\": \"get\", \"tool_call_id\": \"abc123def\", \"content\": \"{}\"}]";
static const char TOOLS[] = "[{\"type\": \"function\", \"function\": {\"name\": \"get\", \"description\": \"x <&>\","
                            " \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";

static tn_status render_with(tn_template *t, uint64_t *sum, tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    tn_render_options o = {.size = sizeof o, .add_generation_prompt = true, .tools = TOOLS};
    o.variables = "{\"enable_thinking\": true, \"eos_token\": \"</s>\", \"bos_token\": \"<s>\"}";
    tn_status status = t ? tn_template_render(t, MESSAGES, sizeof MESSAGES - 1, &o, &text, &length, err) : err->code;
    if (status == TN_OK)
        piece_add(sum, text, length);
    free(text);
    tn_template_free(t);
    return status;
}

static tn_status render(const char *path, uint64_t *sum, tn_error *err)
{
    return render_with(tn_template_open(path, err), sum, err);
}

/* What the templates of models leave out. */
static const char LANGUAGE[] =
    "{%- macro row(a, b='-') %}[{{ a }}|{{ b }}{{ caller() if caller else '' }}]{% endmacro -%}"
    "{%- set ns = namespace(n=0, l=[1, 2]) %}{% set x, y = (1, 'two') %}{% set ns.n = 3 -%}"
    "{% call row(1) %}in{% endcall %}{% filter upper %}quiet{% endfilter %}"
    "{% for k, v in {'b': 2, 'a': [1, {'c': none}]}.items() recursive %}{{ loop.index }}{{ k }}{{ v | tojson(indent=1) "
    "}}"
    "{% else %}none{% endfor %}"
    "{{ [3, 1, 2] | sort | join('-') }}{{ 'a,b,c'.split(',') | list | reverse | list }}{{ 'x' * 20 ~ y }}"
    "{{ messages | map(attribute='role') | list }}{{ messages | selectattr('role', 'equalto', 'user') | list | length "
    "}}"
    "{{ messages | groupby('role') | list | length }}{{ [1, 2, 3, 4] | batch(3) | list }}{{ {'z': 1} | dictsort }}"
    "{{ 'a b' | title | replace('A', 'o') | indent(2) }}{{ '%s is %d' | format('n', ns.n) }}"
    "{{ (1, 2) + (3,) }}{{ 'abcdef'[1:5:2] }}{{ [1, 2, 3][::-1] }}{{ range(5) | list }}{{ [1, 1, 2] | unique | list }}"
    "{{ 'q' is string and [] is iterable }}{{ undefined_name | default('d') }}{{ 10 // 3 }}{{ 2 ** 8 }}{{ 7 % 4 }}"
    "{{ 'word ' * 9 | wordcount }}{{ 'One two' | lower | capitalize | center(20) }}{{ '<' | e }}{{ ' s '.strip() }}"
    "{{ strftime_now('%Y') | length }}";

static tn_status render_language(const char *path, uint64_t *sum, tn_error *err)
{
    return render_with(tn_template_parse(LANGUAGE, sizeof LANGUAGE - 1, path, err), sum, err);
}

static tn_status read_and_write(const char *path, uint64_t *sum, tn_error *err)
{
    static float data[6] = {1, 2, 3, 4, 5, 6};
    tn_named_tensor list[2] = {{"a", tn_tensor_dense(data, TN_F32, 2, (int64_t[]){2, 3})},
                               {"b", tn_tensor_dense(data, TN_F32, 1, (int64_t[]){6})}};
    char name[4096];
    tn_tensor view;
    snprintf(name, sizeof name, "%s/%s", folder, path);
    tn_status status = tn_safetensors_write(name, list, 2, err);
    tn_safetensors *file = status == TN_OK ? tn_safetensors_open(name, err) : NULL;
    if (file && tn_safetensors_get(file, "b", &view))
        piece_add(sum, view.data, sizeof data);
    tn_safetensors_close(file);
    unlink(name);
    return err->code;
}

static tn_status configure(const char *path, uint64_t *sum, tn_error *err)
{
    tn_config *c = tn_config_load(checked, err);
    (void)path;
    tn_status status = c ? tn_config_set_kernels(c, "npu_fused_rope,auto,-npu_fused_swiglu", err) : err->code;
    const char *json = "{\"name\": \"auto\", \"include_kernels\": [\"npu_fused_rope\"], \"chunk_size\": 32}";
    status = status == TN_OK ? tn_config_set_kernels(c, json, err) : status;
    status = status == TN_OK ? tn_config_add_plugins(c, folder, err) : status;
    status = status == TN_OK ? tn_config_set_device(c, "cpu:0", err) : status;
    status = status == TN_OK ? tn_check_folders(c, err) : status;
    if (status == TN_OK)
        piece_add(sum, tn_config_kernels(c), strlen(tn_config_kernels(c)));
    tn_config_free(c);
    return status;
}

static tn_status prune(const char *path, uint64_t *sum, tn_error *err)
{
    tn_cache_limits limits = {.size = sizeof limits, .kind = path};
    tn_cache_removed removed = {.size = sizeof removed};
    tn_cache_kind **kinds = NULL;
    size_t count = 0;
    char *where = tn_cache_folder(err);
    tn_status status = where ? tn_cache_prune(&limits, &removed, err) : err->code;
    if (status == TN_OK)
        status = tn_cache_list(&kinds, &count, err);
    for (size_t i = 0; i < count; i++)
        piece_add(sum, kinds[i]->name, strlen(kinds[i]->name));
    free(kinds);
    free(where);
    return status;
}

static tn_status multiply(const char *path, uint64_t *sum, tn_error *err)
{
    static float x[5 * 8], w[3 * 6 * 8], y[5 * 6], grad_x[5 * 8], grad_w[3 * 6 * 8];
    static const int64_t counts[] = {2, 0, 3};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)i;
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        w[i] = (float)(i % 7);
    tn_tensor tx = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){5, 8});
    tn_tensor tw = tn_tensor_dense(w, TN_F32, 3, (int64_t[]){3, 6, 8});
    tn_tensor ty = tn_tensor_dense(y, TN_F32, 2, (int64_t[]){5, 6});
    tn_tensor gx = tn_tensor_dense(grad_x, TN_F32, 2, (int64_t[]){5, 8});
    tn_tensor gw = tn_tensor_dense(grad_w, TN_F32, 3, (int64_t[]){3, 6, 8});
    (void)path;
    tn_status status = tn_grouped_matmul(&tx, &tw, 1, TN_LAYOUT_STACKED_OI, counts, 3, &ty, NULL, err);
    if (status == TN_OK)
        status = tn_grouped_matmul_backward(&tx, &tw, 1, TN_LAYOUT_STACKED_OI, counts, 3, &ty, &gx, &gw, NULL, err);
    if (status == TN_OK)
        piece_add(sum, y, sizeof y);
    if (status == TN_OK)
        piece_add(sum, grad_w, sizeof grad_w);
    return status;
}

#define MODELS "tests/data/models/"
#define TOKENIZERS "tests/data/tokenizers/"
#define TEMPLATES "tests/data/templates/"
#define GGUF "tests/data/fuzz/gguf/"

/* A .gguf, and again in the place of the first. */
static tn_status quantize(const char *path, uint64_t *sum, tn_error *err)
{
    char out[PATH_MAX];
    snprintf(out, sizeof out, "%s/q.gguf", folder);
    tn_status status = tn_quantize(path, out, "Q4_K_M", NULL, err);
    if (status == TN_OK)
        piece_add_file(sum, out);
    return status;
}

/* The same with a text that is read first. */
static tn_status quantize_read(const char *path, uint64_t *sum, tn_error *err)
{
    static const int64_t ids[128] = {1, 2, 3};
    const tn_quantize_options o = {.size = sizeof o, .ids = ids, .id_count = 128};
    char out[PATH_MAX];
    snprintf(out, sizeof out, "%s/q.gguf", folder);
    tn_status status = tn_quantize(path, out, "Q4_0", &o, err);
    if (status == TN_OK)
        piece_add_file(sum, out);
    return status;
}

/* Each time a new one. */
static tn_status quantize_folder(const char *path, uint64_t *sum, tn_error *err)
{
    static int made;
    char out[PATH_MAX], file[PATH_MAX + 32];
    snprintf(out, sizeof out, "%s/fp8-%d", folder, made++);
    snprintf(file, sizeof file, "%s/model.safetensors", out);
    tn_status status = tn_quantize(path, out, "FP8", NULL, err);
    if (status == TN_OK)
        piece_add_file(sum, file);
    return status;
}

const piece pieces[] = {
    {.name = "llama", .path = MODELS "llama", .work = open_model},
    {.name = "deepseek_v3", .path = MODELS "deepseek_v3", .work = open_model},
    {.name = "gemma3n_text", .path = MODELS "gemma3n_text", .work = open_model},
    {.name = "gpt_oss", .path = MODELS "gpt_oss", .work = open_model},
    {.name = "qwen3_next", .path = MODELS "qwen3_next", .work = open_model},
    {.name = "qwen3_vl_moe", .path = MODELS "qwen3_vl_moe", .work = open_model},
    {.name = "qwen3_omni", .path = MODELS "qwen3_omni_moe_thinker", .work = open_model},
    {.name = "gpt2", .path = MODELS "gpt2", .work = open_model},
    {.name = "bloom", .path = MODELS "bloom", .work = open_model},
    {.name = "stablelm", .path = MODELS "stablelm_qknorm", .work = open_model},
    {.name = "opt", .path = MODELS "opt_bare", .work = generate},
    {.name = "gptq", .path = MODELS "gptq_act_order", .work = open_model},
    {.name = "mxfp4", .path = MODELS "gpt_oss_mxfp4", .work = open_model},
    {.name = "nf4", .path = MODELS "bnb_nf4", .work = open_model},
    {.name = "gguf", .path = MODELS "gguf_mixtral/model.gguf", .work = open_model},
    {.name = "generate", .path = MODELS "qwen3", .work = generate},
    {.name = "engine", .path = MODELS "qwen3", .work = piece_serve},
    {.name = "engine_states", .path = MODELS "lfm2_moe", .work = piece_serve},
    {.name = "continue", .path = "models/demo", .work = continue_text},
    {.name = "embed", .path = MODELS "embeddinggemma", .work = embed},
    {.name = "generate_moe", .path = MODELS "qwen3_moe", .work = generate},
    {.name = "site", .path = MODELS "llama", .work = one_site},
    {.name = "apply", .path = MODELS "llama", .work = apply, .kernels = true},
    {.name = "apply-checked", .path = MODELS "llama", .work = apply_checked, .kernels = true},
    {.name = "verify", .path = MODELS "llama", .work = verify, .kernels = true},
    {.name = "compare_text", .path = MODELS "llama", .work = compare_text, .kernels = true},
    {.name = "dataset", .path = "tests/data/dataset/formats.jsonl", .work = piece_read_data},
    {.name = "gpt-2", .path = TOKENIZERS "gpt-2/tokenizer.json", .work = tokenize},
    {.name = "qwen2", .path = TOKENIZERS "qwen2/tokenizer.json", .work = tokenize},
    {.name = "llama-3", .path = TOKENIZERS "llama-3/tokenizer.json", .work = tokenize},
    {.name = "falcon", .path = TOKENIZERS "falcon/tokenizer.json", .work = tokenize},
    {.name = "phi-3", .path = TOKENIZERS "phi-3/tokenizer.json", .work = tokenize},
    {.name = "wordpiece", .path = TOKENIZERS "wordpiece/tokenizer.json", .work = tokenize},
    {.name = "wordlevel", .path = TOKENIZERS "wordlevel/tokenizer.json.gz", .work = tokenize},
    {.name = "unigram", .path = TOKENIZERS "unigram/tokenizer.json.gz", .work = tokenize},
    {.name = "unigram-bytes", .path = TOKENIZERS "unigram-bytes/tokenizer.json", .work = tokenize},
    {.name = "sentencepiece", .path = TOKENIZERS "sentencepiece-unigram", .work = tokenize},
    {.name = "sentencepiece-bpe", .path = TOKENIZERS "sentencepiece-bpe-bare", .work = tokenize},
    {.name = "gguf-bytes", .path = GGUF "qwen2.gguf", .work = tokenize},
    {.name = "gguf-pieces", .path = GGUF "llama.gguf", .work = tokenize},
    {.name = "gguf-template", .path = GGUF "qwen2.gguf", .work = render},
    {.name = "stop", .path = "the <EN </s", .work = stop},
    {.name = "qwen3-template", .path = TEMPLATES "qwen3/template.jinja", .work = render},
    {.name = "smollm3-template", .path = TEMPLATES "smollm3/template.jinja", .work = render},
    {.name = "nemo-template", .path = TEMPLATES "mistral-nemo/template.jinja", .work = render},
    {.name = "language", .path = "language", .work = render_language},
    {.name = "see", .path = "qwen2_vl", .work = piece_see},
    {.name = "see_tiles", .path = "llava_next", .work = piece_see},
    {.name = "hear", .path = MODELS "qwen2_5_omni_thinker", .work = piece_hear},
    {.name = "see_places", .path = "gemma4", .work = piece_see},
    {.name = "see_marks", .path = "llama4", .work = piece_see},
    {.name = "constrain", .path = TOKENIZERS "gpt-2", .work = piece_constrain},
    {.name = "safetensors", .path = "file.safetensors", .work = read_and_write},
    {.name = "configure", .path = NULL, .work = configure},
    {.name = "prune", .path = "trials", .work = prune},
    {.name = "quantize", .path = "models/demo", .work = quantize},
    {.name = "quantize_read", .path = MODELS "qwen3_moe", .work = quantize_read},
    {.name = "quantize_latent", .path = MODELS "deepseek_v3", .work = quantize},
    {.name = "quantize_folder", .path = MODELS "llama", .work = quantize_folder},
    {.name = "multiply", .path = NULL, .work = multiply},
    {.name = "learn", .path = MODELS "llama", .work = piece_learn},
    {.name = "adapt", .path = MODELS "llama", .work = piece_adapt},
    {.name = "lock", .path = MODELS "qwen2", .work = piece_lock},
    {.name = "lock_gguf", .path = MODELS "gguf_mixtral/model.gguf", .work = piece_lock},
    {.name = "borrow", .path = NULL, .work = piece_borrow, .kernels = true},
};

const size_t piece_count = sizeof pieces / sizeof *pieces;

/* Something to prune. */
static void put_into_cache(void)
{
    char *cache = tempdir_path(folder, "tenon");
    mkdir(cache, 0700);
    char *file = tempdir_path(cache, "checked-0123456789abcdef");
    tempdir_write(file, "text", 4);
    free(file);
    free(cache);
}

void pieces_open(void)
{
    static const char own[] = "{\"plugins\": [], \"verify\": \"first-use\"}";
    static const char none[] = "{\"plugins\": [], \"verify\": \"never\"}";
    folder = tempdir_new();
    setenv("XDG_CACHE_HOME", folder, 1);
    checked = tempdir_path(folder, "checked.json");
    unchecked = tempdir_path(folder, "unchecked.json");
    tempdir_write(checked, own, sizeof own - 1);
    put_into_cache();
    pieces_put_seeing(folder);
    tempdir_write(unchecked, none, sizeof none - 1);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
}

void pieces_close(void)
{
    free(checked);
    free(unchecked);
    tempdir_remove(folder);
}
