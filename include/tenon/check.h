/* Tenon: trying a plugin's kernels against the plain implementation, without a model. Included by tenon.h; the command
 * line's `tenon check` is made of it. */
#ifndef TENON_CHECK_H
#define TENON_CHECK_H

#include <tenon/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tn_check_kind {
    TN_CHECK_SITE, /* one made-up site, when asked for                                            */
    TN_CHECK_IMPL, /* an implementation with one dtype: all of its sites                          */
    TN_CHECK_TIME  /* one timed call, with bench                                                  */
} tn_check_kind;

typedef enum tn_check_result {
    TN_CHECK_PASSED,
    TN_CHECK_FAILED,
    TN_CHECK_DECLINED /* nothing was tried; reason says why                                       */
} tn_check_result;

/* What became of one thing. Borrowed for the duration of the callback, strings too; they are never NULL. */
typedef struct tn_check_row {
    uint32_t size;
    tn_check_kind kind;
    tn_check_result result;
    const char *kernel; /* its id                                                                 */
    tn_op op;
    int32_t impl; /* which of the kernel's implementations, from 0                                */
    tn_dtype dtype;
    int64_t sites, failed, declined;  /* that were tried; of those, that failed; that were declined         */
    int64_t site;                     /* its number, or that of the smallest that failed, for options.site  */
    const char *shape;                /* of that site: "bf16, norm w, width 33"                             */
    int64_t min_tokens, max_tokens;   /* of the calls                                                       */
    int32_t min_threads, max_threads; /* that took part                                                     */
    bool gradients;                   /* were checked, too                                                  */
    double worst;                     /* largest error in units of the tolerance: 1.0 is the bound          */
    int64_t worst_tokens;             /* and the tokens of its call                                         */
    const char *worst_shape;          /* and the site                                                       */
    const char *reason;               /* why it failed or was declined: the first and smallest case         */
    /* TN_CHECK_TIME: one call with max_tokens tokens on max_threads threads. */
    double eager_seconds, kernel_seconds; /* medians, measured in turns                                      */
    double operations, bytes;             /* that the call needs at least                                     */
    double ceiling;                       /* the part of what the machine can do at best; 0: not known        */
    /* Of the sites that passed, those at which some rows or heads alone have other bits than among all: where ranks
     * have such parts (tn_model_options.parallel) the kernel is declined. */
    int64_t apart;
} tn_check_row;

typedef struct tn_check_options {
    uint32_t size;
    const char *op;  /* only this operation ("RMS_NORM"); NULL: all                                */
    int32_t threads; /* of the largest team, as in tn_model_options; 0: one per core that it may use   */
    uint64_t seed;   /* other numbers                                                              */
    int64_t site;    /* only the site of this number; 0: all                                       */
    bool quick;      /* fewer and smaller sites                                                    */
    bool bench;      /* time the implementations that passed, too, against the machine's ceilings    */
    bool each_site;  /* report TN_CHECK_SITE rows, too                                             */
} tn_check_options;

/* Loads the plugin at that path, wherever it is, and tries each implementation of each of its kernels for the CPU
 * against eager at made-up sites: every dtype, layout, feature and many sizes; 0 to 600 tokens; rows apart, in place,
 * between unreadable pages; several numbers of threads; the same call again; inputs of all magnitudes; gradients, all
 * of them and each alone. All code of the plugin but its constructor, which is tried before, runs in child processes
 * with time limits. options may be NULL. on_row, which may be NULL, is called for each row as it comes; non-zero return
 * ends it (TN_E_CANCELLED).
 *
 * TN_E_VERIFY when something failed, TN_E_KERNEL when the file is no usable plugin, TN_E_USAGE for an unknown operation
 * or site. The plugin stays loaded. [one thread]: of the process. */
TN_API tn_status tn_check_plugin(const char *file, const tn_check_options *options,
                                 int (*on_row)(void *ctx, const tn_check_row *row), void *ctx, tn_error *err);

/* One call made again. Texts are cut where they do not fit; what could move a terminal's cursor or is no UTF-8 stands
 * in them as \xNN, since a file may say anything. */
typedef struct tn_replay {
    uint32_t size;
    tn_op op;
    int64_t tokens;
    double worst_then, worst_now; /* largest error in units of the tolerance: 1.0 is the bound               */
    bool passed;
    char kernel[128], site[256], plugin[512];
    char then[256], now[256]; /* which element, both values                                           */
    /* Calls on one thread and on so many, and what was found: wrong numbers, and other bits than on one. */
    int64_t calls_alone, wrong_alone, calls_together, wrong_together, other_bits;
    int32_t threads;
    char threads_text[160]; /* "wrong on 2 threads in 7 of 20 calls, right on one in 3: its threads race"  */
} tn_replay;

/* Makes the call of a file that tn_model_shadow wrote again: the kernel in child processes, on the file's tensors,
 * against eager: on one thread, and often on as many as it had then (on all where that was one), which must also give
 * the same bits. plugin: the file to load the kernel from; NULL: it is among those that are loaded (tn_scan).
 * TN_E_VERIFY when it is still wrong, with result filled; TN_E_INPUT when file is no such file. [one thread]: of the
 * process. */
TN_API tn_status tn_check_replay(const char *plugin, const char *file, tn_replay *result, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
