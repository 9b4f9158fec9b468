/* One sequence of a request: from the tokens that the engine draws to the text and the events of its answer. */
#ifndef TENON_SERVE_CHOICE_H
#define TENON_SERVE_CHOICE_H

#include "likelihood.h"
#include "request.h"

typedef struct reply reply;

/* A call of a tool. */
typedef struct choice_call {
    char id[32];
    grown name, arguments;
} choice_call;

/* A token generated, and how often. */
typedef struct choice_seen {
    int64_t id, count;
} choice_seen;

/* What is said of a token; it goes out once all of its text has. */
typedef struct choice_entry {
    json_t *json;
    size_t end; /* of its text, counted from the beginning                                         */
    bool open;  /* the next token goes on with its last character                                   */
} choice_entry;

typedef enum choice_ending { CHOICE_RUNS, CHOICE_STOPPED, CHOICE_CUT, CHOICE_FAILED } choice_ending;

typedef struct choice {
    reply *of;
    size_t index;   /* in the answer                                                              */
    size_t prompt;  /* whose it is                                                                */
    int64_t number; /* among those of its prompt                                                  */
    uint64_t engine_id;
    bool added; /* the engine has it                                                           */
    bool ended; /* the engine has let go of it                                                 */
    choice_ending ending;

    /* Text: tokens become characters, what ends it is looked for, and then it is told what it is. */
    tn_stream *stream;
    tn_stop_text *stops; /* NULL: none                                                           */
    splitter *splitter;  /* NULL: all is content                                                 */
    grown content, reasoning, forced;
    choice_call *calls;
    size_t call_count;
    size_t told;   /* bytes of text that came out of the stream                                     */
    size_t kept;   /* of these, those that stand before every stop                                   */
    bool met_stop; /* a text that ends it was found                                                 */
    bool thinking; /* what came last was thinking                                                  */

    /* Log-probabilities. */
    bool likely; /* they are wanted                                                              */
    likelihood likelihood;
    choice_entry *entries; /* that have not gone out                                               */
    size_t entry_count, entry_capacity;
    json_t *listed;        /* entries that have, of an answer that is no stream                       */
    size_t offset;         /* characters of the tokens that were listed: completions                   */
    unsigned char tail[8]; /* bytes of a character that is not whole                                 */
    size_t tail_length;

    /* Drawing. */
    tn_grammar_state *grammar; /* NULL: none                                                      */
    bool free_yet;             /* the grammar waits for the end of a thought                        */
    bool first;                /* nothing was generated yet                                         */
    char window[16];           /* the last bytes of text, where that is looked for                    */
    size_t window_length;
    choice_seen *seen; /* ascending                                                             */
    size_t seen_count, seen_capacity;

    /* Figures. */
    int64_t generated, reasoning_tokens, cached;
    double last_token; /* when it came; 0: none did                                             */
} choice;

/* Its reply, index, prompt and number are set. false: e says why. */
bool choice_open(choice *c, const splitter_options *splitting, request_error *e);
void choice_close(choice *c);

/* Callbacks of the engine's, with the choice as ctx. Is the first of them needed? */
bool choice_sees_logits(const choice *c);
int choice_on_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab);
int choice_on_token(void *ctx, int64_t row, int64_t id);
void choice_on_prompt_logits(void *ctx, int64_t position, const float *logits, int64_t vocab);
void choice_on_end(void *ctx, const tn_engine_result *result);

/* Ends it without the engine. */
void choice_abandon(choice *c);

/* ---- between its files ------------------------------------------------------------------------ */

/* What was drawn may have to be changed before: choice_logits.c. */
bool choice_count_token(choice *c, int64_t id); /* false: no memory                                  */

/* Text of a token on its way out: choice_text.c. special: of a special token. false: the choice failed, or its text has
 * come to its end. */
bool choice_text(choice *c, const char *text, size_t length, bool special);
void choice_split(choice *c, const split_event *event); /* what the splitter says of it                */
void choice_text_end(choice *c, bool cut);              /* no more comes                                           */
bool choice_echo(choice *c, const char *text, size_t length);

/* Entries of log-probabilities: choice_entries.c. shown: what the token showed; hidden: it never shows. */
bool choice_note(choice *c, int64_t id, const char *shown, size_t length);
/* Those whose text is out, as they stand in an answer. Owned; NULL: none (or no memory). all: nothing more comes. */
json_t *choice_take_entries(choice *c, bool all);

/* Notes that it cannot go on. Returns false. */
bool choice_fail(choice *c, int status, const char *message);

/* stop, length, tool_calls. */
const char *choice_finish_reason(const choice *c);

#endif
