/* tenon train: what its files share. train.c has the command and the order of things, train_settings.c reads what is to
 * be done, train_rows.c has the data, train_steps.c the steps, train_log.c and train_print.c what is told of them,
 * train_checkpoint.c what is kept, train_plot.c the picture. */
#ifndef TENON_CLI_TRAIN_H
#define TENON_CLI_TRAIN_H

#include "cli.h"

/* ---- train_settings.c ----------------------------------------------------------------------------- */

typedef struct train_settings {
    const options *o;
    tn_schedule schedule;
    double rate, warmup, clip, decay, router_loss, epochs;
    int64_t steps; /* 0: as many as the epochs have                                               */
    int64_t batch, accumulate, length, save_every; /* accumulate: of all ranks together                   */
    uint64_t seed;
    bool full, shuffle, pack;
    const char *dtype; /* that --precision computes in; NULL: as --dtype says                        */
    tn_precision precision;
    tn_keep keep;
    tn_lora lora;    /* of --lora; --full and --adapter have none                                      */
    char *lora_text; /* that its targets are in; owned                                             */
    const char *out;
    int32_t rank, ranks; /* rank 0 reads and writes what is in out, and says what there is to say            */
    json_t *record;      /* {name: text} of all that the numbers depend on; owned                       */
} train_settings;

tn_status train_settings_read(train_settings *s, const options *o, tn_error *err);
void train_settings_free(train_settings *s);

/* Which of how many ranks this is: each does accumulate batches of a step. */
void train_settings_ranks(train_settings *s, int32_t rank, int32_t ranks);

/* The shortest text that is this number, in buffer, which is returned. */
const char *train_number(double value, char buffer[32]);

/* ---- train_rows.c --------------------------------------------------------------------------------- */

/* What is computed at once: texts of several rows. */
typedef struct train_batch {
    int64_t *ids, *labels, *lengths; /* owned                                                      */
    int64_t texts, tokens;
} train_batch;

/* The samples of a data set in rows: one each, or as many as have room. */
typedef struct train_rows {
    tn_dataset *data;
    int64_t *sample; /* all of them, row after row                                                 */
    int64_t *first;  /* of each row, and behind the last                                            */
    int64_t *order;  /* of rows, in the epoch at hand                                               */
    int64_t count, longest, epoch;
    train_batch batch; /* with room for as many of the longest rows as are taken at once             */
} train_rows;

/* Reads the files. */
tn_status train_rows_open(train_rows *r, const tn_model *model, const char *const *paths, int64_t count,
                          const train_settings *s, tn_error *err);
void train_rows_close(train_rows *r);

/* The order of this epoch. */
void train_rows_turn(train_rows *r, const train_settings *s, int64_t epoch);

/* Labels that count in the rows from begin to end - 1 of the order, and these rows as a batch. */
int64_t train_rows_labels(const train_rows *r, int64_t begin, int64_t end);
const train_batch *train_rows_take(train_rows *r, int64_t begin, int64_t end);

/* ---- train_log.c ---------------------------------------------------------------------------------- */

/* A step that was made, or what the model makes of other data behind it. */
typedef struct train_entry {
    int64_t step; /* from 1 on                                                                    */
    double epoch, loss, norm, rate;
    double eval; /* its loss; NaN: this is a step                                                 */
} train_entry;

typedef struct train_log {
    FILE *file;
    char path[4096];
    int64_t steps;        /* of the whole training                                                        */
    train_entry *entries; /* all of them; owned                                                            */
    size_t count;
} train_log;

/* Opens or makes DIR/trainer_log.jsonl; a log that is not opened keeps entries alone. TN_E_USAGE: another process has
 * it. And reads what is there up to `done` steps; the rest is cut off. */
tn_status train_log_open(train_log *log, const char *folder, tn_error *err);
tn_status train_log_read(train_log *log, int64_t done, int64_t steps, tn_error *err);
tn_status train_log_add(train_log *log, const train_entry *entry, tn_error *err);
void train_log_sync(const train_log *log); /* what was added reaches the disk                       */
void train_log_close(train_log *log);

/* ---- train_checkpoint.c --------------------------------------------------------------------------- */

/* What a training is of; a checkpoint of another one is no place to go on from. */
typedef struct train_identity {
    char model[20], adapter[20];
    const char *data;
} train_identity;

/* The newest one in DIR: its steps; 0: there is none, or no DIR. */
tn_status train_checkpoint_find(const char *folder, int64_t *step, tn_error *err);
void train_checkpoint_clean(const char *folder); /* what was left half done goes away               */

/* Is it of the same model, data and settings? TN_E_USAGE with what is not. And then the trainer goes on from it. */
tn_status train_checkpoint_compare(const train_settings *s, const train_identity *id, int64_t step, tn_error *err);
tn_status train_checkpoint_load(tn_trainer *trainer, const train_settings *s, int64_t step, tn_error *err);

/* DIR/checkpoint-STEP, whole or not there; of older ones the last stays. */
tn_status train_checkpoint_write(const tn_trainer *trainer, const train_settings *s, const train_identity *id,
                                 int64_t step, int64_t steps, double epoch, tn_error *err);

/* DIR itself becomes the model, or the adapter. */
tn_status train_checkpoint_finish(const tn_trainer *trainer, const train_settings *s, tn_error *err);

/* ---- train_steps.c -------------------------------------------------------------------------------- */

/* What a rank tells the others of a batch of its own. */
typedef struct train_part {
    double loss;
    int64_t number, stop; /* its tokens, or what else there is to tell; the signal that asks it to stop */
} train_part;

typedef struct train_run {
    workspace w;
    train_settings s;
    train_identity id;
    train_rows rows, held; /* held: of --eval; data NULL: none                                      */
    tn_trainer *trainer;
    train_log log;
    FILE *plot;
    int64_t steps, epoch_steps, warmup; /* warmup: steps                                              */
    int64_t begun, done;                /* steps before this process; steps made                                      */
    int64_t saved;                      /* the newest checkpoint; 0: none                                             */
    train_part *parts;                  /* of all ranks; owned                                                */
    int64_t stop;                       /* the signal that asked any rank to stop; 0: none                            */
    /* Of the steps of this process, and of those since the last line. */
    double seconds, told_seconds, told; /* told: when                                               */
    int64_t tokens, told_tokens;
} train_run;

/* What all ranks have come to is in t->parts; where one fails, or none but it has seen a failure, all do. */
tn_status train_share(train_run *t, tn_status status, const train_part *own, tn_error *err);

/* From the step t->done on to the last; or until a signal asks to stop, TN_E_CANCELLED, when all is saved. */
tn_status train_steps(train_run *t, tn_error *err);

/* ---- train_print.c -------------------------------------------------------------------------------- */

/* A line of a step, where it is time for one, and of an evaluation. */
void train_print_step(train_run *t, const train_entry *e);
void train_print_eval(train_run *t, const train_entry *e);

/* ---- train_plot.c --------------------------------------------------------------------------------- */

tn_status train_plot(FILE *to, const char *title, const train_log *log, tn_error *err);

#endif
