/* The command line: what its files share. Every sub-command is one file with one function; main.c finds it, options.c
 * reads its arguments, open.c prepares configuration, plugins and model, output.c and progress.c print. */
#ifndef TENON_CLI_H
#define TENON_CLI_H

#include <jansson.h>
#include <stdio.h>
#include <tenon/tenon.h>

/* ---- options.c ------------------------------------------------------------------------------ */

typedef enum option_id {
    OPT_HELP,
    OPT_VERSION,
    OPT_CONFIG,
    OPT_PLUGINS,
    OPT_ONLY_PLUGINS,
    OPT_DEVICE,
    OPT_DTYPE,
    OPT_THREADS,
    OPT_DEQUANTISE,
    OPT_MAX_PACKED,
    OPT_NO_MEASURE,
    OPT_SAME_BITS,
    OPT_EXACT,
    OPT_QUIET,
    OPT_VERBOSE,
    OPT_KERNELS,
    OPT_ADAPTER,
    OPT_JSON,
    OPT_LOGPROBS,
    OPT_SCHEMA,
    OPT_ALL,
    OPT_CONTEXT,
    OPT_CHUNK,
    OPT_MAX_TOKENS,
    OPT_MODEL,
    OPT_TOKENS,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_REPETITION_PENALTY,
    OPT_SEED,
    OPT_STOP,
    OPT_PROMPT_FILE,
    OPT_MESSAGES,
    OPT_SYSTEM,
    OPT_CHAT,
    OPT_TOOLS,
    OPT_TEMPLATE_VAR,
    OPT_IMAGE,
    OPT_AUDIO,
    OPT_NO_HISTORY,
    OPT_IGNORE_EOS,
    OPT_SPECULATE,
    OPT_EXPLAIN,
    OPT_FORMAT,
    OPT_MEMORY,
    OPT_TRAINING,
    OPT_INPUT,
    OPT_OUTPUT,
    OPT_HIDDEN,
    OPT_AGAINST,
    OPT_PROMPT,
    OPT_DECODE,
    OPT_REPEAT,
    OPT_PROFILE,
    OPT_TRACE,
    OPT_PLOT,
    OPT_NO_SPECIAL,
    OPT_OP,
    OPT_BENCH,
    OPT_QUICK,
    OPT_SITE,
    OPT_SHADOW,
    OPT_REPLAY,
    OPT_TEXT,
    OPT_BATCH,
    OPT_KIND,
    OPT_MAX_AGE,
    OPT_MAX_MB,
    OPT_TYPE,
    OPT_IMATRIX,
    OPT_PROMPT_NAME,
    OPT_POOLING,
    OPT_NPY,
    OPT_HOST,
    OPT_PORT,
    OPT_UNIX,
    OPT_KEY_FILE,
    OPT_CORS,
    OPT_NAME,
    OPT_ALIAS,
    OPT_SEQUENCES,
    OPT_QUEUE,
    OPT_CACHE_MB,
    OPT_BODY_MB,
    OPT_READ_TIMEOUT,
    OPT_REQUEST_TIMEOUT,
    OPT_DRAIN,
    OPT_PING,
    OPT_ANY_ORDER,
    OPT_OUT,
    OPT_LORA,
    OPT_PRECISION,
    OPT_FULL,
    OPT_LR,
    OPT_SCHEDULE,
    OPT_WARMUP,
    OPT_EPOCHS,
    OPT_STEPS,
    OPT_BATCH_ROWS,
    OPT_ACCUMULATE,
    OPT_LENGTH,
    OPT_PACK,
    OPT_CLIP,
    OPT_DECAY,
    OPT_ROUTER_LOSS,
    OPT_KEEP,
    OPT_SHUFFLE,
    OPT_SAVE_EVERY,
    OPT_RESUME,
    OPT_EVAL,
    OPT_ONE_SAMPLE,
    OPT_LAST_TURN,
    OPT_TRAIN_ON_PROMPT,
    OPT_JOIN,
    OPT_SKIP_BAD,
    OPT_PARALLEL,
    OPT_PATIENCE,
    OPT_RANKS,
    OPT_LOCK,
    OPT_NETWORK,
    OPT_COUNT
} option_id;

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_OPTIONAL, /* a value only as --name=VALUE; a whole number where there is a most          */
    OPTION_TEXT,
    OPTION_CHOICE, /* one of the names in metavar, separated by '|'                            */
    OPTION_INTEGER,
    OPTION_REAL
} option_kind;

typedef struct option_spec {
    option_id id;
    const char *name, *metavar;
    char letter; /* 0: none                                                                    */
    option_kind kind;
    double min, max; /* of a number                                                            */
    const char *help;
} option_spec;

typedef struct options options;

/* A picture or a sound. */
typedef struct media_file {
    const char *name;
    bool sound;
} media_file;

/* Of every command that computes with a model. */
#define ADAPTER_OPTION                                                                                                 \
    {                                                                                                                  \
        OPT_ADAPTER, "adapter", "DIR", 0, OPTION_TEXT, 0, 0,                                                           \
            "a LoRA adapter, as peft writes it, beside the model's weights"                                            \
    }

/* Of every command that computes with a checkpoint as it is. */
#define LOCK_OPTION                                                                                                    \
    {                                                                                                                  \
        OPT_LOCK, "lock", "FILE", 0, OPTION_TEXT, 0, 0, "compute only if all is as it was when tenon lock wrote FILE"  \
    }

typedef struct command {
    const char *name, *arguments, *summary;
    const option_spec *options; /* its own, beside the common ones                             */
    size_t option_count;
    int min_arguments, max_arguments;
    const char *missing; /* what to say when there are fewer                                   */
    const char *example, *notes;
    bool of_ranks;   /* each of several processes runs it; of other commands rank 0 does, and the others follow */
    bool of_plugins; /* it is about them: they are opened whatever kernels are asked for        */
    tn_status (*run)(const options *o, tn_error *err);
    const char *program; /* that lies beside this one and does it instead of run; or NULL                */
} command;

struct options {
    const command *command;
    const struct command *const *all; /* every command, for what is said of unknown options; NULL behind them */
    const char *text[OPT_COUNT];      /* as written; "" for a flag; NULL when not given              */
    int64_t integer[OPT_COUNT];
    double real[OPT_COUNT];
    const char **argument; /* owned                                                              */
    int argument_count;
    const char **plugins; /* every --plugins and --only-plugins; owned                         */
    size_t plugin_count;
    const char **stops; /* every --stop; owned                                                 */
    size_t stop_count;
    const char **variables; /* every --template-var; owned                                     */
    size_t variable_count;
    const char **aliases; /* every --alias; owned                                              */
    size_t alias_count;
    const char **origins; /* every --cors; owned                                               */
    size_t origin_count;
    media_file *files; /* every --image and --audio, in their order; owned                     */
    size_t file_count;
};

extern const option_spec common_options[];
extern const size_t common_option_count;

/* Reads argv[0 .. argc-1] (without program and sub-command). o->command is set; the rest starts as zero. */
tn_status options_parse(options *o, int argc, char **argv, tn_error *err);
void options_free(options *o);

bool option_given(const options *o, option_id id);
int64_t option_integer(const options *o, option_id id, int64_t otherwise);
double option_real(const options *o, option_id id, double otherwise);
const char *option_text(const options *o, option_id id, const char *otherwise);

/* Whole numbers separated by commas, blanks or line ends, with or without brackets around. ids is owned. */
tn_status parse_ids(const char *where, const char *text, int64_t **ids, size_t *count, tn_error *err);

/* Are ids those of a vocabulary of this size? */
tn_status check_ids(const char *where, const int64_t *ids, size_t count, int64_t vocab, tn_error *err);

/* What a SPEC is, for --kernels. */
#define SPEC_HELP "auto, none, ids by preference, auto,ID or auto,-ID"

/* ---- help.c --------------------------------------------------------------------------------- */

extern const command *const commands[]; /* NULL behind them                                  */

void help_program(FILE *to);
void help_command(FILE *to, const command *c);

/* ---- input.c -------------------------------------------------------------------------------- */

/* The whole of a file, or of standard input when path is "-"; ends in a NUL that length does not count. Owned. */
tn_status read_all(const char *path, char **text, size_t *length, tn_error *err);

/* The same of a prompt: at most 64 MiB, and one final line end is left out: who pipes a line means the line, and a
 * token for its end would be one that the text goes on behind. */
tn_status read_prompt_text(const char *path, char **text, size_t *length, tn_error *err);

bool is_gguf(const char *path);           /* by its name                                                  */
bool holds_tokenizer(const char *folder); /* one of the files that tn_tokenizer_open reads there            */

/* The tokens of a text, or of a text file (or standard input), without special ones, by the tokenizer of a checkpoint
 * folder. ids is owned. */
tn_status text_ids(const char *folder, const char *text, size_t length, int64_t **ids, size_t *count, tn_error *err);
tn_status read_ids(const char *folder, const char *path, int64_t **ids, size_t *count, tn_error *err);

/* The whole text or, whatever happens, what was there before: written beside it, for nobody else to read, and renamed.
 * No signal ends the process in between, so that none leaves the other file. Renaming over a device would replace it.
 */
tn_status replace_file(const char *path, const char *text, size_t length, tn_error *err);

/* An absolute path without links and dots. Owned. */
char *absolute_folder(const char *path, tn_error *err);

/* ---- output.c ------------------------------------------------------------------------------- */

/* A table of text columns. Cells are copied; a failed allocation shows in table_print. */
typedef struct table {
    char **cells;
    size_t count, capacity, columns;
    unsigned right; /* bit i: column i is aligned to the right                                 */
    bool failed;
} table;

void table_start(table *t, size_t columns, unsigned right);
void table_cell(table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
tn_status table_print(table *t, tn_error *err); /* prints and frees                            */
void table_free(table *t);                      /* without printing                            */

/* Writes root, which is taken, on one line or on many. */
tn_status json_print(json_t *root, bool one_line, tn_error *err);
/* jansson does not always say that an allocation failed: a text may lack a byte, an object a member. main calls
 * json_watch before any other; json_lost: did one fail since? Then nothing of it is printed. One thread. */
void json_watch(void);
bool json_lost(void);

json_t *json_number(double value); /* null when it is not finite                                */
json_t *json_ids(const int64_t *ids, size_t count);

/* Writes text to stdout; write_flush also empties the buffer. A reader that went away ends the program quietly. */
tn_status write_text(const char *text, size_t length, tn_error *err);
tn_status write_flush(tn_error *err);

/* The same for a terminal: control characters other than line ends and tabs, what changes the direction of writing, and
 * what is no UTF-8, are written out as \\x1b, so that no text moves the cursor, changes colours, reads in another order
 * or answers for the user. */
tn_status write_clean(const char *text, size_t length, tn_error *err);
tn_status write_shown(const char *text, size_t length, tn_error *err); /* clean on a terminal, else as it is */
void print_clean(FILE *to, const char *text, bool one_line);           /* one_line: line ends and tabs, too        */

/* "5.3 MiB" in buffer, which is returned. */
const char *bytes_text(double bytes, char buffer[32]);
const char *seconds_text(double seconds, char buffer[32]); /* "5.31 ms" or "1.02 s"              */
double seconds_now(void);

/* Another process of those that were started together says what there is to say: notes, progress and errors are not
 * printed. */
extern bool ranks_silent;

/* A line on stderr, unless --quiet. */
void note(const options *o, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- progress.c ----------------------------------------------------------------------------- */

/* A bar on stderr, when that is a terminal and --quiet was not given. */
typedef struct progress {
    bool enabled, shown;
    double started, drawn; /* seconds                                                          */
} progress;

void progress_start(progress *p, const options *o);
void progress_update(progress *p, const char *what, int64_t done, int64_t total);
void progress_clear(progress *p);
int progress_columns(int fd); /* of this terminal, at most 100; where it is none, 80          */

/* ---- open.c --------------------------------------------------------------------------------- */

/* What most sub-commands need; zero before workspace_open, but for what the model is wanted for. */
typedef struct workspace {
    bool training;       /* as with --training                                                         */
    const char *dtype;   /* in place of --dtype's; or NULL                                             */
    const tn_lora *lora; /* with such a new adapter; or NULL                                           */
    bool looks;          /* at the model, alone, whatever --parallel says                             */
    const options *options;
    tn_config *config;
    tn_model *model;
    tn_model_info info;
    tn_report *report;   /* of workspace_apply                                                   */
    const char *adapter; /* instead of --adapter's; or NULL                                      */
    progress progress;
    size_t notices; /* printed so far                                                          */
} workspace;

tn_status workspace_config(workspace *w, const options *o, tn_error *err); /* configuration, plugins */
tn_status workspace_model(workspace *w, const options *o, const char *folder, tn_error *err); /* and the model   */
tn_status workspace_apply(workspace *w, tn_error *err); /* and its kernels        */
int64_t workspace_positions(const workspace *w);        /* that the model is made for; 0: any number             */
void workspace_check_context(const workspace *w, int64_t context); /* warns when it is beyond the model's */
void workspace_notices(workspace *w); /* prints what the library has put right since                  */
void workspace_close(workspace *w);

/* Warns when --threads asks for more than there are processors. made: how many there are now; 0: that is not known. */
void check_threads(const options *o, int32_t made);

/* Returns err's code; an error about a device that the file asks for names file and key from then on. */
tn_status device_error(const workspace *w, tn_error *err);

/* How many plugins are broken in the folders that the command line names, which come first in the configuration. One in
 * a folder whose name cannot be shown as it is counts as well. */
size_t count_bad_plugins(const workspace *w);

/* What the choice of kernels warns of, on stderr. */
void report_notes(const options *o, const tn_report *report);

/* Prints a line for every plugin that brought nothing; without others, for the broken ones only, not for a file that is
 * no plugin at all. */
void list_bad_plugins(FILE *to, const char *before, bool others);
#define WARNING "tenon: warning: "

/* How plugins are tried where nothing filters their system calls; the reason stands for %s. note_unfiltered: a note
 * of it, where that is so. */
#define UNFILTERED "plugins are tried without a filter of system calls: %s"
void note_unfiltered(const options *o);

json_t *json_kernels(const workspace *w); /* {"spec", "summary", "notes"}                       */

/* ---- verify_text.c ---------------------------------------------------------------------------- */

tn_status verify_text(workspace *w, tn_error *err);
tn_status verify_calls(workspace *w, tn_error *err); /* tenon verify --text, of an open model        */

/* ---- sub-commands ---------------------------------------------------------------------------- */

extern const command command_kernels, command_inspect, command_run, command_logits, command_verify, command_bench,
    command_perplexity, command_embed, command_tokenize, command_check, command_chat, command_cache, command_quantize,
    command_serve, command_train, command_merge, command_lock;

/* ending.c: from now on a plugin that ends the program is told. The program ends by itself, with this status, which is
 * returned. */
void ending_watch(void);
int ending_status(int status);

#endif
