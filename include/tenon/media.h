/* Tenon: pictures and sounds from files. tenon.h has the rules. */
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

/* Pictures, and sounds (WAV, FLAC, OGG, MP3) as the extractor of the same file makes them: the mean of all channels at
 * its rate, cut where the model's processor cuts (tn_notice_get says so), and their log-mel features. images, sounds: 0
 * to 4096 names each, NULL where there are none, and at least one in all. Sounds are decoded as pictures are; at most
 * 1800 s, 64 channels and 1000 to 384000 samples in a second. TN_E_INPUT as above, or the model does not see or does
 * not hear. Owned: tn_media_free; the model must live as long. [any thread] */
TN_API tn_media *tn_media_files(const tn_model *model, const char *const *images, int64_t image_count,
                                const char *const *sounds, int64_t sound_count, tn_error *err);
TN_API void tn_media_free(tn_media *media); /* [any thread] */

/* What tn_batch.images and .sounds take, NULL: there are none; borrowed, as long as media lives. [any thread] */
TN_API const tn_pictures *tn_media_pictures(const tn_media *media);
TN_API const tn_sounds *tn_media_sounds(const tn_media *media);

/* The text of a prompt, in which the model's template has left one mark for each picture and each sound, with what the
 * model's processor writes there: the token once for each of its rows, in some models marks around those of a picture
 * or behind each line. Models whose prompt sees itself (PaliGemma) need no marks: pictures stand in front, then the
 * token of a beginning, the text and the end of a line. Encode it without further special tokens. TN_E_INPUT: there are
 * more or fewer marks than pictures or sounds, or one is too short to make a row. *out is owned: free(); it ends in
 * NUL, which out_length does not count. [any thread] */
TN_API tn_status tn_media_expand(const tn_media *media, const tn_tokenizer *tokenizer, const char *text, size_t length,
                                 char **out, size_t *out_length, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
