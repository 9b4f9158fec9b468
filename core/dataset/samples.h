/* Inside core: samples, one behind the other in memory. */
#ifndef TENON_CORE_SAMPLES_H
#define TENON_CORE_SAMPLES_H

#include <tenon/dataset.h>

typedef struct samples {
    int32_t *ids, *labels;
    size_t *ends; /* of each: where the next one begins                                            */
    size_t tokens, count;
    size_t ids_room, labels_room, ends_room;
    int64_t cut, dropped, labelled; /* as tn_dataset_info has them                                  */
} samples;

/* Adds one of count tokens, cut to most. labels NULL: the ids. One without a label that counts is dropped. */
tn_status samples_add(samples *s, const int64_t *ids, const int64_t *labels, size_t count, size_t most, tn_error *err);

/* Adds all of another. */
tn_status samples_join(samples *s, const samples *other, tn_error *err);

void samples_clear(samples *s); /* keeps its memory                                                */
void samples_free(samples *s);

#endif
