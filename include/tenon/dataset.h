/* Tenon: training data: files with records of any of the usual formats, as tokens and labels. tenon.h has the rules.
 *
 * A file is a list of JSON (.json), has an object of JSON in each line (.jsonl), or is one text (.txt, .md). Keys tell
 * the format of each record; what is null or not named here has no effect:
 *  - input_ids, labels: tokens already; labels as transformers has them, all of the ids where there are none.
 *  - messages: [{"role", "content"}], content a text or parts; tool_calls; tools and system beside them.
 *  - conversations: [{"from", "value"}], of human, gpt, system, observation, function_call.
 *  - prompt, completion: two texts, of which the second is learnt, or two lists of messages.
 *  - instruction, output, and input, system, history [[user, assistant], ...].
 *  - text: all of it is learnt.
 *
 * Conversations are written by the model's own chat template (ChatML where it has none, always as on 26 July 2024), and
 * become a sample for each answer: what comes before it with the answer, of which the answer and its end are labelled.
 * What is special to the tokenizer is none in a message: a zero-width space goes behind its first character. Texts, and
 * a completion, end with the tokenizer's token for that. */
#ifndef TENON_DATASET_H
#define TENON_DATASET_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A label that does not count. */
#define TN_NO_LABEL (-100)

typedef struct tn_dataset tn_dataset;

typedef struct tn_dataset_options {
    uint32_t size;
    int64_t max_length; /* of a sample, which is cut at its end (a file that is one text goes on in others); 0: 2048 */
    bool one_sample;    /* a conversation is one, in which every answer is labelled                */
    bool last_turn;     /* with one_sample: its last answer alone                                  */
    bool train_on_prompt; /* labels are the ids                                                      */
    bool skip_bad;        /* records that are wrong are left out and counted                         */
    const char *join;     /* between an instruction and its input; NULL: nothing                     */
} tn_dataset_options;

/* Its arrays live as long as the dataset. */
typedef struct tn_sample {
    uint32_t size;
    const int32_t *ids;
    const int32_t *labels; /* at t what the token before is to predict, or TN_NO_LABEL              */
    int64_t length;
} tn_sample;

typedef struct tn_dataset_info {
    uint32_t size;
    int64_t samples, tokens;
    int64_t labels;  /* that count: those at a sample's first place do not                          */
    int64_t cut;     /* samples that were longer                                                    */
    int64_t dropped; /* samples, beside others of their record, without a label that counts: they are not there */
    int64_t skipped; /* records that were wrong                                                     */
} tn_dataset_info;

/* Reads all of the files, in their order, with the tokenizer and template of the model's folder. Nothing of the model
 * itself is read, and it may be closed before the dataset. options may be NULL. TN_E_INPUT, where "FILE:LINE": a record
 * is no JSON, lacks a key, is too large or is refused by the template, has a token that the model has not, or leaves no
 * label; and there is no sample. What a file takes in memory are 8 bytes for each token of a sample, and 8 for each
 * sample; a conversation has one for each answer unless one_sample is set. Owned: tn_dataset_close. [any thread] */
TN_API tn_dataset *tn_dataset_open(const tn_model *model, const char *const *paths, int64_t count,
                                   const tn_dataset_options *options, tn_error *err);
TN_API void tn_dataset_close(tn_dataset *dataset); /* [one thread] */

TN_API int64_t tn_dataset_count(const tn_dataset *dataset);                             /* of samples. [any thread] */
TN_API tn_status tn_dataset_get_info(const tn_dataset *dataset, tn_dataset_info *info); /* [any thread] */

/* Samples are in the order of the files. TN_E_USAGE: there is none of that number. [any thread] */
TN_API tn_status tn_dataset_sample(const tn_dataset *dataset, int64_t index, tn_sample *sample, tn_error *err);

/* 64 hexadecimal digits that are others where a sample is: what a run that goes on compares. It lives as long as the
 * dataset. [any thread] */
TN_API const char *tn_dataset_digest(const tn_dataset *dataset);

/* The numbers from 0 to count - 1 in an order that seed and epoch tell, the same on every machine. [any thread] */
TN_API void tn_dataset_order(int64_t count, uint64_t seed, int64_t epoch, int64_t *order);

/* Packs samples into rows of at most so many tokens, 0: max_length: the longest first, each where the least is left
 * (best fit decreasing). samples, of tn_dataset_count, receives them row after row: those of row r are
 * samples[first[r]] to samples[first[r + 1] - 1]; first has one place more than there are samples. Rows are in the
 * order of their first samples. Each sample of a row is a text of its own in tn_train_texts, and none sees another.
 * Returns how many rows there are; -1: an error. TN_E_USAGE: a sample is longer. [any thread] */
TN_API int64_t tn_dataset_pack(const tn_dataset *dataset, int64_t length, int64_t *samples, int64_t *first,
                               tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
