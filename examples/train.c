/* Trains a model on a text file, all of its weights in f32, and says what it costs and gives: the loss of every step.
 *
 *     cc train.c $(pkg-config --cflags --libs tenon) -o train
 *     ./train MODEL /path/to/plugins notes.txt 20 TRAINED
 *
 * A text is cut into pieces of 256 tokens, of which four make a step. TRAINED becomes a checkpoint as MODEL is one. */
#include <stdio.h>
#include <stdlib.h>
#include <tenon/tenon.h>

enum { PIECE = 256, PIECES = 4, LIMIT = 1 << 20 };

static int64_t *read_tokens(const char *model, const char *path, size_t *count, tn_error *err)
{
    int64_t *ids = NULL;
    char *text = malloc(LIMIT);
    FILE *file = fopen(path, "r");
    size_t length = text && file ? fread(text, 1, LIMIT, file) : 0;
    tn_tokenizer *tokenizer = tn_tokenizer_open(model, err);
    if (!file)
        fprintf(stderr, "%s cannot be read\n", path);
    else if (tokenizer)
        tn_tokenizer_encode(tokenizer, text, length, false, &ids, count, err);
    tn_tokenizer_free(tokenizer);
    if (file)
        fclose(file);
    free(text);
    return ids;
}

/* The pieces of one step, from the first one again where the text ends. */
static tn_status step(tn_trainer *trainer, const int64_t *ids, int64_t pieces, int64_t number, int64_t steps,
                      tn_error *err)
{
    static const int64_t length = PIECE;
    double norm = 0, sum = 0;
    for (int64_t i = 0; i < PIECES; i++) {
        const int64_t *piece = ids + (number * PIECES + i) % pieces * PIECE;
        tn_train_loss loss = {.size = sizeof loss};
        tn_train_texts text = {.size = sizeof text, .ids = piece, .labels = piece, .lengths = &length, .count = 1};
        text.divisor = PIECES * (PIECE - 1); /* the same for all of them: they are one batch               */
        if (tn_trainer_backward(trainer, &text, &loss, err) != TN_OK)
            return err->code;
        sum += loss.loss;
    }
    double factor = tn_schedule_at(TN_SCHEDULE_COSINE, number, steps / 10, steps);
    tn_train_step how = {.size = sizeof how, .rate = 1e-4 * factor, .decay = 0.01, .max_norm = 1};
    tn_status status = tn_trainer_step(trainer, &how, &norm, err);
    if (status == TN_OK)
        printf("step %lld: loss %.4f, rate %.2e, norm of the gradients %.3f\n", (long long)number + 1, sum, how.rate,
               norm);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: %s MODEL PLUGINS TEXT STEPS TRAINED\n", argv[0]);
        return 2;
    }
    tn_error err = TN_ERROR_INIT;
    size_t count = 0;
    int64_t steps = atoll(argv[4]), *ids = read_tokens(argv[1], argv[3], &count, &err);
    tn_config *config = tn_config_new();
    tn_model_options options = {.size = sizeof options, .dtype = "f32", .training = true};
    tn_model *model = NULL;
    tn_trainer *trainer = NULL;
    if (ids && count < PIECE)
        fprintf(stderr, "%s has %zu tokens, fewer than %d\n", argv[3], count, PIECE);
    else if (ids && config && tn_config_set_plugins(config, argv[2], &err) == TN_OK && tn_scan(config, &err) == TN_OK &&
             (model = tn_model_open(argv[1], &options, &err)) &&
             tn_apply_kernels(model, config, "auto", NULL, &err) == TN_OK)
        trainer = tn_trainer_open(model, NULL, &err);
    int64_t done = 0;
    while (trainer && done < steps && step(trainer, ids, (int64_t)count / PIECE, done, steps, &err) == TN_OK)
        done++;
    if (trainer && done == steps)
        tn_trainer_save(trainer, argv[5], &err);
    if (err.code != TN_OK)
        fprintf(stderr, "%s: %s: %s\n", argv[0], err.where, err.message);
    tn_trainer_close(trainer);
    tn_model_close(model);
    tn_config_free(config);
    free(ids);
    return trainer && done == steps && err.code == TN_OK ? 0 : 1;
}
