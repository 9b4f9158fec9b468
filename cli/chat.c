/* tenon chat: a conversation with a model, in a terminal or through a pipe. */
#include "answer.h"
#include "conversation.h"
#include "held.h"
#include "line.h"
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Positions without --context: what kernels are checked for anyway. */
#define USUAL_CONTEXT 4096

/* Set by Ctrl-C: ends an answer, or the line that is being typed. */
static volatile int interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

typedef struct chat {
    workspace w;
    const options *o;
    tn_tokenizer *tokenizer;
    answer answer;
    conversation talk;
    line_reader *lines;
    int64_t context;
    held held;
    int64_t *out; /* [context + 1]                                                               */
    tn_generate_options drawing;
    uint64_t turn;           /* answers so far                                                             */
    tn_generate_result last; /* of the newest answer, before which so many tokens were new           */
    int64_t last_new;
    bool quit, asked; /* asked: an answer to the first question came                                     */
} chat;

/* For the user, whatever is printed otherwise. */
static void say(const char *text)
{
    print_clean(stderr, text, true);
    fputc('\n', stderr);
}

/* ---- one answer ----------------------------------------------------------------------------- */

static int on_token(void *ctx, int64_t id)
{
    chat *c = ctx;
    progress_clear(&c->w.progress);
    workspace_notices(&c->w);
    return !answer_token(&c->answer, id) || interrupted;
}

static int on_prompt(void *ctx, int64_t done, int64_t total)
{
    chat *c = ctx;
    progress_update(&c->w.progress, "reading", done, total);
    return interrupted;
}

/* Why the answer ends here, where that is not how answers end. */
static void tell_end(const chat *c, const tn_generate_result *r, bool limited)
{
    if (interrupted)
        say(r->count ? "(interrupted)" : "(interrupted before an answer; the message is taken back)");
    else if (r->stop == TN_STOP_CONTEXT || (r->stop == TN_STOP_LENGTH && limited))
        note(c->o,
             "(the context of %lld tokens is full: /reset begins anew, /save FILE keeps what was said; tenon chat "
             "--context N has room for more)",
             (long long)c->context);
    else if (r->stop == TN_STOP_LENGTH)
        note(c->o, "(ended after %lld tokens; -n N allows more)", (long long)r->count);
}

static tn_status generate(chat *c, const int64_t *ids, int64_t count, tn_error *err)
{
    int64_t same = held_reuse(&c->held, &c->talk.files, ids, count),
            most = option_integer(c->o, OPT_MAX_TOKENS, INT64_MAX);
    bool limited = most > c->context - count + 1;
    tn_generate_result r = {.size = sizeof r};
    tn_generate_options g = c->drawing;
    g.max_tokens = limited ? c->context - count + 1 : most; /* the last token is not fed back */
    g.seed += c->turn++;
    g.history = ids;
    g.history_count = same;
    g.on_token = on_token;
    g.on_prompt = on_prompt;
    g.ctx = c;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    answer_begin(&c->answer);
    sigaction(SIGINT, &action, &before);
    progress_start(&c->w.progress, c->o);
    tn_status status = held_feed(&c->held, &c->talk.files, ids, count, &g, c->out, &r, err);
    progress_clear(&c->w.progress);
    if (status == TN_OK)
        status = answer_end(&c->answer);
    sigaction(SIGINT, &before, NULL);
    if (status) {
        held_forget(&c->held);
        return status;
    }
    held_remember(&c->held, ids, count, c->out, r.count);
    c->last = r;
    c->last_new = count - same;
    if (r.count > 0 || !interrupted) {
        status = write_text("\n", c->answer.last != '\n', err);
        if (status == TN_OK)
            status = write_flush(err);
    }
    tell_end(c, &r, limited);
    if (option_given(c->o, OPT_VERBOSE))
        note(c->o, "prompt: %lld tokens, %lld of them new; generated: %lld", (long long)count,
             (long long)(count - same), (long long)r.count);
    if (status == TN_OK && r.count > 0)
        return conversation_add(&c->talk, "assistant", c->answer.text ? c->answer.text : "", c->answer.length, err);
    conversation_take_back(&c->talk); /* nobody answered it                                      */
    return status;
}

/* Answers the last message. */
static tn_status reply(chat *c, tn_error *err)
{
    int64_t *ids = NULL;
    size_t count = 0;
    tn_status status = attached_read(&c->talk.files, c->w.model, err);
    if (status == TN_OK)
        status = conversation_ids(&c->talk, c->tokenizer, &ids, &count, err);
    if (status == TN_OK && count == 0)
        status = tn_fail(err, TN_E_INPUT, "conversation", "the chat template makes no text of it");
    if (status == TN_OK)
        status = check_ids("conversation", ids, count, c->w.info.vocab, err);
    if (status == TN_OK && (int64_t)count > c->context)
        status = tn_fail(err, TN_E_INPUT, "conversation",
                         "has %zu tokens with this message, and the context holds %lld; /reset begins anew, /save FILE "
                         "keeps what was said, tenon chat --context N has room for more",
                         count, (long long)c->context);
    if (status == TN_OK)
        status = generate(c, ids, (int64_t)count, err);
    if (status)
        conversation_take_back(&c->talk);
    free(ids);
    return status;
}

/* ---- commands ------------------------------------------------------------------------------- */

static tn_status do_help(chat *c, const char *rest, tn_error *err);

static tn_status do_reset(chat *c, const char *rest, tn_error *err)
{
    (void)rest;
    (void)err;
    conversation_reset(&c->talk);
    note(c->o, "(the conversation begins anew)");
    return TN_OK;
}

static tn_status do_system(chat *c, const char *rest, tn_error *err)
{
    tn_status status = conversation_system(&c->talk, rest[0] ? rest : NULL, err);
    if (status == TN_OK)
        note(c->o, rest[0] ? "(the system's message is set)" : "(there is no system's message any more)");
    return status;
}

static tn_status do_save(chat *c, const char *rest, tn_error *err)
{
    if (!rest[0])
        return tn_fail(err, TN_E_USAGE, "/save", "no file named; write /save FILE");
    tn_status status = conversation_save(&c->talk, rest, err);
    if (status == TN_OK)
        note(c->o, "(%zu messages are in %s)", json_array_size(c->talk.messages), rest);
    return status;
}

static double per_second(int64_t count, double seconds)
{
    return count > 0 && seconds > 0 ? (double)count / seconds : 0;
}

/* The first token comes from the message; the others cost a step each. */
static tn_status do_speed(chat *c, const char *rest, tn_error *err)
{
    char line[160], read[32], wrote[32];
    (void)rest;
    (void)err;
    snprintf(line, sizeof line, "(read: %lld tokens in %s, %.1f tokens/s; answered: %lld in %s, %.1f tokens/s)",
             (long long)c->last_new, seconds_text(c->last.prompt_seconds, read),
             per_second(c->last_new, c->last.prompt_seconds), (long long)c->last.count,
             seconds_text(c->last.decode_seconds, wrote), per_second(c->last.count - 1, c->last.decode_seconds));
    say(c->turn > 0 ? line : "(there is no answer yet)");
    return TN_OK;
}

static tn_status do_quit(chat *c, const char *rest, tn_error *err)
{
    (void)rest;
    (void)err;
    c->quit = true;
    return TN_OK;
}

static const struct chat_command {
    const char *name, *argument, *help;
    tn_status (*run)(chat *c, const char *rest, tn_error *err);
} chat_commands[] = {{"help", "", "this list", do_help},
                     {"reset", "", "forget the conversation, but not the system's message", do_reset},
                     {"system", " TEXT", "set the system's message; without TEXT there is none", do_system},
                     {"save", " FILE", "write the messages to FILE, for --messages", do_save},
                     {"speed", "", "how fast the last answer came, in tokens per second", do_speed},
                     {"quit", "", "end, as Ctrl-D does", do_quit}};

static tn_status do_help(chat *c, const char *rest, tn_error *err)
{
    (void)c;
    (void)rest;
    (void)err;
    for (size_t i = 0; i < sizeof chat_commands / sizeof *chat_commands; i++)
        fprintf(stderr, "/%s%-*s  %s\n", chat_commands[i].name, (int)(12 - strlen(chat_commands[i].name)),
                chat_commands[i].argument, chat_commands[i].help);
    fprintf(stderr,
            "A line that ends in \\ goes on in the next. //TEXT is a message that begins with a slash.\n"
            "A word @FILE gives a picture (.png, .jpg, .webp) or a sound (.wav, .flac, .ogg, .mp3) with a message.\n"
            "Tab completes a command. Lines that are pasted together are one message. Ctrl-C ends an answer.\n");
    return TN_OK;
}

static tn_status run_command(chat *c, const char *line, tn_error *err)
{
    size_t length = strcspn(line, " \t\n");
    const char *rest = line + length + strspn(line + length, " \t\n");
    for (size_t i = 0; i < sizeof chat_commands / sizeof *chat_commands; i++)
        if (strlen(chat_commands[i].name) == length && strncmp(line, chat_commands[i].name, length) == 0)
            return chat_commands[i].run(c, rest, err);
    return tn_fail(err, TN_E_USAGE, "chat", "unknown command '/%.*s'; /help lists them, and // begins a message",
                   (int)(length < 40 ? length : 40), line);
}

/* The files of the options belong to the first question that is answered. */
static tn_status ask(chat *c, const char *text, size_t length, tn_error *err)
{
    size_t files = c->asked ? 0 : c->o->file_count;
    tn_status status = conversation_ask(&c->talk, c->o->files, files, true, text, length, err);
    if (status == TN_OK)
        status = reply(c, err);
    c->asked = c->asked || (status == TN_OK && c->last.count > 0);
    return status;
}

static tn_status take_line(chat *c, const char *text, size_t length, tn_error *err)
{
    if (text[0] == '/' && text[1] != '/')
        return run_command(c, text + 1, err);
    if (text[strspn(text, " \t\n")] == '\0' && strlen(text) == length)
        return TN_OK;
    size_t skip = text[0] == '/';
    return ask(c, text + skip, length - skip, err);
}

/* ---- the conversation ----------------------------------------------------------------------- */

/* Of somebody at a terminal a mistake ends nothing; a script is told by the exit status. */
static bool goes_on(const chat *c, tn_status status)
{
    return line_interactive(c->lines) && (status == TN_E_INPUT || status == TN_E_USAGE);
}

static tn_status talk(chat *c, tn_error *err)
{
    bool terminal = line_interactive(c->lines);
    /* The wait for a key ends nevertheless; what the editor writes does not, and is no failed output in the end. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
    tn_status status = TN_OK;
    sigaction(SIGINT, NULL, &before);
    while (status == TN_OK && !c->quit) {
        char *text = NULL;
        size_t length = 0;
        if (terminal)
            sigaction(SIGINT, &action, NULL);
        line_end end = line_read(c->lines, &interrupted, &text, &length, err);
        if (end == LINE_INTERRUPTED)
            fprintf(stderr, "\n(Ctrl-D or /quit ends)\n");
        if (end == LINE_CLOSED && terminal)
            fputc('\n', stderr);
        if (end == LINE_CLOSED)
            break;
        status = end == LINE_FAILED ? TN_E_MEMORY : end == LINE_READ ? take_line(c, text, length, err) : TN_OK;
        free(text);
        if (status == TN_OK && interrupted && !terminal && end == LINE_READ)
            status = TN_E_CANCELLED;
        if (status && goes_on(c, status)) {
            char line[sizeof err->where + sizeof err->message + 16];
            snprintf(line, sizeof line, "tenon: %s%s%s", err->where, err->where[0] ? ": " : "", err->message);
            say(line);
            tn_error_clear(err);
            status = TN_OK;
        }
    }
    sigaction(SIGINT, &before, NULL);
    return status;
}

/* The one message of the command line, which is answered. */
static tn_status answer_question(chat *c, const char *question, tn_error *err)
{
    char *text = NULL;
    size_t length = strlen(question);
    tn_status status = strcmp(question, "-") == 0 ? read_prompt_text("-", &text, &length, err) : TN_OK;
    if (status == TN_OK && length == 0)
        status = tn_fail(err, TN_E_INPUT, "question", "the question is empty; give a text, or none for a conversation");
    if (status == TN_OK)
        status = ask(c, text ? text : question, length, err);
    free(text);
    return status == TN_OK && interrupted ? TN_E_CANCELLED : status;
}

/* Message by message, from a terminal or a pipe. */
static tn_status converse(chat *c, tn_error *err)
{
    const char *words[sizeof chat_commands / sizeof *chat_commands + 1] = {0};
    for (size_t i = 0; i < sizeof chat_commands / sizeof *chat_commands; i++)
        words[i] = chat_commands[i].name;
    if (!(c->lines = line_open(words, err)))
        return err->code;
    char path[4096];
    bool kept = line_interactive(c->lines) && !option_given(c->o, OPT_NO_HISTORY) && history_path(path, sizeof path);
    if (line_interactive(c->lines))
        note(c->o, "/help lists the commands; Ctrl-C ends an answer, Ctrl-D the conversation");
    if (kept)
        line_recall(c->lines, path);
    tn_status status = talk(c, err);
    tn_error why = TN_ERROR_INIT;
    if (kept && line_keep(c->lines, path, &why) != TN_OK && option_given(c->o, OPT_VERBOSE))
        note(c->o, "the lines are not kept: %s: %s", why.where, why.message);
    line_close(c->lines);
    return status;
}

static tn_status choose_context(chat *c, tn_error *err)
{
    int64_t most = workspace_positions(&c->w);
    c->context = option_integer(c->o, OPT_CONTEXT, most > 0 && most < USUAL_CONTEXT ? most : USUAL_CONTEXT);
    workspace_check_context(&c->w, c->context);
    c->held.ids = malloc((size_t)c->context * sizeof *c->held.ids);
    c->out = malloc((size_t)(c->context + 1) * sizeof *c->out);
    if (!c->held.ids || !c->out)
        return tn_fail(err, TN_E_MEMORY, "chat", "out of memory; use a smaller --context");
    return TN_OK;
}

/* Template and tokenizer first: without them no model needs to be read. */
static tn_status open_text(chat *c, const char *folder, tn_error *err)
{
    const options *o = c->o;
    bool needs_template = option_given(o, OPT_SYSTEM) || option_given(o, OPT_TOOLS) || o->variable_count > 0;
    c->tokenizer = tn_tokenizer_open(folder, err);
    tn_status status = c->tokenizer ? TN_OK : err->code;
    if (status == TN_OK)
        status =
            needs_template ? conversation_open(&c->talk, folder, err) : conversation_open_any(&c->talk, folder, err);
    if (status == TN_OK && option_given(o, OPT_MESSAGES) && strcmp(o->text[OPT_MESSAGES], "-") == 0)
        status = tn_fail(err, TN_E_USAGE, "chat",
                         "--messages: standard input is where the messages of the user come "
                         "from; give a file");
    if (status == TN_OK)
        status = conversation_start(&c->talk, o, err);
    return status;
}

static tn_status open_session(chat *c, tn_error *err)
{
    tn_status status = choose_context(c, err);
    if (status == TN_OK)
        status = workspace_apply(&c->w, err);
    if (status == TN_OK)
        status = answer_sampling(&c->answer, c->o, c->w.model, &c->drawing, err);
    tn_session_options so = {.size = sizeof so, .context = c->context, .chunk = option_integer(c->o, OPT_CHUNK, 0)};
    if (status == TN_OK && !(c->held.session = tn_session_new(c->w.model, &so, err)))
        status = err->code;
    return status;
}

static tn_status run_chat(const options *o, tn_error *err)
{
    chat c = {.o = o, .held.o = o, .drawing = {.size = sizeof c.drawing}};
    const char *folder = o->argument[0];
    tn_status status = open_text(&c, folder, err);
    if (status == TN_OK)
        status = answer_open(&c.answer, o, c.tokenizer, err);
    c.answer.keep = true;
    if (status == TN_OK)
        status = workspace_model(&c.w, o, folder, err);
    if (status == TN_OK)
        status = open_session(&c, err);
    if (status == TN_OK && c.talk.plain)
        note(o, "the model has no chat template; it continues plain text");
    if (status == TN_OK)
        status = o->argument_count == 2 ? answer_question(&c, o->argument[1], err) : converse(&c, err);
    held_close(&c.held);
    answer_close(&c.answer);
    conversation_close(&c.talk);
    tn_tokenizer_free(c.tokenizer);
    free(c.out);
    workspace_close(&c.w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    LOCK_OPTION,
    PARALLEL_OPTIONS,
    {OPT_MODEL, "model", "MODEL", 'm', OPTION_TEXT, 0, 0, "another way to give MODEL"},
    {OPT_PROMPT, "prompt", "QUESTION", 'p', OPTION_TEXT, 0, 0, "another way to give QUESTION"},
    CONVERSATION_OPTIONS,
    {OPT_MESSAGES, "messages", "FILE.json", 0, OPTION_TEXT, 0, 0, "go on with these messages, which /save writes"},
    {OPT_IMAGE, "image", "FILE", 0, OPTION_TEXT, 0, 0,
     "a picture (PNG, JPEG, WebP) of the first question; may be repeated"},
    {OPT_AUDIO, "audio", "FILE", 0, OPTION_TEXT, 0, 0,
     "a sound (WAV, FLAC, OGG, MP3) of the first question; may be repeated"},
    {OPT_MAX_TOKENS, "max-tokens", "N", 'n', OPTION_INTEGER, 1, 1e9, "at most N tokens an answer; default: no limit"},
    {OPT_NO_HISTORY, "no-history", NULL, 0, OPTION_FLAG, 0, 0,
     "neither bring back lines of earlier chats nor keep these"},
    ANSWER_OPTIONS,
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 1, 1e9, "positions to keep; default: the model's, at most 4096"},
    {OPT_CHUNK, "chunk", "N", 0, OPTION_INTEGER, 1, 1e9, "tokens of a message computed at once; default 512"},
    {OPT_SHADOW, "shadow", "P", 0, OPTION_REAL, 0, 1, "compare this part of kernel calls with eager; 0.01 costs 1 %"},
};

const command command_chat = {
    .name = "chat",
    .arguments = "MODEL [QUESTION] [options]",
    .summary = "Holds a conversation with a model, or answers QUESTION. Through a pipe, each line is a message.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 2,
    .missing = "no model given",
    .notes =
        "A line that ends in a backslash goes on in the next one. /help, /reset, /system TEXT, /save FILE, /speed\n"
        "and /quit are commands; // begins a message with a slash. Ctrl-C ends an answer and keeps what was said;\n"
        "Ctrl-D ends the conversation. Of a conversation only what is new is computed. A model without a\n"
        "chat template continues plain text: what was said, line by line. QUESTION may be - to read standard input.\n"
        "The value of a variable is JSON, or else a text. A word @FILE that names a picture or a sound gives it with "
        "the\n"
        "message.",
    .example = "  tenon chat MODEL \"What is a tenon?\" --template-var enable_thinking=false\n"
               "  tenon chat MODEL --system \"You answer in one sentence.\"\n"
               "  printf '%s\\n' \"Hello\" \"What did I say?\" | tenon chat MODEL --temperature 0 -q",
    .run = run_chat,
};
