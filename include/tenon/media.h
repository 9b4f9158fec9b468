/* Tenon: pictures from files. tenon.h has the rules. */
#ifndef TENON_MEDIA_H
#define TENON_MEDIA_H

#include <tenon/session.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_media tn_media;

/* Pictures (PNG, JPEG, WebP) as the processor of the model's folder makes them (preprocessor_config.json): upright by
 * EXIF, without alpha, resized, cut and normalised. Each file is decoded in a child process that may do nothing else,
 * within 30 s, at most 2^26 pixels. TN_E_INPUT: a file that is none of these, is broken or too large, or a processor
 * that is not known. Owned: tn_media_free. [any thread] */
TN_API tn_media *tn_media_images(const tn_model *model, const char *const *files, int64_t count, tn_error *err);
TN_API void tn_media_free(tn_media *media); /* [any thread] */

/* What tn_batch.images takes; borrowed, as long as media lives. [any thread] */
TN_API const tn_pictures *tn_media_pictures(const tn_media *media);

/* The ids of a prompt in which one token stands for each picture, in their order, with as many in its place as the
 * picture has rows. TN_E_INPUT: there are more or fewer such tokens than pictures. TN_DECLINED: in prompts of this
 * model other marks stand between a picture's rows. *out owned: free(). [any thread] */
TN_API tn_status tn_media_expand(const tn_media *media, const tn_model *model, const int64_t *ids, size_t count,
                                 int64_t **out, size_t *out_count, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
