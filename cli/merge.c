/* tenon merge: a checkpoint with an adapter in its weights. */
#include "cli.h"

static tn_status run_merge(const options *o, tn_error *err)
{
    workspace w = {.options = o, .adapter = o->argument[1]};
    tn_status status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK)
        status = tn_model_merge(w.model, o->argument[2], err);
    if (status == TN_OK)
        printf("%s: %s with %s in its weights, %s\n", o->argument[2], o->argument[0], o->argument[1],
               tn_dtype_name(w.info.dtype));
    workspace_close(&w);
    return status;
}

const command command_merge = {
    .name = "merge",
    .arguments = "MODEL ADAPTER OUT",
    .summary = "Writes the folder OUT: MODEL with the LoRA adapter of the folder ADAPTER in its weights.",
    .min_arguments = 3,
    .max_arguments = 3,
    .missing = "MODEL, ADAPTER and OUT are needed",
    .notes = "Each weight is the sum of its own value and the adapter's, in f32 and rounded once to the type of the "
             "checkpoint\n"
             "(--dtype: another). MODEL is a folder of plain weights; OUT appears when all of it is there.",
    .example = "  tenon merge MODEL adapter/ merged/\n"
               "  tenon run merged/ \"Once upon a time\"",
    .run = run_merge,
};
