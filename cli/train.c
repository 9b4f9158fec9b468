/* tenon train: fine-tuning. The order of things: what is asked for, what is there, model and data; then DIR is made, or
 * gone on with, and from then on nothing that is done is lost. */
#include "digest.h"
#include "gnuplot.h"
#include "ranks.h"
#include "stop.h"
#include "train.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- DIR ------------------------------------------------------------------------------------------ */

/* Is it what a training has left, or empty? */
static bool is_ours(const char *out)
{
    bool log = false, empty = true;
    DIR *folder = opendir(out);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        log = log || strcmp(entry->d_name, "trainer_log.jsonl") == 0;
        empty = empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    }
    if (folder)
        closedir(folder);
    return folder && (log || empty);
}

static tn_status check_out(const train_settings *s, tn_error *err)
{
    struct stat st;
    if (lstat(s->out, &st) != 0)
        return TN_OK;
    if (!option_given(s->o, OPT_RESUME))
        return tn_fail(err, TN_E_INPUT, s->out, "is there already; go on with it by --resume, or choose another --out");
    return is_ours(s->out) ? TN_OK
                           : tn_fail(err, TN_E_INPUT, s->out, "holds no training to go on with; choose another --out");
}

static tn_status open_out(train_run *t, tn_error *err)
{
    const train_settings *s = &t->s;
    if (mkdir(s->out, 0777) != 0 && (errno != EEXIST || !option_given(s->o, OPT_RESUME)))
        return tn_fail(err, TN_E_INPUT, s->out, "cannot be made: %s; choose another --out", strerror(errno));
    tn_status status = train_log_open(&t->log, s->out, err);
    if (status == TN_OK)
        train_checkpoint_clean(s->out);
    return status;
}

/* From where it was, or from the beginning. */
static tn_status go_on(train_run *t, tn_error *err)
{
    const train_settings *s = &t->s;
    const train_part nothing = {0};
    tn_status status = train_share(t, s->rank == 0 ? open_out(t, err) : TN_OK, &nothing, err);
    if (status == TN_OK && t->saved > 0)
        status = train_checkpoint_load(t->trainer, s, t->saved, err);
    if (status == TN_OK && s->rank == 0)
        status = train_log_read(&t->log, t->saved, t->steps, err);
    t->begun = t->done = t->saved;
    if (status == TN_OK && option_given(s->o, OPT_RESUME))
        note(s->o,
             t->saved > 0 ? "goes on behind step %lld of %lld" : "there is no checkpoint: begins at the beginning",
             (long long)t->saved, (long long)t->steps);
    return train_share(t, status, &nothing, err);
}

/* ---- model and data ------------------------------------------------------------------------------- */

static tn_status open_plot(train_run *t, tn_error *err)
{
    const char *path = t->s.o->text[OPT_PLOT];
    if (!path || gnuplot_check(err) != TN_OK)
        return path ? err->code : TN_OK;
    t->plot = fopen(path, "we");
    return t->plot ? TN_OK
                   : tn_fail(err, TN_E_INPUT, path, "cannot be written: %s; give --plot another file", strerror(errno));
}

static tn_status open_data(train_run *t, tn_error *err)
{
    const options *o = t->s.o;
    tn_dataset_info info = {.size = sizeof info};
    tn_status status =
        train_rows_open(&t->rows, t->w.model, o->argument + 1, (int64_t)o->argument_count - 1, &t->s, err);
    if (status == TN_OK && option_given(o, OPT_EVAL))
        status = train_rows_open(&t->held, t->w.model, &o->text[OPT_EVAL], 1, &t->s, err);
    if (status != TN_OK)
        return status;
    tn_dataset_get_info(t->rows.data, &info);
    if (info.skipped > 0)
        note(o, WARNING "%lld records are wrong and left out", (long long)info.skipped);
    if (info.cut > 0)
        note(o, "%lld samples are longer than %lld tokens, and cut", (long long)info.cut, (long long)t->s.length);
    note(o, "data: %lld samples in %lld rows, %lld tokens, %lld of them labelled", (long long)info.samples,
         (long long)t->rows.count, (long long)info.tokens, (long long)info.labels);
    return TN_OK;
}

/* How many steps there are, and how many of them warm up. */
static void count_steps(train_run *t)
{
    const train_settings *s = &t->s;
    int64_t rows = s->batch * s->accumulate;
    t->epoch_steps = (t->rows.count + rows - 1) / rows;
    t->steps = s->steps > 0 ? s->steps : (int64_t)ceil(s->epochs * (double)t->epoch_steps);
    t->warmup = s->warmup < 1 ? (int64_t)ceil(s->warmup * (double)t->steps) : (int64_t)s->warmup;
}

static void identify(train_run *t)
{
    uint64_t hash = DIGEST_START;
    digest_checkpoint(&hash, t->w.info.folder);
    snprintf(t->id.model, sizeof t->id.model, "%016" PRIx64, hash);
    hash = DIGEST_START;
    if (option_given(t->s.o, OPT_ADAPTER)) {
        digest_checkpoint(&hash, t->s.o->text[OPT_ADAPTER]);
        snprintf(t->id.adapter, sizeof t->id.adapter, "%016" PRIx64, hash);
    }
    t->id.data = tn_dataset_digest(t->rows.data);
}

static tn_status open_trainer(train_run *t, tn_error *err)
{
    int64_t most = t->rows.longest > t->held.longest ? t->rows.longest : t->held.longest;
    tn_train_options given = {.size = sizeof given,
                              .max_tokens = most * t->s.batch,
                              .precision = t->s.precision,
                              .router_loss = t->s.router_loss,
                              .keep = t->s.keep};
    t->trainer = tn_trainer_open(t->w.model, &given, err);
    return t->trainer ? TN_OK : err->code;
}

/* What could not be written at the end is refused at the beginning. */
static tn_status check_full(const train_run *t, tn_error *err)
{
    struct stat st;
    char path[4200];
    const char *model = t->w.info.folder;
    if (!t->s.full)
        return TN_OK;
    if (stat(model, &st) != 0 || !S_ISDIR(st.st_mode))
        return tn_fail(err, TN_E_USAGE, model,
                       "is no folder, of which alone another is made; leave --full out and train an adapter");
    snprintf(path, sizeof path, "%s/config.json", model);
    json_t *config = json_load_file(path, 0, NULL);
    bool quantised = json_object_get(config, "quantization_config");
    json_decref(config);
    return quantised ? tn_fail(err, TN_E_USAGE, model,
                               "is quantised, and codes have no gradients; leave --full out and train an adapter")
                     : TN_OK;
}

static tn_status open_model(train_run *t, const char *dtype, bool looks, tn_error *err)
{
    const options *o = t->s.o;
    t->w = (workspace){.training = true,
                       .dtype = dtype,
                       .looks = looks,
                       .lora = t->s.full || option_given(o, OPT_ADAPTER) ? NULL : &t->s.lora};
    return workspace_model(&t->w, o, o->argument[0], err);
}

/* All weights in 16 bits learn in f32, where nothing else is asked for. */
static tn_status open_in_type(train_run *t, tn_error *err)
{
    const options *o = t->s.o;
    const char *dtype = t->s.dtype;
    bool ranks = option_given(o, OPT_PARALLEL);
    if (!t->s.full || dtype || option_given(o, OPT_DTYPE))
        return open_model(t, dtype, false, err);
    /* A rank looks alone first, since a group can be opened once; who fails at that does so below, as all will see. */
    tn_status status = open_model(t, NULL, ranks, ranks ? NULL : err);
    bool mixed = status == TN_OK && t->w.info.dtype != TN_F32;
    if (!ranks && !mixed)
        return status;
    workspace_close(&t->w);
    return open_model(t, mixed ? "mixed" : NULL, false, err);
}

/* What a rank sees of all that must be the same. */
enum { SEES_MODEL, SEES_ADAPTER, SEES_DATA, SEES_EVAL, SEES_OPTIONS, SEEN };
typedef struct view {
    uint64_t of[SEEN];
    int64_t saved;
    char host[64];
} view;

/* Rank 0 has looked at DIR; data and options are those of all. */
static tn_status compare_ranks(train_run *t, tn_status status, tn_error *err)
{
    static const char *const what[SEEN] = {"MODEL", "--adapter", "DATA", "--eval", "options"};
    char *options = json_dumps(t->s.record, JSON_SORT_KEYS);
    view *all = calloc((size_t)t->s.ranks, sizeof *all), own = {.saved = t->saved};
    const char *eval = t->held.data ? tn_dataset_digest(t->held.data) : NULL;
    const char *const texts[SEEN] = {t->id.model, t->id.adapter, t->id.data, eval, options};
    for (int i = 0; i < SEEN; i++) {
        own.of[i] = DIGEST_START;
        digest_text(&own.of[i], texts[i]);
    }
    digest_number(&own.of[SEES_OPTIONS], t->s.save_every);
    gethostname(own.host, sizeof own.host - 1);
    if (status == TN_OK && (!options || !all))
        status = tn_fail(err, TN_E_MEMORY, "train", "out of memory; close other programs");
    status = tn_ranks_share(t->w.model, status, &own, all ? (void *)all : &own, all ? sizeof own : 0, err);
    for (int32_t r = 1; status == TN_OK && r < t->s.ranks; r++)
        for (int i = 0; status == TN_OK && i < SEEN; i++)
            if (all[r].of[i] != all->of[i])
                status = tn_fail(err, TN_E_USAGE, "parallel", "rank %d on %.63s has other %s than rank 0 on %.63s",
                                 (int)r, all[r].host, what[i], all->host);
    t->saved = status == TN_OK ? all->saved : 0;
    free(options);
    free(all);
    return status;
}

static tn_status open_all(train_run *t, tn_error *err)
{
    tn_status status = open_in_type(t, err);
    if (status != TN_OK)
        return status;
    train_settings_ranks(&t->s, t->w.info.rank, t->w.info.ranks);
    t->parts = calloc((size_t)t->s.ranks, sizeof *t->parts);
    status = t->parts ? check_full(t, err) : tn_fail(err, TN_E_MEMORY, "train", "out of memory");
    if (status == TN_OK)
        status = open_data(t, err);
    if (status == TN_OK) {
        count_steps(t);
        identify(t);
    }
    if (status == TN_OK && t->s.rank == 0)
        status = train_checkpoint_find(t->s.out, &t->saved, err);
    if (status == TN_OK && t->saved > 0)
        status = train_checkpoint_compare(&t->s, &t->id, t->saved, err);
    if (status == TN_OK)
        status = workspace_apply(&t->w, err);
    status = compare_ranks(t, status, err);
    return status == TN_OK ? open_trainer(t, err) : status;
}

/* ---- the command ---------------------------------------------------------------------------------- */

static tn_status draw(train_run *t, tn_error *err)
{
    char title[4200];
    const char *path = t->s.o->text[OPT_PLOT];
    snprintf(title, sizeof title, "%s: %s, %lld steps", t->s.out, t->w.info.class_name, (long long)t->steps);
    tn_status status = train_plot(t->plot, title, &t->log, err);
    bool failed = ferror(t->plot);
    failed = fclose(t->plot) != 0 || failed;
    t->plot = NULL;
    return status == TN_OK && failed
               ? tn_fail(err, TN_E_INTERNAL, path, "cannot be written to its end: %s", strerror(errno))
               : status;
}

static void say_end(const train_run *t)
{
    printf("%s: trained %lld steps", t->s.out, (long long)t->steps);
    if (t->done > t->begun)
        printf(", %lld of them now in %.1f s, %.0f tokens/s", (long long)(t->done - t->begun), t->seconds,
               (double)t->tokens / t->seconds);
    putchar('\n');
}

static tn_status train(train_run *t, tn_error *err)
{
    tn_status status = go_on(t, err);
    if (status != TN_OK)
        return status;
    stop_listen();
    status = train_steps(t, err);
    if (status == TN_OK)
        status = train_share(t, train_checkpoint_finish(t->trainer, &t->s, err), &(train_part){0}, err);
    if (status == TN_OK && t->s.rank == 0)
        say_end(t);
    if (t->plot && (status == TN_OK || status == TN_E_CANCELLED)) {
        tn_status drawn = draw(t, err);
        status = status == TN_OK ? drawn : status;
    }
    return status;
}

static void close_all(train_run *t)
{
    if (t->plot)
        fclose(t->plot);
    train_log_close(&t->log);
    tn_trainer_close(t->trainer);
    train_rows_close(&t->rows);
    train_rows_close(&t->held);
    workspace_close(&t->w);
    free(t->parts);
    train_settings_free(&t->s);
}

static tn_status run_train(const options *o, tn_error *err)
{
    train_run t = {0};
    tn_status status = train_settings_read(&t.s, o, err);
    bool writes = !option_given(o, OPT_PARALLEL) || ranks_own() == 0;
    if (status == TN_OK && writes)
        status = check_out(&t.s, err);
    if (status == TN_OK && writes)
        status = open_plot(&t, err);
    if (status == TN_OK)
        status = open_all(&t, err);
    if (status == TN_OK)
        status = train(&t, err);
    if (status == TN_E_CANCELLED && t.stop && t.s.rank == 0)
        fprintf(stderr,
                "tenon: stopped behind step %lld of %lld, all is saved; the same command with --resume goes on\n",
                (long long)t.done, (long long)t.steps);
    int stop = status == TN_E_CANCELLED ? (int)t.stop : 0;
    close_all(&t);
    if (stop) {
        signal(stop, SIG_DFL);
        raise(stop);
    }
    if (status != TN_OK)
        ranks_blame(err);
    return status;
}

static const option_spec own_options[] = {
    {OPT_OUT, "out", "DIR", 'o', OPTION_TEXT, 0, 0, "what the result is called; must not be there; needed"},
    {OPT_LORA, "lora", "r=N,alpha=X,...", 0, OPTION_TEXT, 0, 0,
     "train a new adapter, as by default: r=8,alpha=16,dropout=0,seed=0,targets=all"},
    {OPT_ADAPTER, "adapter", "DIR", 0, OPTION_TEXT, 0, 0, "train an adapter that is there, as peft writes it"},
    {OPT_FULL, "full", NULL, 0, OPTION_FLAG, 0, 0, "train all weights"},
    {OPT_PRECISION, "precision", "f32|mixed|bf16", 0, OPTION_CHOICE, 0, 0,
     "f32, computing in bf16 beside it, or bf16 alone; default f32, of 16 bits mixed"},
    {OPT_LR, "lr", "X", 0, OPTION_REAL, 0, 1000, "the rate; default 1e-4, with --full 1e-5"},
    {OPT_SCHEDULE, "schedule", "constant|linear|cosine", 0, OPTION_CHOICE, 0, 0, "how it falls; default cosine"},
    {OPT_WARMUP, "warmup", "X", 0, OPTION_REAL, 0, 1e9, "steps it grows over, below 1 a part of all; default 0.1"},
    {OPT_EPOCHS, "epochs", "X", 0, OPTION_REAL, 0, 1e6, "times that all data are seen; default 3"},
    {OPT_STEPS, "steps", "N", 0, OPTION_INTEGER, 1, 1e9, "how many steps, in place of --epochs"},
    {OPT_BATCH_ROWS, "batch", "N", 0, OPTION_INTEGER, 1, 65536, "rows computed at once; default 1"},
    {OPT_ACCUMULATE, "accumulate", "N", 0, OPTION_INTEGER, 1, 1e6, "batches of a step; default 8"},
    {OPT_LENGTH, "length", "N", 0, OPTION_INTEGER, 2, 1e6, "tokens of a row, at most; default 2048"},
    {OPT_PACK, "pack", NULL, 0, OPTION_FLAG, 0, 0, "put several samples into a row; none sees another"},
    {OPT_CLIP, "clip", "X", 0, OPTION_REAL, 0, 1e9, "largest norm of the gradients; 0: any; default 1"},
    {OPT_DECAY, "decay", "X", 0, OPTION_REAL, 0, 1000, "weight decay, not of norms and biases; default 0"},
    {OPT_ROUTER_LOSS, "router-loss", "X", 0, OPTION_REAL, 0, 1000,
     "factor of the loss of a mixture's routers; default 0"},
    {OPT_KEEP, "keep", "auto|all|layers", 0, OPTION_CHOICE, 0, 0,
     "what stays for gradients: all, or layers: what each is given; auto: what has room"},
    {OPT_SEED, "seed", "S", 0, OPTION_INTEGER, 0, 9e18, "of the order of the data; default 0"},
    {OPT_SHUFFLE, "shuffle", "yes|no", 0, OPTION_OPTIONAL, 0, 0, "another order of the data each epoch; default yes"},
    {OPT_SAVE_EVERY, "save-every", "N", 0, OPTION_INTEGER, 1, 1e9, "steps from a checkpoint to the next; default 100"},
    {OPT_RESUME, "resume", NULL, 0, OPTION_FLAG, 0, 0, "go on from the newest checkpoint in DIR"},
    {OPT_EVAL, "eval", "FILE", 0, OPTION_TEXT, 0, 0, "data whose loss is told at each checkpoint"},
    {OPT_PLOT, "plot", "FILE", 0, OPTION_TEXT, 0, 0, "draw the losses, as SVG (gnuplot)"},
    {OPT_ONE_SAMPLE, "one-sample", NULL, 0, OPTION_FLAG, 0, 0, "a conversation is one sample, not one for each answer"},
    {OPT_LAST_TURN, "last-turn", NULL, 0, OPTION_FLAG, 0, 0, "with --one-sample: learn the last answer alone"},
    {OPT_TRAIN_ON_PROMPT, "train-on-prompt", NULL, 0, OPTION_FLAG, 0, 0, "learn prompts, too"},
    {OPT_JOIN, "join", "TEXT", 0, OPTION_TEXT, 0, 0,
     "between an alpaca record's instruction and input; default nothing"},
    {OPT_SKIP_BAD, "skip-bad", NULL, 0, OPTION_FLAG, 0, 0, "leave wrong records out instead of refusing the file"},
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    {OPT_PARALLEL, "parallel", "replicas[=N]", 0, OPTION_TEXT, 0, 0,
     "mpirun's N processes share a step: N times --accumulate, whose default is 1 then"},
    PATIENCE_OPTION,
};

const command command_train = {
    .name = "train",
    .arguments = "MODEL DATA... --out DIR [--lora ... | --adapter DIR | --full] [options]",
    .summary =
        "Trains MODEL on DATA. DIR becomes the adapter, or with --full the model, and holds its log and checkpoints.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 2,
    .max_arguments = 4096,
    .missing = "MODEL and DATA are needed",
    .notes =
        "An adapter of low rank (LoRA) goes beside the weights, which stay as they are; tenon run --adapter DIR uses "
        "it,\n"
        "tenon merge puts it into them. DATA are .json, .jsonl, .txt or .md files; docs/training.md has the formats.\n"
        "A step changes what is trained by AdamW with the gradients of --batch times --accumulate rows, as one mean "
        "over\n"
        "all of their labels.\n"
        "DIR/trainer_log.jsonl has a line for each step. Ctrl-C finishes the step and writes DIR/checkpoint-STEP;\n"
        "the same command with --resume goes on as if nothing had been. The last two checkpoints are kept.",
    .example =
        "  tenon train models/demo notes.txt --out adapter --lora r=16,targets=q_proj,v_proj --epochs 2\n"
        "  tenon train models/demo notes.txt --out trained --full --precision f32 --eval other.txt --plot loss.svg",
    .of_ranks = true,
    .run = run_train,
};
