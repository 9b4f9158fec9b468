/* Generated tokens on their way to text: stop texts, what a terminal must not get, and how tokens are drawn. Of run and
 * chat. */
#ifndef TENON_ANSWER_H
#define TENON_ANSWER_H

#include "cli.h"

typedef struct answer {
    tn_stream *stream;   /* NULL: ids are printed                                              */
    tn_stop_text *stops; /* NULL: none                                                         */
    bool print, keep;    /* to stdout as it comes; in text                                     */
    bool clean;          /* stdout is a terminal                                               */
    bool stopped;        /* by a stop text                                                     */
    char *text;          /* what is kept; owned                                                */
    size_t length, capacity;
    char last; /* character printed; 0: none                                         */
    tn_status failed;
    tn_error *err;
} answer;

/* Takes the stop texts of the options; tokenizer NULL: ids are printed. answer_close is due also after a failure. */
tn_status answer_open(answer *a, const options *o, const tn_tokenizer *tokenizer, tn_error *err);
void answer_close(answer *a);

/* Before each answer: forgets what was kept. */
void answer_begin(answer *a);

/* A token. false: enough, because of a stop text or an error (a->failed). */
bool answer_token(answer *a, int64_t id);

/* What is left when no more tokens come. */
tn_status answer_end(answer *a);

/* How tokens are drawn and at which texts they end: the options, and generation_config.json for those not given. Lines
 * on stderr tell what the file brought in. */
tn_status answer_sampling(answer *a, const options *o, const tn_model *model, tn_generate_options *g, tn_error *err);

/* {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"} */
json_t *json_sampling(const tn_generate_options *g);

/* The options that answer_open and answer_sampling look at. */
#define ANSWER_OPTIONS                                                                                                 \
    {OPT_TEMPERATURE, "temperature", "T", 0, OPTION_REAL, 0, 100, "0 always takes the likeliest token"},               \
        {OPT_TOP_K, "top-k", "K", 0, OPTION_INTEGER, 0, 1e9, "draw from the K likeliest tokens; 0: from all"},         \
        {OPT_TOP_P, "top-p", "P", 0, OPTION_REAL, 0, 1, "draw from the likeliest tokens that hold this probability"},  \
        {OPT_MIN_P, "min-p", "P", 0, OPTION_REAL, 0, 1, "and only if at least P times as likely as the likeliest"},    \
        {OPT_REPETITION_PENALTY,                                                                                       \
         "repetition-penalty",                                                                                         \
         "R",                                                                                                          \
         0,                                                                                                            \
         OPTION_REAL,                                                                                                  \
         0.01,                                                                                                         \
         100,                                                                                                          \
         "above 1: tokens that came before are less likely"},                                                          \
        {OPT_SEED, "seed", "S", 0, OPTION_INTEGER, 0, 4294967295.0, "the same seed draws the same tokens"},            \
        {OPT_STOP, "stop", "TEXT", 0, OPTION_TEXT, 0, 0, "end before this text; may be repeated"},                     \
        {OPT_IGNORE_EOS, "ignore-eos", NULL, 0, OPTION_FLAG, 0, 0, "go on after an end-of-text token"},                \
    {                                                                                                                  \
        OPT_SPECULATE, "speculate", "N", 0, OPTION_OPTIONAL, 1, 64,                                                    \
            "try up to N tokens at a time that the text said before (8); the same text, sooner"                        \
    }

#endif
