/* What an engine is: for the files of this folder alone. */
#ifndef TENON_CORE_ENGINE_STATE_H
#define TENON_CORE_ENGINE_STATE_H

#include "engine/compute.h"
#include "engine/sequence.h"

/* Texts of ended sequences, for those that begin alike; fewer where models have so many layers that all texts would
 * come near what the system maps for a process, some 65,000 pieces: six for each layer of a text. */
enum { ENGINE_KEPT = 256, ENGINE_PIECES = 49152, ENGINE_LAYER_PIECES = 6 };

/* Prompts of models whose layers keep states are cut at multiples of this, so that a state behind so many tokens is
 * always the same. */
enum { ENGINE_GRID = 512 };

struct tn_engine {
    tn_model *model;
    held_maker maker;
    sequence_limits limits;
    tn_model_info model_info;
    int64_t sequences, budget;
    size_t cache_bytes;
    bool has_states, replays; /* the model's layers keep states; what was generated goes in again one by one     */
    held_text sample;         /* whose cache is never used: for sizes                                               */
    compute compute;
    sequence **waiting; /* in order; owned                                                                 */
    int64_t waiting_count, waiting_capacity;
    sequence **running; /* [sequences], the oldest first; owned                                            */
    int64_t running_count;
    held_text *kept[ENGINE_KEPT];
    int64_t kept_count, most_kept;
    compute_part *part; /* [sequences] of this step                                                      */
    sequence **of_part; /* [sequences]                                                                  */
    int64_t part_count;
    uint64_t next_id;
    tn_engine_info info;
};

/* admit.c: lets waiting sequences in, as far as there are places and memory. */
void admit_sequences(tn_engine *e);

/* admit.c: memory for a running sequence with so many tokens; others may lose theirs: kept texts, then the youngest
 * sequences, which wait again. false: it was the sequence itself that gave way, or ended. */
bool admit_room(tn_engine *e, sequence *s, int64_t tokens);

/* admit.c: a running sequence has ended: its place is free, and its text is kept. It is freed. */
void admit_leave(tn_engine *e, int64_t running);

/* admit.c: bytes of all texts. */
size_t admit_held(const tn_engine *e);

#endif
