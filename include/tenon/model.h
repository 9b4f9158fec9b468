/* Tenon: models, and the kernels on them. tenon.h has the rules. */
#ifndef TENON_MODEL_H
#define TENON_MODEL_H

#include <tenon/plugins.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_model tn_model;

/* An adapter to begin with: A evenly drawn as peft does, B zero, so that nothing changes at first. */
typedef struct tn_lora {
    uint32_t size;
    int64_t rank;   /* 0: 8                                                                        */
    double alpha;   /* B A counts alpha / rank times; 0: twice the rank                            */
    bool rslora;    /* ... alpha / sqrt(rank) times                                                */
    double dropout; /* of what A sees, while training alone                                       */
    /* NULL or "all": every linear layer of the text model but the head; names between commas, "q_proj,v_proj", that
     * paths of modules equal or end in; or a regular expression of a whole path. */
    const char *targets;
    uint64_t seed; /* of A                                                                         */
} tn_lora;

typedef struct tn_model_options {
    uint32_t size;
    /* "auto" (or NULL), "f32", "bf16", "f16"; or, where all weights will be trained, "mixed": f32, but for products
     * with weights and attention, which round what they read and give to bf16 (autocast over f32 weights). */
    const char *dtype;
    const char *device; /* NAME[:ORDINAL], such as "cpu"; "auto" (or NULL): the CPU            */
    /* 0: one per core that it may use; no more than there are processors, or 4, are made. Of the whole process: what
     * the last call says. */
    int32_t threads;
    /* Called while loading with 0 <= done <= total; non-zero return cancels. May be NULL. On the thread that opens. */
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *progress_ctx;
    /* The model will be trained: only kernels with a backward are taken, checks include gradients, and
     * tn_site_backward works. */
    bool training;
    /* The same as progress, with progress_ctx, which must live as long as the model then: called while kernels that no
     * earlier run knows are checked ("checking kernels, only the first time") and timed, when they are planned or
     * applied, and site by site where they are verified ("verifying kernels"), on the thread that does it. total is
     * known before, done never becomes less and is total in the end, unless something fails. After a non-zero return
     * TN_E_CANCELLED comes back, and the model is as it was. */
    int (*applying)(void *ctx, const char *what, int64_t done, int64_t total);
    /* Quantised weights are copied as values of the model's dtype: for devices and kernels that cannot take codes. */
    bool dequantise;
    /* The rest is of tn_model_borrow (borrow.h) alone; tn_model_open refuses it. Sites are used one by one, as modules:
     * ADD_RMS_NORM, which spans two, goes to no kernel, so that the norms inside may. Aligned beyond the padding of the
     * struct as it was, which its callers may have left as it came. */
    bool per_module __attribute__((aligned(8)));
    /* The lent memory may be written to at any time: kernels that pack weights decline, and what would have to be
     * copied or read only once is not: its sites are declined, each with that reason. */
    bool weights_change;
    /* A tensor that is not lent, or does not lie as it must, is no error: its sites are declined with its name. */
    bool partial;
    /* Folder of an adapter as peft writes them (adapter_config.json, adapter_model.safetensors): the model computes
     * with it, and a trainer trains it alone. NULL: none. What of it is not supported, or does not fit the model, is
     * TN_E_INPUT that names the key, with the shapes. */
    const char *adapter;
    const tn_lora *lora; /* the same of a new adapter; not both                                   */
    /* "tensor" (parts of every layer), "sums" (the same, of what ranks add up), "experts" (the same, experts whole) or
     * "pipeline" (whole layers), or one of them with "=N": the model is cut over the ranks of a group, N of them; or
     * "pipeline=N,tensor=M" (sums, experts): over N stages of M ranks, which are neighbours and cut the stage's layers.
     * tn_follow (parallel.h) is what ranks but 0 call. NULL: this process computes it alone. Not for training,
     * adapters, borrowed memory, or devices but the CPU; no kernel is timed, since all ranks must choose alike.
     * "replicas": the ranks train it, each with all of it (train.h), with or without an adapter. */
    const char *parallel;
    /* This process's end of the group, which the model takes over, also where opening it fails once the options were
     * found right; NULL: the kind that a plugin brings is opened. */
    const struct tn_group *group;
    double patience; /* seconds that a wait for other ranks may last; 0: 60                         */
    /* File that tn_lock_model (lock.h) wrote: the checkpoint's files, the library and all plugins of the process must
     * be those of then, byte for byte, else the model is not opened: TN_E_INPUT or TN_E_KERNEL with the file and the
     * range. A rank looks at what it reads. Not with an adapter or borrowed memory. NULL: none. */
    const char *lock;
} tn_model_options;

/* Its strings belong to the model. */
typedef struct tn_model_info {
    uint32_t size;
    tn_dtype dtype;
    const char *folder, *model_type, *class_name;
    const char *device; /* the device's name, and which unit of it                              */
    int32_t device_ordinal;
    int32_t eos_count; /* of eos: the first ones of eos_ids                                      */
    int64_t eos[8];
    int64_t layers, hidden, vocab, max_positions;
    int64_t parameters, weight_bytes; /* of the mapped checkpoint                              */
    int64_t converted_bytes;          /* copied: another dtype was asked for, or the device has its own memory */
    int64_t packed_bytes;             /* held by applied kernels                               */
    double load_seconds;
    bool unbounded; /* rotary frequencies follow the length (dynamic): max_positions is where that begins, no bound */
    int64_t eos_total; /* tokens that end a text, all of them                                      */
    const int64_t *eos_ids;
    int64_t relaid_bytes;           /* of quantised weights and scales in another order than the file's      */
    int32_t rank, ranks;            /* of a parallel model: this process's, and how many; else 0 and 1        */
    int64_t cut_bytes, whole_bytes; /* of it: weights that its operations read, of which the ranks have parts, or all */
    int64_t messages, message_bytes; /* of it, so far: calls of its group, and what this rank gave in them       */
    double message_seconds;          /* ... and how long they took, with waiting for other ranks                */
    /* Of it, this rank's of the first layer of its own that has such a thing: heads of queries and of keys, elements of
     * an MLP's or an expert's inner row, experts; and tokens whose logits it makes. */
    int64_t own_heads, own_kv_heads, own_inner, own_experts, own_vocab;
} tn_model_info;

/* Maps a checkpoint folder, or a .gguf file with those that it was split into, and builds its graph; all sites are
 * eager. Where there is no such folder, a name ORG/NAME[@REVISION] means the model's snapshot in the cache of the
 * Hugging Face Hub (docs/models.md); nothing is fetched, and tn_model_get_info has the folder that was found. options
 * may be NULL. A device that does not perform an operation of the model is an error that names both; so is a plugin's
 * device that performs one otherwise than the CPU, which is tried here. Owned: tn_model_close. [any thread] */
TN_API tn_model *tn_model_open(const char *folder, const tn_model_options *options, tn_error *err);

/* The folder, in the local cache of the Hugging Face Hub, of the model id (ORG/NAME, NAME, or either with @REVISION);
 * revision: a branch, tag or hash, in place of one behind an @; NULL: none is given. Nothing is fetched: what is not
 * there is TN_E_INPUT with the command that fetches it. Folders of that name are not looked for, as tn_model_open does
 * first. Owned: free(). [any thread] */
TN_API char *tn_hub_folder(const char *id, const char *revision, tn_error *err);

/* No sessions and no bounds open: theirs are gone with it. [one thread] */
TN_API void tn_model_close(tn_model *model);

/* Writes a checkpoint as tn_trainer_save does, with the adapter of the model in its weights: W + s B A in f32, rounded
 * once (of experts whose factors are stacked twice, as peft: s B A, and the sum). TN_E_USAGE: the model has no adapter,
 * was opened from a .gguf, or is quantised. [one thread] */
TN_API tn_status tn_model_merge(tn_model *model, const char *folder, tn_error *err);

TN_API tn_status tn_model_get_info(const tn_model *model, tn_model_info *info); /* [one thread] */

/* How the authors of a checkpoint draw tokens: what generation_config.json says, with transformers' defaults. The
 * fields mean what those of tn_generate_options do. */
typedef struct tn_sampling {
    uint32_t size;
    double temperature; /* 0: greedy, where do_sample is false or absent                          */
    int64_t top_k;      /* 0: all                                                                 */
    double top_p, min_p, repetition_penalty; /* 1, 0 and 1 have no effect                         */
    size_t stop_count;                       /* of stop_strings, as tn_stop_text_new takes them            */
    const char *const *stop_strings;         /* lives as long as the model                                */
} tn_sampling;

/* Fills sampling, whose size the caller has set. Nothing of it is applied by itself: tn_generate does what its options
 * say. [one thread] */
TN_API tn_status tn_model_sampling(const tn_model *model, tn_sampling *sampling, tn_error *err);

/* ---- choosing and applying kernels ------------------------------------------------------------ */

/* What one kernel says of one site. */
typedef struct tn_verdict {
    uint32_t size;
    bool taken; /* this kernel has (or would have) the site                                     */
    const char *kernel;
    const char *reason; /* the first rule that failed, with both values; empty when it matches  */
    /* How long calls take with it and without, "1 token 0.52 ms (0.61 without), ..."; empty: nobody measured. */
    const char *measured;
    bool refused; /* it matches, but a check failed, or its plan() did; reason has it                    */
} tn_verdict;

typedef struct tn_site_report {
    uint32_t size;
    const tn_site *site;    /* of the model                                                     */
    const char *kernel;     /* who has (or would have) it; NULL: eager                           */
    const char *covered_by; /* path of the outer site whose kernel does this one's work, or NULL;
                               ADD_RMS_NORM around RMS_NORM has the same path                  */
    size_t verdict_count;
    const tn_verdict *const *verdicts;
} tn_site_report;

/* What one kernel of the model's device came to. */
typedef struct tn_kernel_report {
    uint32_t size;
    const char *kernel;
    int64_t sites;      /* that it has (or would have)                                         */
    const char *reason; /* why it has none; else empty                                         */
} tn_kernel_report;

/* Sites that a kernel takes too, and that another has. */
typedef struct tn_overlap {
    uint32_t size;
    const char *kernel, *winner;
    int64_t sites;
    const char *reason; /* of the first of them                                                */
} tn_overlap;

/* The result of planning: sites in graph order. Valid while the model is open. */
typedef struct tn_report {
    uint32_t size;
    size_t site_count;
    const tn_site_report *const *sites;
    char summary[512]; /* one line: which kernels took how many of how many sites, what was left */
    size_t note_count; /* warnings: what of the SPEC or the configuration has no effect here     */
    const char *const *notes;
    size_t kernel_count; /* those that may take part, and those that were left out by name        */
    const tn_kernel_report *const *kernels;
    size_t overlap_count; /* who lost sites to whom                                               */
    const tn_overlap *const *overlaps;
    /* Calls that were compared with eager because a kernel had not been called with so many tokens before: of this
     * model by its kernels of now, in earlier runs too, and in this process since the model was opened. */
    int64_t first_calls, first_calls_now;
} tn_report;

/* What applying spec (tn_config_set_kernels says what it may be) would do, and why; nothing changes. What would be
 * checked is, in child processes, and a verdict says "refused: " and why, also of a kernel asked for by name. config
 * NULL: an empty one. spec NULL: the configuration's. A kernel asked for by name that does not exist, is unavailable or
 * takes no site is an error; it is a note when it is for another device, or when those named before it have its sites.
 * Owned:
 * tn_report_free. Sessions may be open. [one thread] */
TN_API tn_report *tn_model_plan(tn_model *model, const tn_config *config, const char *spec, tn_error *err);

/* What is applied now, in the same form, without verdicts. Owned: tn_report_free. [one thread] */
TN_API tn_report *tn_model_report(tn_model *model, tn_error *err);
TN_API void tn_report_free(tn_report *report); /* [one thread] */

/* Plans, checks, reserves, packs and commits; on failure the model is as it was before. Where a kernel that was not
 * asked for by name fails, another or eager takes the site, and the report says so. Sites that a kernel had and the new
 * plan gives to nobody become eager. When report is not NULL it receives an owned report. No sessions open, else
 * TN_E_USAGE. [one thread] */
TN_API tn_status tn_apply_kernels(tn_model *model, const tn_config *config, const char *spec, tn_report **report,
                                  tn_error *err);

/* Applies one kernel by id on top of what is applied: it gets every site that it takes, whoever has it now, unless a
 * kernel on an enclosing site does. modules: shell patterns of module paths, comma separated; NULL: those that the
 * configuration has for the kernel, else all. It is an error when it takes no site. No sessions open. [one thread] */
TN_API tn_status tn_apply_kernel(tn_model *model, const tn_config *config, const char *id, const char *modules,
                                 tn_error *err);

/* Takes one kernel, or all (id NULL), off the model: its sites are eager again, bit for bit. No sessions open. [one
 * thread] */
TN_API tn_status tn_revert_kernel(tn_model *model, const char *id, tn_error *err);

/* ---- what kernels do ---------------------------------------------------------------------------- */

/* What a row has the figures of. */
typedef enum tn_verify_kind { TN_VERIFY_RESULTS, TN_VERIFY_INPUT_GRADIENT, TN_VERIFY_PARAM_GRADIENT } tn_verify_kind;

/* One kernel at the sites of one operation: its results, or one of its gradients. */
typedef struct tn_verify_row {
    uint32_t size;
    tn_op op;
    const char *kernel;
    int64_t sites;
    double largest_error; /* in units of the tolerance: 1.0 is the bound                         */
    double largest_ulps, tolerance_ulps;
    double eager_seconds, kernel_seconds; /* median of a call with `tokens` tokens, summed over sites */
    int64_t tokens;
    bool passed;
    char worst_site[128];
    char reason[256];  /* why it failed                                                            */
    char gradient[32]; /* of what the gradient is, in words: "input 0", "weight"; "": kind is TN_VERIFY_RESULTS    */
    int64_t applied_sites; /* of the sites, how many the kernel has (or would have)                   */
    char not_applied[256]; /* why it has not the others: "tie: ...", "covered: ...", "refused: ..."       */
    char coverage[160];    /* what was tried and passed: "1 to 66 tokens, 1 and 2 threads"                          */
    tn_verify_kind kind;
} tn_verify_row;

/* Runs every site of every applied kernel against eager on the model's own weights with seeded input. In a model for
 * training the rows of each gradient follow that of the results. rows is owned: free(). Returns TN_E_VERIFY when one is
 * outside its tolerance; rows are filled in that case too. Sessions may be open. [one thread] */
TN_API tn_status tn_verify(tn_model *model, tn_verify_row ***rows, size_t *count, tn_error *err);

/* The same of every kernel that spec lets take part, at every site that it matches, whether it would have it or not:
 * nothing needs to be applied, and nothing is. One that fails is a failed row, also when it was asked for by name; one
 * that is not there or matches no site is an error as with tn_model_plan. report, when not NULL, receives what applying
 * spec would do after that. Owned: tn_report_free. [one thread] */
TN_API tn_status tn_verify_kernels(tn_model *model, const tn_config *config, const char *spec, tn_report **report,
                                   tn_verify_row ***rows, size_t *count, tn_error *err);

/* From now on a fraction (0 to 1) of all forward calls of applied kernels is performed by eager as well, on the live
 * data; the first call of each size is anyway, where kernels were checked when they were applied. The first call whose
 * results are further from eager's than the kernel declares takes that kernel off the model, which goes on with eager's
 * results from that call on; a notice (notices.h) names site, row and both values, and the call is written to
 * PREFIX-KERNEL.safetensors (prefix NULL: nowhere) for tn_check_replay. Which calls is drawn by a fixed seed. The price
 * is that fraction of eager's time. 0: only first calls. No sessions open. [one thread] */
TN_API tn_status tn_model_shadow(tn_model *model, double fraction, const char *prefix, tn_error *err);

/* What one kernel's packed weights take. Sites with equal weights, for which it packs the same, share one copy. */
typedef struct tn_packed {
    uint32_t size;
    const char *kernel;
    int64_t sites, copies, bytes;
} tn_packed;

/* For every applied kernel that packs, in the order of its first site. list is owned: free(). [one thread] */
TN_API tn_status tn_model_packed(const tn_model *model, tn_packed ***list, size_t *count, tn_error *err);

typedef enum tn_graph_format { TN_GRAPH_TEXT, TN_GRAPH_JSON, TN_GRAPH_DOT } tn_graph_format;

/* The module tree with its sites and who has them, as text. report: NULL for what is applied. explain adds the
 * verdicts. Owned: free(). [one thread] */
TN_API char *tn_model_describe(tn_model *model, const tn_report *report, tn_graph_format format, bool explain,
                               tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
