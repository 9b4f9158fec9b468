/* tenon tokenize: text to token ids and back; needs a tokenizer and no weights. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The text to work on: the argument, what --decode=... holds, or standard input. */
static tn_status read_subject(const options *o, char **text, size_t *length, tn_error *err)
{
    const char *argument = o->argument_count > 1 ? o->argument[1] : NULL;
    const char *attached = option_text(o, OPT_DECODE, "");
    if (argument && *attached)
        return tn_fail(err, TN_E_USAGE, "tokenize", "token ids given twice; leave out one of them");
    if (*attached)
        argument = attached;
    if (!argument && isatty(STDIN_FILENO))
        return tn_fail(err, TN_E_USAGE, "tokenize", "no %s given; write %s behind MODEL, or - for standard input",
                       option_given(o, OPT_DECODE) ? "token ids" : "text", option_given(o, OPT_DECODE) ? "them" : "it");
    if (!argument || strcmp(argument, "-") == 0)
        return read_all("-", text, length, err);
    *text = strdup(argument);
    *length = strlen(argument);
    return *text ? TN_OK : tn_fail(err, TN_E_MEMORY, "tokenize", "out of memory; close other programs");
}

static tn_status encode(const options *o, const tn_tokenizer *tokenizer, const char *text, size_t length, tn_error *err)
{
    int64_t *ids = NULL;
    size_t count = 0;
    tn_status status =
        tn_tokenizer_encode(tokenizer, text, length, !option_given(o, OPT_NO_SPECIAL), &ids, &count, err);
    if (status == TN_OK) {
        status = json_print(json_ids(ids, count), true, err);
        if (option_given(o, OPT_VERBOSE))
            note(o, "%zu tokens", count);
    }
    free(ids);
    return status;
}

static tn_status decode(const options *o, const tn_tokenizer *tokenizer, const char *list, tn_error *err)
{
    int64_t *ids = NULL;
    size_t count = 0, length = 0;
    char *text = NULL;
    tn_status status = parse_ids("tokenize", list, &ids, &count, err);
    if (status == TN_OK)
        status = check_ids("tokenize", ids, count, tn_tokenizer_size(tokenizer), err);
    if (status == TN_OK)
        status = tn_tokenizer_decode(tokenizer, ids, count, option_given(o, OPT_NO_SPECIAL), &text, &length, err);
    if (status == TN_OK && option_given(o, OPT_JSON))
        status = json_print(json_stringn(text, length), true, err);
    else if (status == TN_OK)
        status = write_shown(text, length, err);
    if (status == TN_OK && !option_given(o, OPT_JSON) && (length == 0 || text[length - 1] != '\n'))
        status = write_text("\n", 1, err);
    free(text);
    free(ids);
    return status;
}

static tn_status run_tokenize(const options *o, tn_error *err)
{
    char *text = NULL;
    size_t length = 0;
    tn_tokenizer *tokenizer = NULL;
    tn_status status = read_subject(o, &text, &length, err);
    if (status == TN_OK && !(tokenizer = tn_tokenizer_open(o->argument[0], err)))
        status = err->code;
    if (status == TN_OK)
        status =
            option_given(o, OPT_DECODE) ? decode(o, tokenizer, text, err) : encode(o, tokenizer, text, length, err);
    tn_tokenizer_free(tokenizer);
    free(text);
    return status;
}

static const option_spec own_options[] = {
    {OPT_DECODE, "decode", "IDS", 0, OPTION_OPTIONAL, 0, 0, "turn ids into text; they stand here or in place of TEXT"},
    {OPT_NO_SPECIAL, "no-special", NULL, 0, OPTION_FLAG, 0, 0, "add no special tokens; with --decode: leave them out"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "with --decode: the text as a JSON string"},
};

const command command_tokenize = {
    .name = "tokenize",
    .arguments = "MODEL [TEXT|-] [--decode] [--no-special] [--json]",
    .summary = "Prints the token ids of a text as a JSON list, or the text of token ids. Needs only a tokenizer.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 2,
    .missing = "no model given",
    .notes =
        "Without TEXT, and with -, standard input is read. Ids are written as 1,2,3, as \"1 2 3\" or as a JSON list.\n"
        "MODEL is a folder that holds tokenizer.json, tokenizer.json.gz or tokenizer.model, or that file itself, or a\n"
        ".gguf.",
    .example = "  tenon tokenize models/demo \"And it came to pass\"\n"
               "  tenon tokenize models/demo --decode 296,354,473,290,619",
    .run = run_tokenize,
};
