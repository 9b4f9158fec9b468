/* A request for text while it is answered: its prompts, and the sequences (choices) that become its answer. */
#ifndef TENON_SERVE_GENERATION_H
#define TENON_SERVE_GENERATION_H

#include "choice.h"
#include "sampling.h"

#include <stdatomic.h>

typedef struct generation_prompt {
    int64_t *ids; /* owned                                                                       */
    size_t count;
    char *text; /* as the client wrote it, or as the template rendered it; owned; NULL: it came as ids */
    size_t length;
} generation_prompt;

enum { GENERATION_HERE, GENERATION_GONE, GENERATION_LATE };

struct generation {
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
    generation_prompt *prompts;
    size_t prompt_count;
    tn_grammar *grammar; /* NULL: the answer may be anything                                   */
    bool forced;         /* what the grammar allows is a call of a tool                         */
    char *forced_tool;   /* the one that was named, of which only arguments are generated; NULL: any */
    bool short_ids;      /* calls have ids of nine letters and digits                           */
    choice *choices;     /* [prompt_count * sampling.choices]                                   */
    size_t choice_count, ended;
    atomic_int client; /* GENERATION_...: what became of the client                               */
    int failed;        /* the status of the first error; 0: none                                  */
    char failure[256];
    struct generation *next; /* the worker's                                                      */
};

/* NULL: no memory. body is taken, also then. */
generation *generation_new(api *a, exchange *x, bool chat, json_t *body);
void generation_free(generation *g);

/* Prompts are there, and sampling: makes the choices. reasoning: thinking is told apart; tools NULL: calls are none. */
bool generation_prepare(generation *g, const json_t *tools, bool one_call, bool reasoning, request_error *e);

/* Notes the first error. */
void generation_fail(generation *g, int status, const char *message);

/* Gives it to the worker, who answers and frees it. A stream begins here. */
void generation_start(generation *g);

/* All choices have ended: sends what is left of the answer, which ends the exchange. */
void generation_finish(generation *g);

double generation_clock(void); /* seconds of the monotonic clock                                   */

#endif
