/* Tenon: what a program that embeds the runtime includes. The command line is built on nothing
 * else. Strings are UTF-8; pointers that a function returns are borrowed from the object they came
 * from unless its comment says "owned". One model is used by one thread at a time. */
#ifndef TENON_TENON_H
#define TENON_TENON_H

#include <tenon/check.h>
#include <tenon/device.h>
#include <tenon/error.h>
#include <tenon/kernel.h>
#include <tenon/machine.h>
#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_VERSION "0.1.0"

/* The version of the library that is running. */
TN_API const char *tn_version(void);

/* ---- configuration (kernels.json) -------------------------------------------------------- */

typedef struct tn_config tn_config;

/* An empty configuration: no folders, kernels "auto", device "auto", verify "first-use". Owned. */
TN_API tn_config *tn_config_new(void);
TN_API void tn_config_free(tn_config *config);

/* Reads path or, when it is NULL, the first of $TENON_CONFIG, $XDG_CONFIG_HOME/tenon/kernels.json
 * (or ~/.config/...), the installed default; relative plugin folders count from the file's own.
 * A file that was not asked for and does not exist is no error. Owned. */
TN_API tn_config *tn_config_load(const char *path, tn_error *err);

/* Overrides, as the command line's options do. */
TN_API tn_status tn_config_set_plugins(tn_config *config, const char *folder, tn_error *err); /* replaces the list */
TN_API tn_status tn_config_add_plugins(tn_config *config, const char *folder, tn_error *err);
TN_API tn_status tn_config_set_kernels(tn_config *config, const char *spec, tn_error *err);
TN_API tn_status tn_config_set_device(tn_config *config, const char *device, tn_error *err);
/* Most MiB (2^20 bytes) of packed weights that the kernels of a model may hold together; -1: no bound. */
TN_API tn_status tn_config_set_max_packed_mb(tn_config *config, int64_t mb, tn_error *err);
TN_API int64_t tn_config_max_packed_mb(const tn_config *config);
TN_API const char *tn_config_file(const tn_config *config);                 /* NULL: none was read          */
TN_API size_t tn_config_folder_count(const tn_config *config);              /* folders to look for plugins in */
TN_API const char *tn_config_folder(const tn_config *config, size_t index); /* absolute        */
TN_API const char *tn_config_kernels(const tn_config *config);              /* the SPEC                     */
TN_API const char *tn_config_device(const tn_config *config);

/* ---- plugins and kernels (of the process) -------------------------------------------------- */

typedef enum tn_plugin_state {
    TN_PLUGIN_LOADED = 0,
    TN_PLUGIN_SKIPPED,    /* not a plugin: no note                                             */
    TN_PLUGIN_REFUSED,    /* wrong version, machine, descriptor, pin, duplicate                */
    TN_PLUGIN_QUARANTINED /* its trial crashed, hung, left or did not open                     */
} tn_plugin_state;

typedef struct tn_plugin_info {
    const char *file, *name, *version; /* name and version may be empty                        */
    tn_plugin_state state;
    const char *reason; /* empty when loaded without a remark                                  */
    char sha256[65];
} tn_plugin_info;

typedef struct tn_kernel_info {
    const char *id, *version, *summary, *file;
    tn_device_kind device;
    bool available;
    const char *reason; /* why not available; empty otherwise                                  */
} tn_kernel_info;

/* Scans every folder of the configuration. A bad file never fails the scan: it is listed with its
 * reason. Files already loaded are left alone. Fails when a folder itself is refused. */
TN_API tn_status tn_scan(const tn_config *config, tn_error *err);

TN_API size_t tn_plugin_count(void);
TN_API tn_status tn_plugin_get(size_t index, tn_plugin_info *info);

/* Kernels of the device ("cpu", "npu", "auto": the best available), ordered by id; every one is asked
 * whether it is available. list is owned: free it with tn_kernels_free. */
TN_API tn_status tn_kernels_available(const char *device, tn_kernel_info **list, size_t *count, tn_error *err);
TN_API void tn_kernels_free(tn_kernel_info *list, size_t count);

/* ---- a model -------------------------------------------------------------------------------- */

typedef struct tn_model tn_model;

typedef struct tn_model_options {
    uint32_t size;
    const char *dtype;  /* "auto" (or NULL), "f32", "bf16", "f16"                               */
    const char *device; /* "auto" (or NULL), "cpu", ...                                        */
    int32_t threads;    /* 0: one per processor; set once per process                          */
    /* Called while loading with 0 <= done <= total; non-zero return cancels. May be NULL.     */
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *progress_ctx;
    /* The model will be trained: only kernels with a backward are taken, checks include gradients, and
     * tn_site_backward works. */
    bool training;
} tn_model_options;

typedef struct tn_model_info {
    const char *folder, *model_type, *class_name, *device;
    tn_dtype dtype;
    int64_t layers, hidden, vocab, max_positions;
    int64_t parameters, weight_bytes; /* of the mapped checkpoint                              */
    int64_t converted_bytes;          /* copied because another dtype was asked for            */
    int64_t packed_bytes;             /* held by applied kernels                               */
    double load_seconds;
    int64_t eos[8];
    int32_t eos_count;
} tn_model_info;

/* Maps a checkpoint folder and builds its graph; all sites are eager. Owned. */
TN_API tn_model *tn_model_open(const char *folder, const tn_model_options *options, tn_error *err);
TN_API void tn_model_close(tn_model *model);
TN_API tn_status tn_model_get_info(const tn_model *model, tn_model_info *info);

/* ---- choosing and applying kernels ------------------------------------------------------------ */

/* What one kernel says of one site. */
typedef struct tn_verdict {
    const char *kernel;
    bool taken;         /* this kernel has (or would have) the site                             */
    const char *reason; /* the first rule that failed, with both values; empty when it matches  */
} tn_verdict;

typedef struct tn_site_report {
    const tn_site *site;
    const char *kernel;     /* who has (or would have) it; NULL: eager                           */
    const char *covered_by; /* path of the outer site whose kernel does this one's work, or NULL;
                               ADD_RMS_NORM around RMS_NORM has the same path                  */
    size_t verdict_count;
    const tn_verdict *verdicts;
} tn_site_report;

/* The result of planning: sites in graph order. */
typedef struct tn_report {
    size_t site_count;
    const tn_site_report *sites;
    char summary[512]; /* one line: which kernels took how many of how many sites, what was left */
} tn_report;

/* What applying spec would do, and why; nothing changes. spec NULL: the configuration's. A kernel asked
 * for by name that does not exist, is unavailable or takes no site is an error. Owned: tn_report_free. */
TN_API tn_report *tn_model_plan(tn_model *model, const tn_config *config, const char *spec, tn_error *err);

/* What is applied now, in the same form, without verdicts. Owned. */
TN_API tn_report *tn_model_report(tn_model *model, tn_error *err);
TN_API void tn_report_free(tn_report *report);

/* Plans, reserves, packs, checks and commits; on failure the model is as it was before. Sites that a kernel
 * had and the new plan gives to nobody become eager. When report is not NULL it receives an owned report. */
TN_API tn_status tn_apply_kernels(tn_model *model, const tn_config *config, const char *spec, tn_report **report,
                                  tn_error *err);

/* Applies one kernel by id on top of what is applied: it gets every site that it takes, whoever has it now, unless a
 * kernel on an enclosing site does. modules: shell patterns of module paths, comma separated; NULL: those that the
 * configuration has for the kernel, else all. It is an error when it takes no site. */
TN_API tn_status tn_apply_kernel(tn_model *model, const tn_config *config, const char *id, const char *modules,
                                 tn_error *err);

/* Takes one kernel, or all (id NULL), off the model: its sites are eager again, bit for bit. */
TN_API tn_status tn_revert_kernel(tn_model *model, const char *id, tn_error *err);

typedef struct tn_verify_row {
    const char *kernel;
    tn_op op;
    int64_t sites;
    double largest_error; /* in units of the tolerance: 1.0 is the bound                         */
    double largest_ulps, tolerance_ulps;
    char worst_site[128];
    double eager_seconds, kernel_seconds; /* median of a call with `tokens` tokens, summed over sites */
    int64_t tokens;
    bool passed;
    char reason[256]; /* why it failed                                                            */
} tn_verify_row;

/* Runs every site of every applied kernel against eager on the model's own weights with seeded input. rows is
 * owned: free(). Returns TN_E_VERIFY when one is outside its tolerance; rows are filled in that case too. */
TN_API tn_status tn_verify(tn_model *model, tn_verify_row **rows, size_t *count, tn_error *err);

/* What one kernel's packed weights take. Sites with equal weights, for which it packs the same, share one copy. */
typedef struct tn_packed {
    const char *kernel;
    int64_t sites, copies, bytes;
} tn_packed;

/* For every applied kernel that packs, in the order of its first site. list is owned: free(). */
TN_API tn_status tn_model_packed(const tn_model *model, tn_packed **list, size_t *count, tn_error *err);

/* ---- one site ---------------------------------------------------------------------------------- */

/* Performs the operation of one site with what has it: its kernel, or eager (for a site that an outer site's kernel
 * covers, too). Tensors are as kernel.h says of the operation, in the memory of the model's device; they are checked,
 * and nothing is computed when one does not fit. op tells apart sites of one path, such as ADD_RMS_NORM and RMS_NORM.
 * Scratch is allocated for the call and freed: for one step after the other of a model, use a session. */
TN_API tn_status tn_site_forward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                                 const tn_tensor *out, int32_t out_count, tn_error *err);

/* The gradients of the same operation, from the inputs of forward and the upstream gradients in grads->out to those
 * that have data in grads->in and grads->param. The model must have been opened for training. */
TN_API tn_status tn_site_backward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                                  const tn_grads *grads, tn_error *err);

/* ---- running ---------------------------------------------------------------------------------- */

typedef struct tn_session tn_session;

typedef struct tn_session_options {
    uint32_t size;
    int64_t rows;    /* batch rows, at least 1; 0: 1                                            */
    int64_t context; /* positions per row; 0: the model's maximum                               */
    int64_t chunk;   /* most tokens per row computed at once; 0: 512                             */
} tn_session_options;

/* A KV cache and an arena for activations; allocates everything that running will need. Owned. Kernels must not
 * be applied or reverted while sessions of the model exist (it is refused). */
TN_API tn_session *tn_session_new(tn_model *model, const tn_session_options *options, tn_error *err);
TN_API void tn_session_free(tn_session *session);
TN_API void tn_session_reset(tn_session *session); /* forgets all tokens                         */
TN_API int64_t tn_session_length(const tn_session *session);
TN_API size_t tn_session_cache_bytes(const tn_session *session);
TN_API size_t tn_session_arena_bytes(const tn_session *session);

/* Tokens that follow what the session already holds. Arrays are [rows, tokens], dense. */
typedef struct tn_batch {
    uint32_t size;
    int64_t rows, tokens;
    const int64_t *ids;
    const int64_t *mask;      /* 0: padding, on the left; NULL: none                             */
    const int64_t *positions; /* for rope; NULL: counted from the mask                           */
} tn_batch;

/* Where results go; each may be NULL. Owned by the caller. f32 whatever the model's dtype. */
typedef struct tn_outputs {
    uint32_t size;
    float *logits;        /* [rows, tokens, vocab]                                                 */
    float *last_logits;   /* [rows, vocab]                                                         */
    float *const *hidden; /* layers + 1 arrays [rows, tokens, hidden]: the input of the first layer, the
                             outputs of layers 0 .. L-2, the result of the final norm              */
} tn_outputs;

TN_API tn_status tn_session_run(tn_session *session, const tn_batch *batch, const tn_outputs *outputs, tn_error *err);

typedef struct tn_generate_options {
    uint32_t size;
    int64_t max_tokens;
    double temperature; /* 0: greedy                                                              */
    int64_t top_k;      /* 0: all                                                                 */
    double top_p;       /* 0 or 1: all                                                            */
    uint64_t seed;
    bool ignore_eos;
    /* Called for each token as it comes; non-zero return ends the generation (not an error). */
    int (*on_token)(void *ctx, int64_t id);
    /* Called while the prompt is computed. Non-zero return ends it. */
    int (*on_prompt)(void *ctx, int64_t done, int64_t total);
    void *ctx;
} tn_generate_options;

typedef struct tn_generate_result {
    int64_t count; /* tokens written                                                               */
    double prompt_seconds, decode_seconds;
    enum { TN_STOP_LENGTH, TN_STOP_EOS, TN_STOP_CALLBACK, TN_STOP_CONTEXT } stop;
} tn_generate_result;

/* Feeds prompt (at least one token) and appends up to max_tokens tokens to out[max_tokens]. Row 0 of a one-row
 * session. An end-of-sequence token is written and ends it. The last token written has not been fed: whoever goes on
 * begins with it. */
TN_API tn_status tn_generate(tn_session *session, const int64_t *prompt, int64_t prompt_count,
                             const tn_generate_options *options, int64_t *out, tn_generate_result *result,
                             tn_error *err);

/* ---- operations on their own ------------------------------------------------------------------------ */

/* Grouped product on the CPU: y [rows,out] = rows of x [rows,in], sorted by group, times the matrix of their group. w
 * is, by layout, one stack STACKED_OI [groups,out,in] or STACKED_IO [groups,in,out] (w_count 1), or a list of matrices
 * EXPERT_LIST [out,in] or LIST_IO [in,out] (w_count groups). counts: the rows of each group, zeros allowed, as many
 * together as x has. x, y: f32, bf16 or f16; w the same or another of these. Rows may lie apart; y must not overlap
 * what is read. Each call allocates its scratch and frees it.
 *
 * kernel: NULL or "none": eager; "auto": the kernel of this process with the highest priority that takes it, else
 * eager; an id: that kernel, or an error that says why not. The first call of a kernel with matrices of one shape tries
 * it in a child process against eager, as tn_apply_kernels does. */
TN_API tn_status tn_grouped_matmul(const tn_tensor *x, const tn_tensor *w, int64_t w_count, tn_layout layout,
                                   const int64_t *counts, int64_t groups, const tn_tensor *y, const char *kernel,
                                   tn_error *err);

/* Its gradients: grad_y like y is read; grad_x like x and grad_w like w (w_count tensors) are overwritten, each may be
 * NULL. A group without rows has a zero gradient. Sums are f32, rounded once; the same bits on every run. */
TN_API tn_status tn_grouped_matmul_backward(const tn_tensor *x, const tn_tensor *w, int64_t w_count, tn_layout layout,
                                            const int64_t *counts, int64_t groups, const tn_tensor *grad_y,
                                            const tn_tensor *grad_x, const tn_tensor *grad_w, const char *kernel,
                                            tn_error *err);

/* ---- text --------------------------------------------------------------------------------------- */

typedef struct tn_tokenizer tn_tokenizer;

/* Reads tokenizer.json of a folder (or that file itself). Owned. */
TN_API tn_tokenizer *tn_tokenizer_open(const char *path, tn_error *err);
TN_API void tn_tokenizer_free(tn_tokenizer *tokenizer);
TN_API int64_t tn_tokenizer_size(const tn_tokenizer *tokenizer); /* largest id + 1                  */

/* text need not end in NUL. special: apply the post-processor (BOS and the like). ids is owned: free(). */
TN_API tn_status tn_tokenizer_encode(const tn_tokenizer *tokenizer, const char *text, size_t length, bool special,
                                     int64_t **ids, size_t *count, tn_error *err);

/* text is owned: free(); it ends in NUL, which length does not count. Incomplete UTF-8 becomes U+FFFD. */
TN_API tn_status tn_tokenizer_decode(const tn_tokenizer *tokenizer, const int64_t *ids, size_t count, bool skip_special,
                                     char **text, size_t *length, tn_error *err);

/* Decodes token by token; what it returns is always whole characters. */
typedef struct tn_stream tn_stream;
TN_API tn_stream *tn_stream_new(const tn_tokenizer *tokenizer, bool skip_special, tn_error *err);
TN_API void tn_stream_free(tn_stream *stream);
/* The text that id completes ("" when it only begins a character); borrowed until the next call. */
TN_API const char *tn_stream_push(tn_stream *stream, int64_t id, size_t *length, tn_error *err);
TN_API const char *tn_stream_flush(tn_stream *stream, size_t *length, tn_error *err);

/* ---- tensors in files and elsewhere ---------------------------------------------------------------- */

typedef struct tn_safetensors tn_safetensors;

/* Maps one .safetensors file read-only after checking all of its header. Owned. */
TN_API tn_safetensors *tn_safetensors_open(const char *path, tn_error *err);
TN_API void tn_safetensors_close(tn_safetensors *file);
TN_API size_t tn_safetensors_count(const tn_safetensors *file);
TN_API const char *tn_safetensors_name(const tn_safetensors *file, size_t index);
/* false when there is no such tensor; else a view into the mapping. */
TN_API bool tn_safetensors_get(const tn_safetensors *file, const char *name, tn_tensor *tensor);

typedef struct tn_named_tensor {
    const char *name;
    tn_tensor tensor; /* dense */
} tn_named_tensor;

/* Writes to a temporary file beside path and renames it. */
TN_API tn_status tn_safetensors_write(const char *path, const tn_named_tensor *tensors, size_t count, tn_error *err);

struct DLManagedTensor; /* tenon/dlpack.h */

/* A DLPack view; release (may be NULL) is called once with release_ctx by the consumer's deleter. Owned. */
TN_API struct DLManagedTensor *tn_tensor_to_dlpack(const tn_tensor *tensor, void (*release)(void *), void *release_ctx,
                                                   tn_error *err);

/* ---- drawing ------------------------------------------------------------------------------------------ */

typedef enum tn_graph_format { TN_GRAPH_TEXT, TN_GRAPH_JSON, TN_GRAPH_DOT } tn_graph_format;

/* The module tree with its sites and who has them, as text. report: NULL for what is applied. explain adds the
 * verdicts. Owned: free(). */
TN_API char *tn_model_describe(tn_model *model, const tn_report *report, tn_graph_format format, bool explain,
                               tn_error *err);

/* "cpu", "npu" */
TN_API const char *tn_device_name(tn_device_kind kind);

#ifdef __cplusplus
}
#endif
#endif
