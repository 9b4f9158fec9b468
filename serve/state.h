/* What all parts of the API share. It does not change once the API is there, but for what has a lock of its own. */
#ifndef TENON_SERVE_STATE_H
#define TENON_SERVE_STATE_H

#include "api.h"
#include "metrics.h"
#include "splitter.h"

typedef struct worker worker;

struct api {
    tn_model *model;
    tn_model_info info;
    tn_sampling usual; /* generation_config.json                                                    */
    tn_tokenizer *tokenizer;
    tn_template *chat_template;      /* NULL: the model has none                                     */
    const char *template_text;       /* of it; or NULL                                               */
    const splitter_family *family;   /* static                                                     */
    tn_vocabulary *vocabulary;       /* NULL: its tokens stand for nothing by themselves             */
    unsigned char *special;          /* [info.vocab]: is it a special token?                         */
    int64_t think_open, think_close; /* <think> and </think> where each is one token; else -1         */
    tn_embedder *embedder;           /* NULL: embedder_error says why; the worker's                   */
    tn_embedder_info embedder_info;
    const char *embedder_prompt; /* what stands before each text                                  */
    int64_t *embedder_prompt_ids;
    size_t embedder_prompt_count;
    tn_error embedder_error;
    char *name;
    char **aliases;
    size_t alias_count;
    tn_error silent; /* why the model continues no text (its vectors are wanted); no code: it does      */
    int64_t context; /* positions of a sequence                                                   */
    int64_t created;
    char fingerprint[24];
    metrics metrics;
    worker *worker;
};

/* Is that the name of the model? NULL: nobody asked for one, which is fine. */
bool state_knows(const api *a, const char *name);

/* An id of that many random letters and digits behind prefix, into out. */
void state_id(char *out, size_t size, const char *prefix, size_t letters);

/* Does the token end a text? */
bool state_ends(const api *a, int64_t id);

#endif
