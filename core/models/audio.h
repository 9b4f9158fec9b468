/* Inside core: what towers that hear are made of. The frames of a clip are cut into chunks of 2 n_window; convolutions
 * shorten each chunk, sinusoids number its rows, and layers follow in which a row sees the others of its span. */
#ifndef TENON_CORE_AUDIO_H
#define TENON_CORE_AUDIO_H

#include "models/parts.h"
#include "models/tower.h"

/* What the modeling files differ in. */
typedef struct audio_classes {
    const char *encoder, *layer, *attention;
    bool k_bias;      /* of k_proj; the other projections have one                          */
    int64_t n_window; /* config's default                                                   */
} audio_classes;

typedef struct audio_layer {
    graph_site *norm, *q, *k, *v, *o, *attention, *mlp_norm, *fc1, *fc2;
} audio_layer;

/* The encoder without its convolutions and its projection. */
typedef struct audio_encoder {
    int64_t mel, width, heads, out; /* num_mel_bins, d_model, encoder_attention_heads, output_dim  */
    int64_t inter, n_window, positions;
    tn_act act;
    int64_t layers;
    audio_layer *layer;
    graph_module *module;
    graph_site *ln_post;
    tn_site *gelu, *fc_act, *copy, *limit; /* limit: in f16, else NULL                             */
} audio_encoder;

/* Reads what the modeling files have in common. Errors stick in config. */
void audio_read(const config_reader *config, const audio_classes *classes, int64_t text_hidden, audio_encoder *e);

/* The module called name with layers and ln_post. */
void audio_build(graph_builder *b, graph_module *parent, const char *name, const audio_classes *classes,
                 audio_encoder *e);
void audio_free(audio_encoder *e);

/* Are there 1 .. frames frames of every clip, and the mel bins that the tower has? */
bool audio_check(const audio_encoder *e, const tower_media *media, tn_error *err);

/* A chunk of a clip. */
typedef struct audio_chunk {
    int64_t clip, begin, frames;
} audio_chunk;

/* The next chunk of a call: begins with frames 0; false behind the last. */
bool audio_next(const audio_encoder *e, const tower_media *media, audio_chunk *chunk);

/* Frames of the longest chunk. */
int64_t audio_longest(const audio_encoder *e, const tower_media *media);

/* The features of a chunk as a plane of height rows for each of mel / height channels: [channels, height, frames]. */
tn_tensor audio_plane(const audio_encoder *e, const tower_media *media, const audio_chunk *chunk, int64_t height);

/* A convolution over planes, padded with zeros and followed by GELU: LINEAR over unfolded columns. */
typedef struct audio_conv {
    graph_site *site;
    int64_t in, out;                      /* channels                                              */
    int64_t kernel[2], stride[2], pad[2]; /* along height and width                               */
} audio_conv;

/* The module called name; conv has everything but its site. A kernel of height 1 is a Conv1d. */
void audio_conv_build(graph_builder *b, graph_module *parent, const char *name, audio_conv *conv);

/* Places of the output along height (0) or width (1), where the input has that many. */
int64_t audio_conv_size(const audio_conv *conv, int axis, int64_t size);

/* x [in, height, w], strided, with zeros behind it up to width; gives [out, height', width'], strided. */
tn_tensor audio_conv_forward(graph_run *r, const audio_encoder *e, const audio_conv *conv, const tn_tensor *x,
                             int64_t width);

/* The first rows of the table of sinusoids, [rows, width]. */
tn_tensor audio_positions(graph_run *r, const audio_encoder *e, int64_t rows);

/* All layers on h [rows, width], in place. The rows are spans of so many rows each, one behind the other. */
void audio_layers(graph_run *r, const audio_encoder *e, const tn_tensor *h, const int64_t *span, int64_t spans);

/* Rows of x through head, a piece at a time: [rows, out]. */
tn_tensor audio_head(graph_run *r, const audio_encoder *e, const void *state, const tn_tensor *x,
                     tn_tensor (*head)(graph_run *r, const void *state, const tn_tensor *x));

#endif
