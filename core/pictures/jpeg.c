/* JPEG, by libjpeg-turbo: its exact inverse transform, and smooth chroma. */
#include "pictures/pictures.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

typedef struct jpeg_state {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf out;
    picture_job *job;
} jpeg_state;

static void fail(j_common_ptr jpeg)
{
    jpeg_state *s = jpeg->client_data;
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    decoding_fail(&s->job->in, "is no JPEG that can be read: %.100s", text);
    longjmp(s->out, 1);
}

/* libjpeg goes on with gray where a file ends too early; others refuse it, too. */
static void warn(j_common_ptr jpeg, int level)
{
    if (level < 0 && (jpeg->err->msg_code == JWRN_JPEG_EOF || jpeg->err->msg_code == JWRN_HIT_MARKER))
        fail(jpeg);
}

static void read_orientation(jpeg_state *s)
{
    static const char head[] = "Exif\0";
    for (jpeg_saved_marker_ptr m = s->jpeg.marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && !memcmp(m->data, head, 6)) {
            s->job->orientation = exif_orientation(m->data + 6, m->data_length - 6);
            return;
        }
}

/* a b / 255, rounded. */
static unsigned times(unsigned a, unsigned b)
{
    unsigned t = a * b + 128;
    return (t + (t >> 8)) >> 8;
}

/* Four bytes each, 255 less the ink. */
static void lighten(const uint8_t *cmyk, int64_t width, uint8_t *rgb)
{
    for (int64_t x = 0; x < width; x++, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; c++)
            rgb[c] = (uint8_t)(cmyk[3] - times(255u - cmyk[c], cmyk[3]));
}

static void read_rows(jpeg_state *s)
{
    picture_job *job = s->job;
    bool inks = s->jpeg.num_components == 4;
    s->jpeg.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&s->jpeg);
    if (s->jpeg.output_width != (JDIMENSION)job->width || s->jpeg.output_components != (inks ? 4 : 3)) {
        decoding_fail(&job->in, "is a JPEG of colours that are not read");
        return;
    }
    JSAMPARRAY line = s->jpeg.mem->alloc_sarray((j_common_ptr)&s->jpeg, JPOOL_IMAGE, (JDIMENSION)job->width * 4, 1);
    for (int64_t y = 0; y < job->height; y++) {
        uint8_t *to = job->rgb + y * job->width * 3;
        jpeg_read_scanlines(&s->jpeg, line, 1);
        if (inks)
            lighten(line[0], job->width, to);
        else
            memcpy(to, line[0], (size_t)job->width * 3);
    }
    jpeg_finish_decompress(&s->jpeg);
}

void pictures_jpeg(picture_job *job)
{
    jpeg_state *s = calloc(1, sizeof *s);
    if (!s) {
        decoding_fail(&job->in, "cannot be decoded: out of memory");
        return;
    }
    s->job = job;
    s->jpeg.err = jpeg_std_error(&s->errors);
    s->errors.error_exit = fail;
    s->errors.emit_message = warn;
    s->jpeg.client_data = s;
    if (!setjmp(s->out)) {
        jpeg_create_decompress(&s->jpeg);
        jpeg_mem_src(&s->jpeg, job->in.file, job->in.size);
        jpeg_save_markers(&s->jpeg, JPEG_APP0 + 1, 0xffff);
        jpeg_read_header(&s->jpeg, TRUE);
        read_orientation(s);
        if (pictures_begin(job, s->jpeg.image_height, s->jpeg.image_width))
            read_rows(s);
    }
    jpeg_destroy_decompress(&s->jpeg);
    free(s);
}
