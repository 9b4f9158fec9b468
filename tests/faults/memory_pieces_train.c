/* Pieces of work for test_memory: training. */
#include "memory_pieces.h"

#include <limits.h>
#include <stdio.h>

/* A loss and its gradients, a step, and the state after it. */
tn_status piece_learn(const char *path, uint64_t *sum, tn_error *err)
{
    const int64_t ids[] = {5, 6, 7, 8, 9}, lengths[] = {3, 2};
    const tn_train_texts texts = {.size = sizeof texts, .ids = ids, .labels = ids, .lengths = lengths, .count = 2};
    const tn_model_options options = {.size = sizeof options, .dtype = "f32", .training = true};
    tn_train_loss loss = {.size = sizeof loss};
    tn_model *model = tn_model_open(path, &options, err);
    tn_trainer *trainer = model ? tn_trainer_open(model, NULL, err) : NULL;
    static int made;
    char out[PATH_MAX], file[PATH_MAX + 32], state[PATH_MAX];
    snprintf(out, sizeof out, "%s/trained-%d", pieces_folder(), made++);
    snprintf(file, sizeof file, "%s/model.safetensors", out);
    snprintf(state, sizeof state, "%s/state", pieces_folder());
    const tn_train_step step = {.size = sizeof step, .rate = 1e-3};
    tn_status status = trainer ? tn_trainer_backward(trainer, &texts, &loss, err) : err->code;
    if (status == TN_OK)
        status = tn_trainer_step(trainer, &step, NULL, err);
    if (status == TN_OK)
        status = tn_trainer_save(trainer, out, err);
    if (status == TN_OK)
        status = tn_trainer_save_state(trainer, state, err);
    if (status == TN_OK)
        status = tn_trainer_load_state(trainer, state, err);
    if (status == TN_OK)
        status = tn_trainer_evaluate(trainer, &texts, &loss, err);
    if (status == TN_OK)
        piece_add(sum, &loss.loss, sizeof loss.loss);
    if (status == TN_OK)
        piece_add_file(sum, file);
    if (status == TN_OK)
        piece_add_file(sum, state);
    tn_trainer_close(trainer);
    tn_model_close(model);
    return status;
}

/* A new adapter, a step of it, its files, and a model that reads them and is written with them in its weights. */
tn_status piece_adapt(const char *path, uint64_t *sum, tn_error *err)
{
    const int64_t ids[] = {5, 6, 7, 8, 9}, lengths[] = {5};
    const tn_train_texts texts = {.size = sizeof texts, .ids = ids, .labels = ids, .lengths = lengths, .count = 1};
    const tn_lora lora = {.size = sizeof lora, .rank = 2, .dropout = 0.1, .targets = "q_proj,down_proj"};
    const tn_model_options fresh = {.size = sizeof fresh, .dtype = "f32", .training = true, .lora = &lora};
    static int made;
    char out[PATH_MAX], merged[PATH_MAX], file[PATH_MAX + 32];
    snprintf(out, sizeof out, "%s/adapter-%d", pieces_folder(), made);
    snprintf(merged, sizeof merged, "%s/merged-%d", pieces_folder(), made++);
    tn_model *model = tn_model_open(path, &fresh, err);
    tn_trainer *trainer = model ? tn_trainer_open(model, NULL, err) : NULL;
    const tn_train_step step = {.size = sizeof step, .rate = 1e-3};
    tn_status status = trainer ? tn_trainer_backward(trainer, &texts, NULL, err) : err->code;
    if (status == TN_OK)
        status = tn_trainer_step(trainer, &step, NULL, err);
    if (status == TN_OK)
        status = tn_trainer_save_adapter(trainer, out, err);
    tn_trainer_close(trainer);
    tn_model_close(model);
    const tn_model_options again = {.size = sizeof again, .adapter = out};
    model = status == TN_OK ? tn_model_open(path, &again, err) : NULL;
    if (status == TN_OK)
        status = model ? tn_model_merge(model, merged, err) : err->code;
    tn_model_close(model);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", out);
    if (status == TN_OK)
        piece_add_file(sum, file);
    snprintf(file, sizeof file, "%s/model.safetensors", merged);
    if (status == TN_OK)
        piece_add_file(sum, file);
    return status;
}
