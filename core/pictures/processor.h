/* Inside core/pictures: what kinds of processors share. */
#ifndef TENON_CORE_PROCESSOR_H
#define TENON_CORE_PROCESSOR_H

#include "checkpoint/canvas.h"
#include "pictures/pictures.h"

/* preprocessor_config.json, as far as pictures go. */
struct processor {
    const struct processor_kind *kind;
    resize_filter filter;
    float level[3][256];       /* what each byte of a channel becomes; with .bf16 computed in that            */
    int64_t size[2], crop[2];  /* height, width; crop: of the middle                                      */
    int64_t shortest, longest; /* edges, or of Qwen's kind all pixels; 0: none                            */
    int64_t patch, merge, frames;
    canvas_list canvases;
    int64_t least_tiles, most_tiles, least_crop;
    bool tiles, thumbnail, bf16;
    bool largest; /* pictures are made as large as the most tiles let them                                    */
    double least_ratio;
};

/* A call. */
typedef struct processor_job {
    const processor *p;
    picture *pictures;
    int64_t count;
    processed *out;
    tn_error *err;
} processor_job;

/* The mean and standard deviation where the file has none: CLIP's; 0.5 both; 0 and 1, by which nothing is normalised
 * unless the file says so. */
typedef enum processor_levels { LEVELS_CLIP, LEVELS_HALF, LEVELS_PLAIN } processor_levels;

typedef struct processor_kind {
    const char *name; /* image_processor_type without "Fast" or "Pil"                                     */
    resize_filter filter;
    processor_levels levels;
    void (*read)(const config_reader *c, processor *p);
    tn_status (*run)(processor_job *j);
} processor_kind;

/* "size" under either of its forms; a number is both sides, or the shortest edge. */
void processor_size(const config_reader *c, const char *key, int64_t out[2], int64_t *shortest, int64_t *longest);

/* Refuses a size under key that has no pixels, or more than most by side. */
void processor_need_size(const config_reader *c, const char *key, const int64_t size[2], int64_t most);

/* Room for a result of that shape. */
tn_status processor_room(processor_job *j, int32_t ndim, const int64_t *shape);

/* The levels of a part of a picture, as planes [3, height, width] whose lines are `line` and whose planes are
 * `plane` apart. */
void processor_planes(const processor *p, const picture *from, int64_t top, int64_t left, int64_t height, int64_t width,
                      float *to, int64_t line, int64_t plane);

/* processor_qwen.c, processor_whole.c, processor_tiles.c, processor_gemma4.c */
extern const processor_kind processor_qwen, processor_glm, processor_clip, processor_siglip, processor_pixtral,
    processor_llava_next, processor_internvl, processor_gemma3, processor_gemma4, processor_llama4;

#endif
