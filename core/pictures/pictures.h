/* Inside core: pictures from files: decoding them in a child, and what a model's processor makes of them. */
#ifndef TENON_CORE_PICTURES_H
#define TENON_CORE_PICTURES_H

#include "checkpoint/checkpoint.h"
#include "device/decoding.h"

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* More is refused by what the file's head says, before anything is decoded. */
#define PICTURES_MAX_SIDE 32768
#define PICTURES_MAX_PIXELS (INT64_C(1) << 26)

/* Upright, red, green, blue: [height, width, 3]. Owned: pictures_release. */
typedef struct picture {
    int64_t height, width;
    uint8_t *rgb;
    bool keyed; /* pixels of this colour are transparent: processors make them white                     */
    uint8_t key[3];
} picture;
void pictures_release(picture *p);

/* picture.c: a PNG, JPEG or WebP file, in a child that can open no file and has some seconds, 2 GiB of memory and, with
 * libseccomp, no network. As Pillow's exif_transpose and convert("RGB") would, but for gray of 16 bits, which loses its
 * lower byte: alpha is dropped, gray repeated, CMYK as Adobe stores it. TN_E_INPUT with one line on what is wrong with
 * the file. */
tn_status pictures_decode(const char *path, picture *out, tn_error *err);

/* ---- in the child: what a format's reader fills, or says ---- */

typedef struct picture_job {
    decoding in;
    int64_t most; /* pixels that there is room for                                                     */
    /* Shared with the parent. */
    int64_t height, width;
    int32_t orientation; /* of EXIF, 1 to 8                                                             */
    bool keyed;          /* as in picture                                                               */
    uint8_t key[3];
    uint8_t rgb[]; /* 3 most                                                        */
} picture_job;

/* Is the size within bounds? Leaves it in the job, else says so. */
bool pictures_begin(picture_job *job, int64_t height, int64_t width);

/* picture.c: by the format that the file begins with; false: it is none that is known. */
bool pictures_read(picture_job *job);
void pictures_png(picture_job *job);
void pictures_jpeg(picture_job *job);
void pictures_webp(picture_job *job);

/* exif.c: the orientation that a block of EXIF ("II*\0" or "MM\0*" on) names; 1 where it names none. */
int32_t exif_orientation(const uint8_t *exif, size_t size);

/* The picture of [height, width] turned upright: to [height', width', 3], which for 5 to 8 are changed over. */
void exif_turn(const uint8_t *rgb, int64_t height, int64_t width, int32_t orientation, uint8_t *to);

/* ---- resize.c ---- */

typedef enum resize_filter {
    RESIZE_NEAREST = 0,
    RESIZE_LANCZOS = 1,
    RESIZE_BILINEAR = 2,
    RESIZE_BICUBIC = 3
} resize_filter;

/* With antialiasing, first along lines, then along columns, rounded in between, weights in 16 bits, as torchvision does
 * with bytes. Owned: pictures_release. TN_E_MEMORY. */
tn_status resize_picture(const picture *from, int64_t height, int64_t width, resize_filter filter, picture *to,
                         tn_error *err);

/* ---- processor.c ---- */

/* What a model takes: tensors as they go into tn_pictures. Owned: processor_release. */
typedef struct processed {
    int64_t count;
    float *pixels;
    int32_t ndim;
    int64_t shape[6];
    int64_t *grids;  /* [count, 3]; or NULL                                                             */
    int64_t *sizes;  /* [count, 2]; or NULL                                                             */
    int64_t *places; /* [count, patches, 2]: x, y of each patch, -1 of padding; or NULL                     */
    int64_t *parts;  /* [count]: of the pictures of pixels, how many are of each; or NULL: one         */
    int64_t *tiles;  /* [count, 2]: rows and columns of those of them that are parts of it; or NULL        */
    int64_t *tokens; /* [count]: rows of the text model that each becomes; or NULL: the model says so      */
} processed;
void processor_release(processed *p);

typedef struct processor processor;

/* Where pictures keep their ratio: their sides become whole numbers of so many pixels, whatever the file says. */
void processor_cut_at(processor *p, int64_t patch);

/* Reads folder/preprocessor_config.json. NULL with an error: none there, or of a kind that is not known. */
processor *processor_open(const char *folder, tn_error *err);
void processor_free(processor *p);

/* All of a call's pictures, whose transparent pixels become white. */
tn_status processor_run(const processor *p, picture *pictures, int64_t count, processed *out, tn_error *err);

#endif
