/* PNG, by libpng. */
#include "pictures/pictures.h"

#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

typedef struct png_input {
    picture_job *job;
    size_t at;
} png_input;

static void read_bytes(png_structp png, png_bytep to, size_t count)
{
    png_input *in = png_get_io_ptr(png);
    if (count > in->job->in.size - in->at)
        png_error(png, "the file ends in the middle of it");
    memcpy(to, in->job->in.file + in->at, count);
    in->at += count;
}

static void fail(png_structp png, png_const_charp message)
{
    png_input *in = png_get_error_ptr(png);
    decoding_fail(&in->job->in, "is no PNG that can be read: %s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void ignore(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

/* One colour that is transparent; a palette may have more, or such that are so in part, which is left out. */
static void read_key(png_structp png, png_infop info, picture_job *job)
{
    png_bytep alpha = NULL;
    png_color_16p color = NULL;
    png_colorp palette = NULL;
    int count = 0, entries = 0, clear = -1, depth = png_get_bit_depth(png, info);
    if (!png_get_tRNS(png, info, &alpha, &count, &color) || depth > 8)
        return;
    int type = png_get_color_type(png, info);
    if (type == PNG_COLOR_TYPE_PALETTE && png_get_PLTE(png, info, &palette, &entries)) {
        for (int i = 0; i < count; i++) {
            if (alpha[i] != 255 && (alpha[i] != 0 || clear >= 0))
                return;
            clear = alpha[i] == 0 ? i : clear;
        }
        if (clear < 0 || clear >= entries)
            return;
        memcpy(job->key, (uint8_t[]){palette[clear].red, palette[clear].green, palette[clear].blue}, 3);
    } else if (color && type == PNG_COLOR_TYPE_GRAY) {
        memset(job->key, depth == 1 ? 255 * (color->gray & 1) : color->gray & 255, 3);
    } else if (color) {
        memcpy(job->key, (uint8_t[]){(uint8_t)color->red, (uint8_t)color->green, (uint8_t)color->blue}, 3);
    }
    job->keyed = true;
}

/* Eight bits of red, green and blue, whatever there is. */
static void read_rows(png_structp png, png_infop info, picture_job *job)
{
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_palette_to_rgb(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != (size_t)job->width * 3)
        png_error(png, "its pixels have another form than its head says");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < job->height; y++)
            png_read_row(png, job->rgb + y * job->width * 3, NULL);
    png_read_end(png, info);
}

static void read_orientation(png_structp png, png_infop info, picture_job *job)
{
    png_bytep exif;
    png_uint_32 size;
    if (png_get_eXIf_1(png, info, &size, &exif))
        job->orientation = exif_orientation(exif, size);
}

void pictures_png(picture_job *job)
{
    png_input in = {.job = job};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &in, fail, ignore);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        decoding_fail(&job->in, "cannot be decoded: out of memory");
    } else if (!setjmp(png_jmpbuf(png))) {
        png_set_read_fn(png, &in, read_bytes);
        png_set_user_limits(png, PICTURES_MAX_SIDE, PICTURES_MAX_SIDE);
        png_set_chunk_malloc_max(png, 8 << 20);
        png_set_chunk_cache_max(png, 1); /* no texts and palettes to suggest, of which there may be many  */
        png_read_info(png, info);
        if (pictures_begin(job, png_get_image_height(png, info), png_get_image_width(png, info))) {
            read_key(png, info, job);
            read_rows(png, info, job);
            read_orientation(png, info, job);
        }
    }
    png_destroy_read_struct(&png, &info, NULL);
}
