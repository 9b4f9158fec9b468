/* Tenon: pictures from files. tenon.h has the rules. */
#ifndef TENON_MEDIA_H
#define TENON_MEDIA_H

#include <tenon/session.h>
#include <tenon/text.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_media tn_media;

/* Pictures (PNG, JPEG, WebP) as the processor of the model's folder makes them (preprocessor_config.json): upright by
 * EXIF, without alpha, resized, cut and normalised. files: 1 to 4096 names. Each is decoded in a child process that can
 * open no file (docs/media.md), within 30 s, at most 2^26 pixels. TN_E_INPUT: a file that is none of these, is broken
 * or too large, or a processor that is not known. Owned: tn_media_free; the model must live as long. [any thread] */
TN_API tn_media *tn_media_images(const tn_model *model, const char *const *files, int64_t count, tn_error *err);
TN_API void tn_media_free(tn_media *media); /* [any thread] */

/* What tn_batch.images takes; borrowed, as long as media lives. [any thread] */
TN_API const tn_pictures *tn_media_pictures(const tn_media *media);

/* The text of a prompt, in which the model's template has left one mark for each picture, with what the model's
 * processor writes there: the picture's token once for each of its rows, in some models marks around them or behind
 * each line. Encode it without further special tokens. TN_E_INPUT: there are more or fewer marks than pictures. *out is
 * owned: free(); it ends in NUL, which out_length does not count. [any thread] */
TN_API tn_status tn_media_expand(const tn_media *media, const tn_tokenizer *tokenizer, const char *text, size_t length,
                                 char **out, size_t *out_length, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
