/* Reading the arguments of a sub-command: a table of options, values as "--name value" and "--name=value". */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const option_spec common_options[] = {
    {OPT_CONFIG, "config", "FILE", 0, OPTION_TEXT, 0, 0, "read this kernels.json instead of the usual one"},
    {OPT_PLUGINS, "plugins", "DIR", 0, OPTION_TEXT, 0, 0, "look for plugins here first; may be repeated"},
    {OPT_ONLY_PLUGINS, "only-plugins", "DIR", 0, OPTION_TEXT, 0, 0,
     "look for plugins here and not in the usual folders; may be repeated"},
    {OPT_DEVICE, "device", "NAME[:N]", 0, OPTION_TEXT, 0, 0,
     "where to compute: cpu, or a plugin's device and which of them"},
    {OPT_DTYPE, "dtype", "auto|f32|bf16|f16", 0, OPTION_CHOICE, 0, 0, "compute in this type; auto is the checkpoint's"},
    {OPT_DEQUANTISE, "dequantise", NULL, 0, OPTION_FLAG, 0, 0, "copy quantised weights as plain values"},
    {OPT_THREADS, "threads", "N", 't', OPTION_INTEGER, 1, 1024,
     "threads to compute with; default: one per core; at most one per processor, or 4"},
    {OPT_MAX_PACKED, "max-packed-mb", "N", 0, OPTION_INTEGER, 0, 1099511627776.0,
     "most MiB of packed weights that kernels may hold; one that needs more declines"},
    {OPT_NO_MEASURE, "no-measure", NULL, 0, OPTION_FLAG, 0, 0,
     "auto chooses by priority only and does not time kernels first"},
    {OPT_SAME_BITS, "same-bits", NULL, 0, OPTION_FLAG, 0, 0,
     "only kernels that give a token the same bits in any call; else an error"},
    {OPT_EXACT, "exact", NULL, 0, OPTION_FLAG, 0, 0,
     "no kernels that round activations for products with quantised weights"},
    {OPT_QUIET, "quiet", NULL, 'q', OPTION_FLAG, 0, 0, "nothing on stderr but errors and warnings"},
    {OPT_VERBOSE, "verbose", NULL, 'v', OPTION_FLAG, 0, 0, "say more on stderr"},
    {OPT_HELP, "help", NULL, 'h', OPTION_FLAG, 0, 0, "print this help"},
    {OPT_VERSION, "version", NULL, 'V', OPTION_FLAG, 0, 0, "print the version"},
};
const size_t common_option_count = sizeof common_options / sizeof *common_options;

bool option_given(const options *o, option_id id)
{
    return o->text[id] != NULL;
}

int64_t option_integer(const options *o, option_id id, int64_t otherwise)
{
    return o->text[id] ? o->integer[id] : otherwise;
}

double option_real(const options *o, option_id id, double otherwise)
{
    return o->text[id] ? o->real[id] : otherwise;
}

const char *option_text(const options *o, option_id id, const char *otherwise)
{
    return o->text[id] ? o->text[id] : otherwise;
}

/* ---- names ---------------------------------------------------------------------------------- */

#define WORD_MAX 40

/* What llama.cpp calls options of ours. */
static const struct {
    const char *name, *ours;
} other_names[] = {{"temp", "temperature"},
                   {"ctx-size", "context"},
                   {"n-predict", "max-tokens"},
                   {"repeat-penalty", "repetition-penalty"}};

static bool is_called(const option_spec *s, const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (strncmp(other_names[i].name, name, length) == 0 && other_names[i].name[length] == '\0')
            return strcmp(s->name, other_names[i].ours) == 0;
    return strncmp(s->name, name, length) == 0 && s->name[length] == '\0';
}

static const option_spec *find_option(const command *c, const char *name, size_t length, char letter)
{
    for (size_t i = 0; i < c->option_count + common_option_count; i++) {
        const option_spec *s = i < c->option_count ? &c->options[i] : &common_options[i - c->option_count];
        if (letter ? s->letter == letter : is_called(s, name, length))
            return s;
    }
    return NULL;
}

/* The first sub-command that has an option of its own of this name, or NULL. */
static const char *owner_of(const command *const *all, const char *name)
{
    for (; *all; all++)
        for (size_t j = 0; j < (*all)->option_count; j++)
            if (strcmp((*all)->options[j].name, name) == 0)
                return (*all)->name;
    return NULL;
}

static tn_status unknown_option(const options *o, const char *argument, tn_error *err)
{
    const command *c = o->command;
    const char *names[OPT_COUNT * 2];
    size_t count = 0;
    char word[WORD_MAX + 1];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(argument, "="), argument);
    for (size_t i = 0; i < c->option_count; i++)
        names[count++] = c->options[i].name;
    for (size_t i = 0; i < common_option_count; i++)
        names[count++] = common_options[i].name;
    const char *nearest = argument[1] == '-' ? tn_nearest_name(word + 2, names, count) : NULL;
    const char *space = c->name[0] ? " " : "", *owner = argument[1] == '-' ? owner_of(o->all, word + 2) : NULL;
    if (owner)
        return tn_fail(err, TN_E_USAGE, c->name, "unknown option '%s', which belongs to tenon %s; see tenon%s%s --help",
                       word, owner, space, c->name);
    if (nearest)
        return tn_fail(err, TN_E_USAGE, c->name, "unknown option '%s'; did you mean '--%s'? see tenon%s%s --help", word,
                       nearest, space, c->name);
    return tn_fail(err, TN_E_USAGE, c->name, "unknown option '%s'; see tenon%s%s --help", word, space, c->name);
}

/* ---- values --------------------------------------------------------------------------------- */

static tn_status parse_number(options *o, const option_spec *s, const char *value, tn_error *err)
{
    char *end = NULL;
    bool whole = s->kind != OPTION_REAL;
    errno = 0;
    if (whole)
        o->integer[s->id] = strtoll(value, &end, 10);
    else
        o->real[s->id] = strtod(value, &end);
    if (end == value || *end)
        return tn_fail(err, TN_E_USAGE, o->command->name, "--%s: '%s' is not a %snumber; give one from %.0f to %.0f",
                       s->name, value, whole ? "whole " : "", s->min, s->max);
    double number = whole ? (double)o->integer[s->id] : o->real[s->id];
    if (errno == ERANGE || !(number >= s->min && number <= s->max))
        return tn_fail(err, TN_E_USAGE, o->command->name, "--%s: %s is out of range; give %.0f to %.0f", s->name, value,
                       s->min, s->max);
    return TN_OK;
}

static tn_status parse_choice(options *o, const option_spec *s, const char *value, tn_error *err)
{
    size_t length = strlen(value);
    for (const char *name = s->metavar; *name;) {
        size_t here = strcspn(name, "|");
        if (here == length && (s->id == OPT_TYPE ? strncasecmp : strncmp)(name, value, length) == 0)
            return TN_OK;
        name += here + (name[here] == '|');
    }
    return tn_fail(err, TN_E_USAGE, o->command->name, "--%s: unknown value '%s'; choose %s", s->name, value,
                   s->metavar);
}

static tn_status set_option(options *o, const option_spec *s, const char *value, tn_error *err)
{
    tn_status status = TN_OK;
    tn_dtype dtype = s->id == OPT_DTYPE ? tn_dtype_parse(value) : TN_DTYPE_NONE;
    if (dtype == TN_F32 || dtype == TN_BF16 ||
        dtype == TN_F16) /* by another of its names, as "bfloat16" or "torch.bfloat16"          */
        value = tn_dtype_name(dtype);
    bool number = s->kind == OPTION_OPTIONAL && s->max > 0 && *value;
    if (s->kind == OPTION_INTEGER || s->kind == OPTION_REAL || number)
        status = parse_number(o, s, value, err);
    else if (s->kind == OPTION_CHOICE)
        status = parse_choice(o, s, value, err);
    else if (s->kind == OPTION_TEXT && !*value)
        status = tn_fail(err, TN_E_USAGE, o->command->name, "--%s: the value is empty; give %s", s->name, s->metavar);
    if (status == TN_OK && (s->id == OPT_PLUGINS || s->id == OPT_ONLY_PLUGINS))
        o->plugins[o->plugin_count++] = value;
    if (status == TN_OK && s->id == OPT_STOP)
        o->stops[o->stop_count++] = value;
    if (status == TN_OK && s->id == OPT_TEMPLATE_VAR)
        o->variables[o->variable_count++] = value;
    if (s->id == OPT_ALIAS)
        o->aliases[o->alias_count++] = value;
    if (s->id == OPT_CORS)
        o->origins[o->origin_count++] = value;
    if (status == TN_OK && (s->id == OPT_IMAGE || s->id == OPT_AUDIO))
        o->files[o->file_count++] = (media_file){value, s->id == OPT_AUDIO};
    o->text[s->id] = value;
    return status;
}

/* One argument that begins with '-'. Returns in *used how many arguments it took. */
static tn_status parse_option(options *o, int argc, char **argv, int *used, tn_error *err)
{
    const char *argument = argv[0];
    bool is_long = argument[1] == '-';
    size_t length = is_long ? strcspn(argument + 2, "=") : 1;
    const option_spec *s = find_option(o->command, argument + 2, length, is_long ? 0 : argument[1]);
    *used = 1;
    if (!s)
        return unknown_option(o, argument, err);
    const char *rest = is_long ? argument + 2 + length : argument + 2;
    bool attached = is_long ? *rest == '=' : *rest != '\0';
    const char *value = *rest == '=' ? rest + 1 : rest;
    if (s->kind == OPTION_FLAG && attached)
        return tn_fail(err, TN_E_USAGE, o->command->name, "--%s takes no value; leave out '%s'", s->name, rest);
    if (s->kind == OPTION_FLAG || s->kind == OPTION_OPTIONAL)
        return set_option(o, s, attached ? value : "", err);
    if (!attached) {
        if (argc < 2)
            return tn_fail(err, TN_E_USAGE, o->command->name, "%s needs a value; give %s", argument, s->metavar);
        value = argv[1];
        *used = 2;
    }
    return set_option(o, s, value, err);
}

/* An argument that is given as an option takes its place among the others. */
static tn_status place_argument(options *o, option_id id, int place, tn_error *err)
{
    const command *c = o->command;
    if (!option_given(o, id) || o->argument_count < place)
        return TN_OK;
    if (o->argument_count >= c->max_arguments)
        return tn_fail(err, TN_E_USAGE, c->name, "unexpected argument '%s'; usage: tenon %s %s",
                       o->argument[o->argument_count - 1], c->name, c->arguments);
    for (int i = o->argument_count++; i > place; i--)
        o->argument[i] = o->argument[i - 1];
    o->argument[place] = o->text[id];
    return TN_OK;
}

tn_status options_parse(options *o, int argc, char **argv, tn_error *err)
{
    const command *c = o->command;
    bool only_arguments = false;
    o->argument = calloc((size_t)argc + 2, sizeof *o->argument); /* two may be given as options          */
    o->plugins = calloc((size_t)argc + 1, sizeof *o->plugins);
    o->stops = calloc((size_t)argc + 1, sizeof *o->stops);
    o->variables = calloc((size_t)argc + 1, sizeof *o->variables);
    o->aliases = calloc((size_t)argc + 1, sizeof *o->aliases);
    o->origins = calloc((size_t)argc + 1, sizeof *o->origins);
    o->files = calloc((size_t)argc + 1, sizeof *o->files);
    if (!o->argument || !o->plugins || !o->stops || !o->variables || !o->aliases || !o->origins || !o->files)
        return tn_fail(err, TN_E_MEMORY, c->name, "out of memory; close other programs");
    for (int i = 0; i < argc;) {
        const char *argument = argv[i];
        int used = 1;
        if (!only_arguments && strcmp(argument, "--") == 0) {
            only_arguments = true;
        } else if (!only_arguments && argument[0] == '-' && argument[1]) {
            tn_status status = parse_option(o, argc - i, argv + i, &used, err);
            if (status)
                return status;
        } else if (o->argument_count == c->max_arguments) {
            return tn_fail(err, TN_E_USAGE, c->name, "unexpected argument '%s'; usage: tenon %s %s", argument, c->name,
                           c->arguments);
        } else {
            o->argument[o->argument_count++] = argument;
        }
        i += used;
    }
    tn_status status = place_argument(o, OPT_MODEL, 0, err);
    if (status == TN_OK && c->max_arguments > 1) /* of bench it is another thing                           */
        status = place_argument(o, OPT_PROMPT, 1, err);
    if (status)
        return status;
    if (o->argument_count < c->min_arguments && !option_given(o, OPT_VERSION))
        return tn_fail(err, TN_E_USAGE, c->name, "%s; usage: tenon %s %s", c->missing, c->name, c->arguments);
    return TN_OK;
}

void options_free(options *o)
{
    free(o->argument);
    free(o->plugins);
    free(o->stops);
    free(o->variables);
    free(o->aliases);
    free(o->origins);
    free(o->files);
    o->argument = o->plugins = o->stops = o->variables = o->aliases = o->origins = NULL;
    o->files = NULL;
}

/* ---- lists of token ids --------------------------------------------------------------------- */

tn_status parse_ids(const char *where, const char *text, int64_t **ids, size_t *count, tn_error *err)
{
    static const char separators[] = ", \t\r\n";
    int64_t *list = malloc((strlen(text) / 2 + 1) * sizeof *list); /* a number and a separator take two characters */
    size_t n = 0;
    const char *at = text + strspn(text, separators);
    if (!list)
        return tn_fail(err, TN_E_MEMORY, where, "out of memory; close other programs");
    bool bracket = *at == '[';
    at += bracket;
    for (at += strspn(at, separators); *at && !(bracket && *at == ']'); at += strspn(at, separators)) {
        char *end;
        errno = 0;
        list[n] = strtoll(at, &end, 10);
        if (end == at || errno || (*end && !strchr(separators, *end) && !(bracket && *end == ']'))) {
            free(list);
            return tn_fail(err, TN_E_USAGE, where, "'%.20s' is not a whole number; give some, separated by commas", at);
        }
        n++;
        at = end;
    }
    bool closed = bracket && *at == ']';
    at += closed;
    at += strspn(at, separators);
    if (*at || bracket != closed) {
        free(list);
        return tn_fail(err, TN_E_USAGE, where, "the list of token ids is not closed properly; give [I, J, ...] or I,J");
    }
    *ids = list;
    *count = n;
    return TN_OK;
}

tn_status check_ids(const char *where, const int64_t *ids, size_t count, int64_t vocab, tn_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return tn_fail(err, TN_E_INPUT, where, "token id %lld is out of range; the model knows 0 to %lld",
                           (long long)ids[i], (long long)vocab - 1);
    return TN_OK;
}
