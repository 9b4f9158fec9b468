/* What a model's processor makes of pictures and sounds, out of a .safetensors file. */
#ifndef TENON_CLI_LOGITS_MEDIA_H
#define TENON_CLI_LOGITS_MEDIA_H

#include <tenon/tenon.h>

typedef struct logits_media {
    tn_pictures images, videos;
    tn_sounds sounds;
    bool has_images, has_videos, has_sounds;
    int64_t *types; /* [rows, tokens]; NULL: not given                                                     */
    float *axes;    /* [3, rows, tokens]; NULL: not given                                                  */
    void *kept[16];
    int kept_count;
} logits_media;

/* All there is, under the names of transformers' processors. Owned: logits_media_free, after an error too. */
tn_status logits_media_read(const tn_safetensors *file, const char *path, int64_t rows, int64_t tokens,
                            logits_media *media, tn_error *err);
void logits_media_free(logits_media *media);

/* Gives the batch what was read, as long as media is there. */
void logits_media_give(const logits_media *media, tn_batch *batch);

#endif
