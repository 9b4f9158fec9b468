/* What the files of right values share. */
#ifndef TEST_API_VALUES_H
#define TEST_API_VALUES_H

#include "api.h"

#include <tenon/tenon.h>

#define VALUES_LLAMA "tests/data/models/llama"

enum { VALUES_WORDS = 64 }; /* room for a text                                                        */

/* What is opened once. */
typedef struct values_opened {
    char *photo, *sound;
    tn_model *seeing, *hearing;
    tn_media *media; /* of seeing */
    char *root, *folder, *plugins, *plugin, *config_file, *written, *state, *prefix;
    tn_config *config;
    tn_model *model, *running; /* with a kernel applied; with a session */
    tn_session *session;
    tn_model *following;  /* rank 1 of two, whose rank 0 has nothing to do                          */
    tn_session *followed; /* its                                                                   */
    tn_model *served;     /* with an engine                                                            */
    tn_trainer *trainer;  /* of served, with gradients                                             */
    tn_model *adapted;    /* with an adapter                                                           */
    tn_trainer *adapting; /* of adapted                                                                */
    tn_dataset *dataset;  /* of tokens                                                             */
    tn_engine *engine;
    tn_tokenizer *tokenizer;
    tn_stream *stream;
    tn_stop_text *stops;
    tn_vocabulary *vocabulary;
    tn_grammar *grammar;
    tn_grammar_state *grammar_state;
    tn_embedder *embedder;
    tn_bound *bound; /* of model                                                                  */
    tn_template *chat_template;
    tn_safetensors *file;
} values_opened;
extern values_opened values_world; /* values_world.c */

/* A row of a table is for this parameter; NULL: for any. */
bool values_fit(const char *function, const char *name, const api_function *f, const api_param *p);

/* values_pointers.c: what a pointer points to, which goes with the process that makes the call; false: not known. */
bool values_pointer(const api_function *f, const api_param *p, void **out);
void *values_copied(const void *data, size_t size);

#endif
