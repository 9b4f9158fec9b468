/* A request for text while it is answered: its prompts, and the sequences (choices) that become its answer. */
#ifndef TENON_SERVE_REPLY_H
#define TENON_SERVE_REPLY_H

#include "choice.h"
#include "sampling.h"

#include <stdatomic.h>

typedef struct reply_prompt {
    int64_t *ids; /* owned                                                                       */
    size_t count;
    char *text; /* as the client wrote it, or as the template rendered it; owned; NULL: it came as ids */
    size_t length;
    tn_media *media; /* what tokens of it stand for; owned; NULL: for themselves                       */
} reply_prompt;

void reply_prompt_close(reply_prompt *p);

enum { REPLY_HERE, REPLY_GONE, REPLY_LATE };

struct reply {
    api *api;
    exchange *x;
    bool chat, stream, include_usage;
    bool echo; /* completions: the prompt is part of the text                                    */
    char id[40];
    int64_t created;
    double begun; /* by the monotonic clock                                                     */
    json_t *body; /* the request; owned: sampling's texts are its                                  */
    sampling sampling;
    uint64_t salt; /* of the prefix cache                                                         */
    reply_prompt *prompts;
    size_t prompt_count;
    tn_grammar *grammar; /* NULL: the answer may be anything                                   */
    bool forced;         /* what the grammar allows is a call of a tool                         */
    char *forced_tool;   /* the one that was named, of which only arguments are generated; NULL: any */
    bool short_ids;      /* calls have ids of nine letters and digits                           */
    choice *choices;     /* [prompt_count * sampling.choices]                                   */
    size_t choice_count, ended;
    atomic_int client; /* REPLY_...: what became of the client                               */
    int failed;        /* the status of the first error; 0: none                                  */
    char failure[256];
    struct reply *next; /* the worker's                                                      */
};

/* NULL: no memory. body is taken, also then. */
reply *reply_new(api *a, exchange *x, bool chat, json_t *body);
void reply_free(reply *g);

/* Prompts are there, and sampling: makes the choices. reasoning: thinking is told apart; tools NULL: calls are none. */
bool reply_prepare(reply *g, const json_t *tools, bool one_call, bool reasoning, request_error *e);

/* Notes the first error. */
void reply_fail(reply *g, int status, const char *message);

/* Gives it to the worker, who answers and frees it. A stream begins here. */
void reply_start(reply *g);

/* All choices have ended: sends what is left of the answer, which ends the exchange. */
void reply_finish(reply *g);

double reply_clock(void); /* seconds of the monotonic clock                                   */

#endif
