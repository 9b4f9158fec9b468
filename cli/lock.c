/* tenon lock: what a model is computed from, written down. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static int on_digest(void *ctx, const char *what, int64_t done, int64_t total)
{
    progress_update(ctx, what, done, total);
    return 0;
}

static tn_status run_lock(const options *o, tn_error *err)
{
    workspace w = {0};
    tn_lock_options options = {.size = sizeof options,
                               .threads = (int32_t)option_integer(o, OPT_THREADS, 0),
                               .progress = on_digest,
                               .progress_ctx = &w.progress};
    tn_status status = workspace_config(&w, o, err);
    char *text = status == TN_OK ? tn_lock_model(o->argument[0], &options, err) : NULL;
    progress_clear(&w.progress);
    if (status == TN_OK)
        status = text ? write_text(text, strlen(text), err) : err->code;
    free(text);
    workspace_close(&w);
    return status;
}

const command command_lock = {
    .name = "lock",
    .arguments = "MODEL > FILE",
    .summary = "Writes what MODEL is computed from: digests of its files, of the library and of plugins.",
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "MODEL is needed",
    .of_plugins = true,
    .notes = "FILE is JSON, with a SHA-256 of every 16 MiB of the checkpoint. run, chat, logits, perplexity, bench, "
             "verify and\n"
             "serve take --lock FILE: where anything is not as it was they name it and compute nothing, on each of "
             "several\n"
             "machines, too. A name that ends in .lock keeps FILE apart from the model's own files.",
    .example = "  tenon lock models/demo > demo.lock\n"
               "  tenon run models/demo \"Once upon a time\" --lock demo.lock",
    .run = run_lock,
};
