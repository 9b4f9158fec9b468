/* tenon run: continues a prompt and prints the text as it comes. */
#include "answer.h"
#include "conversation.h"
#include "logprobs.h"
#include "ranks.h"
#include "schema.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USUAL_TOKENS 64

/* Set by the first Ctrl-C. The second finds the system's own handler and ends the program. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

typedef struct run_state {
    workspace w;
    const options *o;
    tn_tokenizer *tokenizer; /* NULL: ids are printed                                           */
    answer answer;
    char *piped; /* what standard input holds where no prompt is given; owned                   */
    size_t piped_length;
    logprobs logprobs;  /* list NULL: not asked for                                             */
    schema_limit limit; /* of --schema                                                          */
    attached files;     /* of --image and --audio                                                   */
    int64_t *prompt;
    size_t prompt_count;
    int64_t *out;
    tn_generate_options drawing;
    bool json, limited; /* limited: the context has no room for all tokens asked for            */
} run_state;

/* ---- the prompt ------------------------------------------------------------------------------- */

/* A model without a tokenizer can be run on ids; one with a file that is broken or cannot be read can, too. */
static tn_status open_tokenizer(run_state *r, const char *folder, bool needed, tn_error *err)
{
    if (!needed && !holds_tokenizer(folder))
        return TN_OK;
    r->tokenizer = tn_tokenizer_open(folder, err);
    if (!r->tokenizer && !needed && err->code == TN_E_INPUT) {
        note(r->o, WARNING "%s: %s (printing token ids)", err->where, err->message);
        tn_error_clear(err);
        return TN_OK;
    }
    return r->tokenizer ? TN_OK : err->code;
}

static tn_status read_files(run_state *r, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < r->o->file_count && status == TN_OK; i++) {
        const media_file *f = &r->o->files[i];
        status = attached_add(&r->files, f->name, strlen(f->name), f->sound, err);
    }
    return status == TN_OK ? attached_read(&r->files, r->w.model, err) : status;
}

/* A text beside pictures or sounds, for a model without a chat template. */
static tn_status encode_plainly(run_state *r, const char *text, size_t length, tn_error *err)
{
    char *whole;
    size_t size;
    tn_status status = read_files(r, err);
    if (status == TN_OK)
        status = tn_media_expand(r->files.media, r->tokenizer, text, length, &whole, &size, err);
    if (status != TN_OK)
        return status;
    status = tn_tokenizer_encode(r->tokenizer, whole, size, false, &r->prompt, &r->prompt_count, err);
    free(whole);
    return status;
}

/* The messages of the options and, behind them, a text as one of the user's; NULL: none. */
static tn_status read_conversation(run_state *r, const char *text, size_t length, tn_error *err)
{
    conversation c;
    bool plain = text && r->o->file_count > 0 && !option_given(r->o, OPT_CHAT);
    const char *folder = r->o->argument[0];
    tn_status status = plain ? conversation_open_any(&c, folder, err) : conversation_open(&c, folder, err);
    if (status == TN_OK && c.plain) {
        conversation_close(&c);
        return encode_plainly(r, text, length, err);
    }
    if (status == TN_OK)
        status = conversation_start(&c, r->o, err);
    if (status == TN_OK && text)
        status = conversation_ask(&c, r->o->files, r->o->file_count, false, text, length, err);
    if (status == TN_OK)
        status = attached_read(&c.files, r->w.model, err);
    if (status == TN_OK)
        status = conversation_ids(&c, r->tokenizer, &r->prompt, &r->prompt_count, err);
    r->files = c.files; /* they outlive it                                                             */
    c.files = (attached){0};
    conversation_close(&c);
    return status;
}

/* A beginning-of-text token alone is no prompt, and neither is an empty message. */
static tn_status encode_text(run_state *r, const char *text, size_t length, tn_error *err)
{
    if (length == 0)
        return TN_OK;
    if (option_given(r->o, OPT_CHAT) || r->o->file_count > 0)
        return read_conversation(r, text, length, err);
    return tn_tokenizer_encode(r->tokenizer, text, length, true, &r->prompt, &r->prompt_count, err);
}

static tn_status read_prompt(run_state *r, tn_error *err)
{
    const options *o = r->o;
    const char *argument = r->piped ? r->piped : o->argument[1], *file = o->text[OPT_PROMPT_FILE];
    char *text = NULL;
    size_t length = r->piped ? r->piped_length : argument ? strlen(argument) : 0;
    tn_status status = TN_OK;
    if (option_given(o, OPT_TOKENS))
        status = parse_ids("--tokens", o->text[OPT_TOKENS], &r->prompt, &r->prompt_count, err);
    else if (option_given(o, OPT_MESSAGES))
        status = read_conversation(r, NULL, 0, err);
    else if (!r->piped && (file || (argument && strcmp(argument, "-") == 0)))
        status = read_prompt_text(file ? file : "-", &text, &length, err);
    if (status == TN_OK && !r->prompt)
        status = encode_text(r, text ? text : argument, length, err);
    free(text);
    if (status == TN_OK && r->prompt_count == 0)
        status = tn_fail(err, TN_E_INPUT, "prompt", "the prompt is empty; give at least one token");
    if (status == TN_OK)
        status = check_ids(option_given(o, OPT_TOKENS) ? "--tokens" : "prompt", r->prompt, r->prompt_count,
                           r->w.info.vocab, err);
    return status;
}

/* ---- while it runs ---------------------------------------------------------------------------- */

static int on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    run_state *r = ctx;
    (void)row;
    (void)step;
    if (r->logprobs.list)
        logprobs_see(&r->logprobs, logits);
    if (r->limit.state && !r->answer.failed)
        r->answer.failed = tn_grammar_constrain(r->limit.state, logits, vocab, r->answer.err);
    return r->answer.failed ? TN_NEXT_END_ALL : TN_NEXT_TOKEN;
}

static int on_token(void *ctx, int64_t id)
{
    run_state *r = ctx;
    if (r->logprobs.list && !r->answer.failed)
        r->answer.failed = logprobs_token(&r->logprobs, id, r->answer.err);
    progress_clear(&r->w.progress);
    workspace_notices(&r->w);
    bool more = schema_token(&r->limit, id);
    return !answer_token(&r->answer, id) || !more || interrupted;
}

static int on_prompt(void *ctx, int64_t done, int64_t total)
{
    run_state *r = ctx;
    progress_update(&r->w.progress, "prompt", done, total);
    return interrupted;
}

static tn_status generate(run_state *r, tn_session *session, int64_t max_tokens, tn_generate_result *result,
                          tn_error *err)
{
    tn_generate_options g = r->drawing;
    g.max_tokens = max_tokens;
    g.on_token = on_token;
    g.on_prompt = on_prompt;
    g.on_logits = r->logprobs.list || r->limit.state ? on_logits : NULL;
    g.ctx = r;
    const tn_batch batch = {.size = sizeof batch,
                            .rows = 1,
                            .tokens = (int64_t)r->prompt_count,
                            .ids = r->prompt,
                            .images = tn_media_pictures(r->files.media),
                            .sounds = tn_media_sounds(r->files.media)};
    tn_generate_result **made;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART | (int)SA_RESETHAND}, before;
    sigaction(SIGINT, &action, &before);
    progress_start(&r->w.progress, r->o);
    tn_status status = tn_generate_rows(session, &batch, &g, r->out, &made, err);
    if (made)
        *result = *made[0];
    free(made);
    progress_clear(&r->w.progress);
    sigaction(SIGINT, &before, NULL);
    if (status == TN_E_CANCELLED && interrupted) /* during the prompt: there is a summary nevertheless */
        tn_error_clear(err);
    else if (status)
        return status;
    return answer_end(&r->answer);
}

/* ---- the end ---------------------------------------------------------------------------------- */

/* The first token comes from the prompt; the others cost a step each. */
static double decode_rate(const tn_generate_result *result)
{
    return result->count > 1 && result->decode_seconds > 0 ? (double)(result->count - 1) / result->decode_seconds : 0;
}

static double prompt_rate(const run_state *r, const tn_generate_result *result)
{
    return result->prompt_seconds > 0 ? (double)r->prompt_count / result->prompt_seconds : 0;
}

/* Why it ended, for JSON and for the line on stderr. */
enum { STOP_LENGTH, STOP_EOS, STOP_CONTEXT, STOP_INTERRUPTED, STOP_TEXT };
static const struct {
    const char *name, *note;
} stops[] = {[STOP_LENGTH] = {"length", ""},
             [STOP_EOS] = {"eos", " (end of text)"},
             [STOP_CONTEXT] = {"context", " (the context is full; see --context)"},
             [STOP_INTERRUPTED] = {"interrupted", " (interrupted)"},
             [STOP_TEXT] = {"stop", " (stop text)"}};

static int stop_of(const run_state *r, const tn_generate_result *result)
{
    if (interrupted)
        return STOP_INTERRUPTED;
    if (r->answer.stopped)
        return STOP_TEXT;
    if (result->stop == TN_STOP_EOS)
        return STOP_EOS;
    return result->stop == TN_STOP_CONTEXT || r->limited ? STOP_CONTEXT : STOP_LENGTH;
}

static tn_status print_json(const run_state *r, const tn_generate_result *result, tn_error *err)
{
    json_t *timings =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:I, s:I}", "load_seconds", json_number(r->w.info.load_seconds),
                  "prompt_seconds", json_number(result->prompt_seconds), "decode_seconds",
                  json_number(result->decode_seconds), "prompt_tokens_per_second", json_number(prompt_rate(r, result)),
                  "decode_tokens_per_second", json_number(decode_rate(result)), "drafted", (json_int_t)result->drafted,
                  "accepted", (json_int_t)result->accepted);
    const answer *a = &r->answer;
    json_t *text = a->stream ? json_stringn(a->text ? a->text : "", a->length) : json_null();
    json_t *root =
        json_pack("{s:o, s:I, s:o, s:I, s:o, s:s, s:I, s:o, s:o, s:o, s:s, s:s, s:s}", "tokens",
                  json_ids(r->out, (size_t)result->count), "generated_tokens", (json_int_t)result->count, "text", text,
                  "prompt_tokens", (json_int_t)r->prompt_count, "prompt_ids", json_ids(r->prompt, r->prompt_count),
                  "stop", stops[stop_of(r, result)].name, "seed", (json_int_t)r->drawing.seed, "sampling",
                  json_sampling(&r->drawing), "timings", timings, "kernels", json_kernels(&r->w), "model",
                  r->w.info.folder, "dtype", tn_dtype_name(r->w.info.dtype), "device", r->w.info.device);
    if (root && r->logprobs.list)
        json_object_set(root, "logprobs", r->logprobs.list); /* where that fails, json_print sees it */
    return json_print(root, true, err);
}

static tn_status finish(run_state *r, const tn_generate_result *result, tn_error *err)
{
    tn_status status = TN_OK;
    if (r->json)
        status = print_json(r, result, err);
    else if (r->answer.last != '\n')
        status = write_text("\n", 1, err);
    if (status == TN_OK)
        status = write_flush(err);
    if (status)
        return status;
    char decoded[96] = "", seconds[32], drafted[64] = "";
    if (result->drafted > 0)
        snprintf(drafted, sizeof drafted, ", %lld of %lld drafted", (long long)result->accepted,
                 (long long)result->drafted);
    if (result->count > 1)
        snprintf(decoded, sizeof decoded, " in %s, %.1f tokens/s", seconds_text(result->decode_seconds, seconds),
                 decode_rate(result));
    note(r->o, "prompt: %zu token%s in %s, %.1f tokens/s; generated: %lld token%s%s%s%s", r->prompt_count,
         r->prompt_count == 1 ? "" : "s", seconds_text(result->prompt_seconds, seconds), prompt_rate(r, result),
         (long long)result->count, result->count == 1 ? "" : "s", decoded, drafted, stops[stop_of(r, result)].note);
    return interrupted ? TN_E_CANCELLED : TN_OK;
}

/* Room for prompt and answer; a model's whole context may need more memory than there is. */
static tn_status choose_context(const run_state *r, int64_t max_tokens, int64_t *context, tn_error *err)
{
    int64_t prompt = (int64_t)r->prompt_count, most = workspace_positions(&r->w);
    *context = option_integer(r->o, OPT_CONTEXT, prompt + max_tokens);
    if (most > 0 && *context > most && !option_given(r->o, OPT_CONTEXT))
        *context = most;
    workspace_check_context(&r->w, *context);
    if (prompt > *context)
        return tn_fail(
            err, TN_E_INPUT, "prompt",
            option_given(r->o, OPT_CONTEXT)
                ? "has %lld tokens, and the context holds %lld; shorten it or raise --context"
                : "has %lld tokens, and the model is made for %lld; shorten it, or go beyond with --context N",
            (long long)prompt, (long long)*context);
    return TN_OK;
}

static tn_status run_prompt(run_state *r, tn_error *err)
{
    int64_t max_tokens = option_integer(r->o, OPT_MAX_TOKENS, USUAL_TOKENS);
    tn_session_options options = {.size = sizeof options, .rows = 1, .chunk = option_integer(r->o, OPT_CHUNK, 0)};
    tn_status status = choose_context(r, max_tokens, &options.context, err);
    if (status)
        return status;
    int64_t room = options.context - (int64_t)r->prompt_count + 1; /* the last token is not fed back */
    r->limited = max_tokens > room;
    max_tokens = r->limited ? room : max_tokens;
    r->out = malloc((size_t)max_tokens * sizeof *r->out);
    if (!r->out)
        return tn_fail(err, TN_E_MEMORY, "run", "out of memory; ask for fewer tokens with -n");
    status = workspace_apply(&r->w, err);
    if (status == TN_OK && option_given(r->o, OPT_LOGPROBS))
        status = logprobs_open(&r->logprobs, option_integer(r->o, OPT_LOGPROBS, 0), r->w.info.vocab, r->tokenizer, err);
    if (status == TN_OK)
        status = answer_sampling(&r->answer, r->o, r->w.model, &r->drawing, err);
    if (status)
        return status;
    tn_session *session = tn_session_new(r->w.model, &options, err);
    if (!session)
        return err->code;
    tn_generate_result result = {.size = sizeof result};
    status = generate(r, session, max_tokens, &result, err);
    if (status == TN_OK)
        status = finish(r, &result, err);
    tn_session_free(session);
    return status;
}

/* What is for the chat template needs one. */
static tn_status check_chat(const options *o, tn_error *err)
{
    static const struct {
        option_id id;
        const char *name;
    } of_chat[] = {{OPT_SYSTEM, "--system"}, {OPT_TOOLS, "--tools"}, {OPT_TEMPLATE_VAR, "--template-var"}};
    if (option_given(o, OPT_CHAT) && option_given(o, OPT_TOKENS))
        return tn_fail(err, TN_E_USAGE, "run", "--tokens are no message of a chat; leave out --chat or --tokens");
    if (o->file_count > 0 && (option_given(o, OPT_TOKENS) || option_given(o, OPT_MESSAGES)))
        return tn_fail(err, TN_E_USAGE, "run",
                       "--%s goes with a prompt, which becomes a message behind it; leave out --tokens and --messages",
                       o->files[0].sound ? "audio" : "image");
    for (size_t i = 0; i < sizeof of_chat / sizeof *of_chat; i++)
        if (option_given(o, of_chat[i].id) && !option_given(o, OPT_CHAT) && !option_given(o, OPT_MESSAGES) &&
            o->file_count == 0)
            return tn_fail(err, TN_E_USAGE, "run", "%s is for the chat template; add --chat", of_chat[i].name);
    return TN_OK;
}

/* The prompt comes from one place; where none is named, from a pipe or file that is standard input. Log-probabilities
 * have one place to go to. */
static tn_status check_sources(run_state *r, tn_error *err)
{
    const options *o = r->o;
    if (option_given(o, OPT_LOGPROBS) && !option_given(o, OPT_JSON))
        return tn_fail(err, TN_E_USAGE, "run", "--logprobs goes with --json; add it");
    int sources = option_given(o, OPT_TOKENS) + option_given(o, OPT_PROMPT_FILE) + option_given(o, OPT_MESSAGES) +
                  (o->argument_count == 2);
    if (sources > 1)
        return tn_fail(err, TN_E_USAGE, "run",
                       "more than one of PROMPT, --prompt-file, --messages and --tokens given; leave out all but one");
    tn_status status = check_chat(o, err);
    if (status || sources == 1)
        return status;
    if (!isatty(STDIN_FILENO))
        status = read_prompt_text("-", &r->piped, &r->piped_length, err);
    if (status || r->piped_length > 0)
        return status;
    return tn_fail(err, TN_E_USAGE, "run",
                   "no prompt given; write it behind MODEL or into standard input, or give --prompt-file FILE, "
                   "--messages FILE.json or --tokens I,J,...");
}

static tn_status run_run(const options *o, tn_error *err)
{
    run_state r = {.o = o, .json = option_given(o, OPT_JSON), .drawing = {.size = sizeof r.drawing}};
    tn_status status = check_sources(&r, err);
    if (status == TN_OK)
        status = workspace_model(&r.w, o, o->argument[0], err);
    if (status == TN_OK)
        status = open_tokenizer(&r, r.w.info.folder, !option_given(o, OPT_TOKENS) || option_given(o, OPT_SCHEMA), err);
    if (status == TN_OK)
        status = answer_open(&r.answer, o, r.tokenizer, err);
    if (status == TN_OK && option_given(o, OPT_SCHEMA))
        status = schema_open(&r.limit, o->text[OPT_SCHEMA], r.tokenizer, &r.w.info, err);
    r.answer.keep = r.json;
    r.answer.print = !r.json;
    if (status == TN_OK)
        status = read_prompt(&r, err);
    if (status == TN_OK)
        status = run_prompt(&r, err);
    logprobs_close(&r.logprobs);
    schema_close(&r.limit);
    answer_close(&r.answer);
    tn_tokenizer_free(r.tokenizer);
    free(r.piped);
    attached_close(&r.files);
    free(r.prompt);
    free(r.out);
    workspace_close(&r.w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    LOCK_OPTION,
    PARALLEL_OPTIONS,
    {OPT_MODEL, "model", "MODEL", 'm', OPTION_TEXT, 0, 0, "another way to give MODEL"},
    {OPT_PROMPT, "prompt", "PROMPT", 'p', OPTION_TEXT, 0, 0, "another way to give PROMPT"},
    {OPT_MAX_TOKENS, "max-tokens", "N", 'n', OPTION_INTEGER, 1, 1e9, "generate at most N tokens; default 64"},
    {OPT_TOKENS, "tokens", "I,J,...", 0, OPTION_TEXT, 0, 0, "the prompt as token ids; needs no tokenizer"},
    {OPT_PROMPT_FILE, "prompt-file", "FILE", 0, OPTION_TEXT, 0, 0, "the prompt is this file, or - standard input"},
    {OPT_MESSAGES, "messages", "FILE.json", 0, OPTION_TEXT, 0, 0, "answer this conversation, or - standard input"},
    {OPT_CHAT, "chat", NULL, 0, OPTION_FLAG, 0, 0, "the prompt is a message of the user's, for the chat template"},
    {OPT_IMAGE, "image", "FILE", 0, OPTION_TEXT, 0, 0,
     "a picture (PNG, JPEG, WebP) before the prompt; may be repeated"},
    {OPT_AUDIO, "audio", "FILE", 0, OPTION_TEXT, 0, 0,
     "a sound (WAV, FLAC, OGG, MP3) before the prompt; may be repeated"},
    CONVERSATION_OPTIONS,
    ANSWER_OPTIONS,
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 1, 1e9, "positions to keep; default: what prompt and -n need"},
    {OPT_CHUNK, "chunk", "N", 0, OPTION_INTEGER, 1, 1e9, "prompt tokens computed at once; default 512"},
    {OPT_SHADOW, "shadow", "P", 0, OPTION_REAL, 0, 1, "compare this part of kernel calls with eager; 0.01 costs 1 %"},
    {OPT_SCHEMA, "schema", "FILE.json", 0, OPTION_TEXT, 0, 0,
     "JSON that this schema allows, and nothing else; the schema itself is taken, too"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "one object with tokens, text and timings"},
    {OPT_LOGPROBS, "logprobs", "N", 0, OPTION_INTEGER, 0, LOGPROBS_MOST,
     "in it: log-probabilities of each token and the N likeliest"},
};

const command command_run = {
    .name = "run",
    .arguments = "MODEL [PROMPT] [options]",
    .summary = "Continues PROMPT and prints the text as it comes. Without PROMPT, or with -, it is what a pipe brings.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 2,
    .missing = "no model given",
    .notes = "Ctrl-C ends the text after the current token, a second Ctrl-C at once. A prompt that begins with a dash\n"
             "stands behind \"--\". Standard input and files lose one final newline. What is given of how to draw "
             "tokens comes\n"
             "before generation_config.json, and that before the likeliest token. tenon --kernels=auto MODEL PROMPT, "
             "without\n"
             "a command, is the same as tenon run.",
    .example = "  tenon run models/demo \"And it came to pass\" -n 48 --temperature 0\n"
               "  echo \"Psalms 151\" | tenon run models/demo --temperature 0.7 --top-k 40 --seed 1",
    .run = run_run,
};
