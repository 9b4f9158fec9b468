/* tenon logits: one pass over a batch of token ids; logits and hidden states go to a .safetensors file. */
#include "cli.h"
#include "logits_media.h"
#include "ranks.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct logits_input {
    int64_t rows, tokens;
    int64_t *ids, *mask, *positions; /* [rows, tokens]; mask and positions may be NULL           */
    logits_media media;
} logits_input;

/* ---- input -------------------------------------------------------------------------------------- */

static int64_t read_integer(const tn_tensor *t, int64_t index)
{
    const char *at = (const char *)t->data + (size_t)index * tn_dtype_size(t->dtype);
    int64_t wide;
    int32_t narrow;
    switch (t->dtype) {
    case TN_I64:
        memcpy(&wide, at, sizeof wide);
        return wide;
    case TN_I32:
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    default: /* bool and u8 */
        return (unsigned char)*at;
    }
}

/* The tensor called name as whole numbers, or NULL when there is none. */
static tn_status read_tensor(const tn_safetensors *file, const char *path, const char *name, logits_input *in,
                             int64_t **out, tn_error *err)
{
    tn_tensor t;
    char where[300];
    snprintf(where, sizeof where, "%.240s: %s", path, name);
    if (!tn_safetensors_get(file, name, &t))
        return TN_OK;
    bool first = in->rows == 0, small = t.dtype == TN_BOOL || t.dtype == TN_U8;
    if (t.dtype != TN_I64 && t.dtype != TN_I32 && (first || !small))
        return tn_fail(err, TN_E_INPUT, where, "the type is %s; store it as i64 or i32", tn_dtype_name(t.dtype));
    if (t.ndim != 2)
        return tn_fail(err, TN_E_INPUT, where, "has %d dimensions; a text model takes [rows, tokens]", (int)t.ndim);
    if (t.shape[0] < 1 || t.shape[1] < 1)
        return tn_fail(err, TN_E_INPUT, where, "is empty; give at least one token");
    if (!first && (t.shape[0] != in->rows || t.shape[1] != in->tokens))
        return tn_fail(err, TN_E_INPUT, where, "is [%lld, %lld], and input_ids is [%lld, %lld]; make them alike",
                       (long long)t.shape[0], (long long)t.shape[1], (long long)in->rows, (long long)in->tokens);
    in->rows = t.shape[0];
    in->tokens = t.shape[1];
    int64_t count = tn_tensor_count(&t);
    *out = malloc((size_t)count * sizeof **out);
    if (!*out)
        return tn_fail(err, TN_E_MEMORY, where, "out of memory; split the input");
    for (int64_t i = 0; i < count; i++)
        (*out)[i] = read_integer(&t, i);
    return TN_OK;
}

static tn_status read_input(const char *path, const tn_model_info *info, logits_input *in, tn_error *err)
{
    tn_safetensors *file = tn_safetensors_open(path, err);
    tn_tensor t;
    if (!file)
        return err->code;
    tn_status status = read_tensor(file, path, "input_ids", in, &in->ids, err);
    if (status == TN_OK && !in->ids)
        status = tn_fail(err, TN_E_INPUT, path, "holds no tensor input_ids; store the token ids under this name");
    if (status == TN_OK)
        status = read_tensor(file, path, "attention_mask", in, &in->mask, err);
    if (status == TN_OK)
        status = logits_media_read(file, path, in->rows, in->tokens, &in->media, err);
    if (status == TN_OK && !in->media.axes && tn_safetensors_get(file, "position_ids", &t))
        status = read_tensor(file, path, "position_ids", in, &in->positions, err);
    if (status == TN_OK)
        status = check_ids(path, in->ids, (size_t)(in->rows * in->tokens), info->vocab, err);
    tn_safetensors_close(file);
    return status;
}

/* ---- output ------------------------------------------------------------------------------------- */

/* A long computation must not end in "no such folder". */
static tn_status check_output(const char *path, tn_error *err)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return tn_fail(err, TN_E_INPUT, path, "is a folder; give the name of a file");
    char *copy = strdup(path);
    if (!copy)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory; close other programs");
    const char *folder = dirname(copy);
    tn_status status = TN_OK;
    if (access(folder, W_OK))
        status = tn_fail(err, TN_E_INPUT, path, "cannot write to folder '%s': %s; choose another place", folder,
                         strerror(errno));
    free(copy);
    return status;
}

typedef struct logits_output {
    float *logits, **hidden; /* hidden: count arrays, NULL without --hidden                       */
    int64_t hidden_count;
} logits_output;

static tn_status allocate(logits_output *out, const logits_input *in, const tn_model_info *info, bool hidden,
                          tn_error *err)
{
    size_t tokens = (size_t)(in->rows * in->tokens);
    char text[32];
    bool failed = !(out->logits = malloc(tokens * (size_t)info->vocab * sizeof(float)));
    if (hidden && !failed) {
        out->hidden_count = info->layers + 1;
        out->hidden = calloc((size_t)out->hidden_count, sizeof *out->hidden);
        failed = !out->hidden;
        for (int64_t i = 0; !failed && i < out->hidden_count; i++)
            failed = !(out->hidden[i] = malloc(tokens * (size_t)info->hidden * sizeof(float)));
    }
    if (!failed)
        return TN_OK;
    return tn_fail(err, TN_E_MEMORY, "logits", "no memory for the logits of %zu tokens (%s); split the input", tokens,
                   bytes_text((double)tokens * (double)info->vocab * 4, text));
}

static tn_status write_output(const char *path, const logits_output *out, const logits_input *in,
                              const tn_model_info *info, tn_error *err)
{
    size_t count = 1 + (size_t)out->hidden_count;
    char(*names)[32] = calloc(count, sizeof *names);
    tn_named_tensor *tensors = calloc(count, sizeof *tensors);
    tn_status status = TN_E_MEMORY;
    if (names && tensors) {
        for (size_t i = 0; i < count; i++) {
            snprintf(names[i], sizeof names[i], i ? "hidden.%zu" : "logits", i - 1);
            int64_t shape[] = {in->rows, in->tokens, i ? info->hidden : info->vocab};
            tensors[i].name = names[i];
            tensors[i].tensor = tn_tensor_dense(i ? out->hidden[i - 1] : out->logits, TN_F32, 3, shape);
        }
        status = tn_safetensors_write(path, tensors, count, err);
    } else {
        tn_fail(err, TN_E_MEMORY, path, "out of memory; split the input");
    }
    free(names);
    free(tensors);
    return status;
}

/* ---- the command --------------------------------------------------------------------------------- */

static tn_status compute(workspace *w, const logits_input *in, logits_output *out, tn_error *err)
{
    tn_session_options options = {.size = sizeof options, .rows = in->rows, .context = in->tokens};
    tn_batch batch = {.size = sizeof batch,
                      .rows = in->rows,
                      .tokens = in->tokens,
                      .ids = in->ids,
                      .mask = in->mask,
                      .positions = in->positions};
    logits_media_give(&in->media, &batch);
    tn_outputs outputs = {.size = sizeof outputs, .logits = out->logits, .hidden = out->hidden};
    tn_session *session = tn_session_new(w->model, &options, err);
    if (!session)
        return err->code;
    tn_status status = tn_session_run(session, &batch, &outputs, err);
    tn_session_free(session);
    return status;
}

static tn_status run_logits(const options *o, tn_error *err)
{
    workspace w = {0};
    logits_input in = {0};
    logits_output out = {0};
    const char *input = o->text[OPT_INPUT], *output = o->text[OPT_OUTPUT];
    if (!input || !output)
        return tn_fail(err, TN_E_USAGE, "logits", "no %s file given; add %s FILE.safetensors",
                       input ? "output" : "input", input ? "--output" : "--input");
    tn_status status = check_output(output, err);
    if (status == TN_OK)
        status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK)
        status = read_input(input, &w.info, &in, err);
    if (status == TN_OK)
        status = workspace_apply(&w, err);
    if (status == TN_OK)
        status = allocate(&out, &in, &w.info, option_given(o, OPT_HIDDEN), err);
    if (status == TN_OK)
        status = compute(&w, &in, &out, err);
    if (status == TN_OK)
        status = write_output(output, &out, &in, &w.info, err);
    if (status == TN_OK)
        note(o, "%s: logits [%lld, %lld, %lld]%s", output, (long long)in.rows, (long long)in.tokens,
             (long long)w.info.vocab, out.hidden ? " and hidden states" : "");
    for (int64_t i = 0; out.hidden && i < out.hidden_count; i++)
        free(out.hidden[i]);
    free(out.hidden);
    free(out.logits);
    free(in.ids);
    free(in.mask);
    free(in.positions);
    logits_media_free(&in.media);
    workspace_close(&w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_INPUT, "input", "FILE", 0, OPTION_TEXT, 0, 0,
     "input_ids [rows, tokens], and what else the model's processor makes"},
    {OPT_OUTPUT, "output", "FILE", 0, OPTION_TEXT, 0, 0, "where logits go, as f32 [rows, tokens, vocabulary]"},
    {OPT_HIDDEN, "hidden", NULL, 0, OPTION_FLAG, 0, 0, "write hidden.0, hidden.1, ... as well"},
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    LOCK_OPTION,
    PARALLEL_OPTIONS,
    {OPT_SHADOW, "shadow", "P", 0, OPTION_REAL, 0, 1, "compare this part of kernel calls with eager; 0.01 costs 1 %"},
};

const command command_logits = {
    .name = "logits",
    .arguments = "MODEL --input IN.safetensors --output OUT.safetensors [--hidden] [--kernels SPEC]",
    .summary = "Computes the logits of a batch of token ids. Both files are in the safetensors format.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "no model given",
    .notes =
        "Beside input_ids: attention_mask, position_ids, and of models that see or hear pixel_values, image_grid_thw,\n"
        "image_sizes, image_position_ids, pixel_values_videos, video_grid_thw, video_position_ids,\n"
        "second_per_grid_ts, input_features, mm_token_type_ids,\n"
        "feature_attention_mask, position_ids of three axes. Padding stands on the left of a row and has an\n"
        "attention_mask of 0. hidden.0 is the input of the first layer, hidden.i the output of layer i-1, and the\n"
        "last one the result of the final norm.",
    .example = "  tenon logits models/demo --input ids.safetensors --output logits.safetensors --dtype f32",
    .run = run_logits,
};
