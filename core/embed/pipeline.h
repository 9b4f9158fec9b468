/* Inside core/embed: what comes behind a model to make a text's vector, as the files of sentence-transformers say. */
#ifndef TENON_CORE_PIPELINE_H
#define TENON_CORE_PIPELINE_H

#include "checkpoint/checkpoint.h"

typedef enum pipeline_act {
    PIPELINE_IDENTITY,
    PIPELINE_TANH,
    PIPELINE_RELU,
    PIPELINE_GELU,
    PIPELINE_SILU,
    PIPELINE_SIGMOID
} pipeline_act;

/* A step behind pooling: act(weight x + bias), or x over its length. */
typedef struct pipeline_step {
    bool normalise;
    int64_t in, out;
    float *weight, *bias; /* [out,in], [out] or NULL                                            */
    pipeline_act act;
} pipeline_step;

enum { PIPELINE_STEPS = 32 };

typedef struct pipeline {
    uint32_t pooling; /* tn_pooling                                                                */
    bool include_prompt;
    pipeline_step step[PIPELINE_STEPS];
    int32_t step_count;
    int64_t hidden;        /* of a token's vector                                                     */
    int64_t width;         /* of what comes out                                                       */
    int64_t widest;        /* of all steps                                                            */
    int64_t max_tokens;    /* 0: the files say nothing                                                */
    config_file *settings; /* config_sentence_transformers.json, or NULL                          */
    const char **prompts;  /* names, in the file's order                                           */
    size_t prompt_count;
    const char *default_prompt;
} pipeline;

/* Of the checkpoint in folder, whose tokens have vectors of hidden numbers. pooling not 0: that and the norm, whatever
 * the files say. Closed also after an error: pipeline_close. */
tn_status pipeline_open(pipeline *p, const char *folder, int64_t hidden, uint32_t pooling, tn_error *err);
void pipeline_close(pipeline *p);

/* The text of a prompt; NULL: there is none of that name. */
const char *pipeline_prompt(const pipeline *p, const char *name, tn_error *err);

/* What pooling gives times the number of its kinds. */
int64_t pipeline_pooled(const pipeline *p);

/* states [tokens, hidden] to the vector out [width]; tokens from first on are pooled. work: [2, widest]. */
void pipeline_run(const pipeline *p, const float *states, int64_t tokens, int64_t first, float *work, float *out);

#endif
