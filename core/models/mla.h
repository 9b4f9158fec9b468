/* Inside core: multi-head latent attention. Keys and values of all heads are products of one short vector per token,
 * the latent, and of a key part that all heads share and that alone is rotated: only these two are cached. Queries are
 * brought into the latents' space instead (absorbed), so that attention is that of one head of keys, whose first
 * elements are its values. */
#ifndef TENON_CORE_MLA_H
#define TENON_CORE_MLA_H

#include "models/decoder.h"

/* A light attention beside it that chooses the keys which take part: its queries are made of the latent of queries, its
 * keys of the layer's input. */
typedef struct mla_indexer {
    const char *class_name;
    int64_t heads, dim, top_k;
    int rope;     /* which of the model's rotations                                               */
    bool borrows; /* the keys that the layer before chose                                         */
} mla_indexer;

/* Sizes before mla_read are the class's defaults. */
typedef struct mla_spec {
    int64_t q_rank, kv_rank;    /* q_lora_rank (0, where the file has null: queries have no latent), kv_lora_rank */
    int64_t nope, rope, v;      /* qk_nope_head_dim, qk_rope_head_dim, v_head_dim                              */
    const rope_params *no_rope; /* rope_config_spec.absent                                                     */
    bool complex_rope;          /* rotated by complex products in f32                                          */
    bool partial_head;          /* partial_rotary_factor is a share of the whole head                          */
    bool scale_q;               /* queries times graph_run.q_scale                                             */
    bool unrotated;             /* qk_rope_head_dim is the size of a part that all heads share, without rotation   */
    mla_indexer indexer;        /* heads 0: none                                                               */
    /* Made by mla_read. */
    const char *class_name;
    parts_norm_kind norm;
    int64_t hidden, heads;
    double scale;
    bool bias;
} mla_spec;

/* Reads it after decoder_read, and makes it what mixes the layers of the decoder, whose rotation it sets, too. spec
 * must live as long as the decoder is built. Errors stick in config. */
void mla_read(const config_reader *config, decoder_spec *decoder, mla_spec *spec);

/* The same with an indexer in every layer, of so many heads unless the file says otherwise, whose rotation is by pairs
 * or by halves. */
void mla_read_indexed(const config_reader *config, decoder_spec *decoder, mla_spec *spec, int64_t heads, bool pairs);

extern const mixer_kind mla_mixer;

#endif
