/* Pictures from files: what is broken, too large or no picture; orientation; resizing against a slow twin; what
 * preprocessor_config.json may say. What is read right is compared with transformers' in check_media. */
#include "pictures/pictures.h"

#include "base/random.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <webp/encode.h>
#include <zlib.h>

#define FILES "tests/data/media/files/"

static void refused(const char *path, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    picture p;
    ck_assert_int_eq(pictures_decode(path, &p, &err), TN_E_INPUT);
    ck_assert_ptr_null(p.rgb);
    suite_expect_in(err.message, words);
    ck_assert_ptr_null(strchr(err.message, '\n'));
}

static char *file_with(const void *data, size_t size)
{
    char *path = tempdir_at(tempdir_new(), "picture");
    tempdir_write(path, data, size);
    return path;
}

static void put_big(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* A PNG's head of that size, right but for what should follow. */
static char *png_head(uint32_t width, uint32_t height)
{
    uint8_t head[41] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    put_big(head + 16, width);
    put_big(head + 20, height);
    memcpy(head + 24, (uint8_t[]){8, 2, 0, 0, 0}, 5);
    put_big(head + 29, (uint32_t)crc32(0, head + 12, 17));
    memcpy(head + 33, "\0\0\0\x0aIDAT", 8);
    return file_with(head, sizeof head);
}

START_TEST(bombs)
{
    refused(png_head(60000, 60000), "is no PNG that can be read: ");
    refused(png_head(20000, 20000), "is 20000 by 20000 pixels; at most 32768 by side and 67108864 in all are read");
    refused(png_head(100, 100), "is no PNG that can be read: the file ends in the middle of it");
    uint8_t jpeg[] = {0xff, 0xd8, 0xff, 0xc0, 0, 17, 8, 0xff, 0xdc, 0xff, 0xdc, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1};
    refused(file_with(jpeg, sizeof jpeg), "is");
}
END_TEST

/* Each file cut anywhere is refused, and one with bytes that were changed is refused or read, but ends nobody. */
START_TEST(broken_files)
{
    static const char *const names[] = {"alpha_80x60.png", "odd_117x83.jpg", "progressive_130x97.jpg",
                                        "palette_90x70.png"};
    size_t size;
    char path[256];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, FILES "%s", names[_i]);
    char *file = tempdir_read(path, &size);
    for (int cut = 1; cut < 8; cut++)
        refused(file_with(file, size * (size_t)cut / 8), "is no ");
    random_state r = {.state = (uint64_t)_i};
    for (int change = 0; change < 20; change++) {
        picture p;
        char *other = malloc(size);
        memcpy(other, file, size);
        for (int n = 0; n < 5; n++)
            other[8 + random_bits(&r) % (size - 8)] = (char)random_bits(&r);
        if (pictures_decode(file_with(other, size), &p, &err) == TN_OK)
            pictures_release(&p);
        else
            ck_assert_int_eq(err.code, TN_E_INPUT);
        tn_error_clear(&err);
        free(other);
    }
    free(file);
}
END_TEST

START_TEST(no_pictures)
{
    refused("tests/data/media/README.md", "is no PNG, JPEG or WebP file");
    refused(file_with("", 0), "is no PNG, JPEG or WebP file");
    refused(file_with("RIFF\x10\0\0\0WEBPVP8 ", 16), "is no WebP that can be read");
    tn_error err = TN_ERROR_INIT;
    picture p;
    ck_assert_int_eq(pictures_decode("tests/data/no/such.png", &p, &err), TN_E_INPUT);
}
END_TEST

static picture draw(int64_t height, int64_t width, uint64_t seed)
{
    picture p = {.height = height, .width = width, .rgb = malloc((size_t)(height * width) * 3)};
    random_state r = {.state = seed};
    for (int64_t i = 0; i < height * width * 3; i++)
        p.rgb[i] = (uint8_t)random_bits(&r);
    suite_keep(p.rgb, free);
    return p;
}

START_TEST(webp)
{
    uint8_t *file = NULL;
    tn_error err = TN_ERROR_INIT;
    picture p, from = draw(23, 37, 1);
    size_t size = WebPEncodeLosslessRGB(from.rgb, 37, 23, 37 * 3, &file);
    ck_assert_uint_gt(size, 0);
    ck_assert_msg(pictures_decode(file_with(file, size), &p, &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(p.height, 23);
    ck_assert_int_eq(p.width, 37);
    ck_assert_mem_eq(p.rgb, from.rgb, 23 * 37 * 3);
    pictures_release(&p);
    refused(file_with(file, size / 2), "WebP");
    WebPFree(file);
}
END_TEST

/* Pixel (y, x) of what is upright, for each orientation, from its own definition. */
START_TEST(orientations)
{
    enum { H = 3, W = 5 };
    picture from = draw(H, W, 2);
    uint8_t to[H * W * 3];
    for (int32_t o = 1; o <= 8; o++) {
        int64_t lines = o >= 5 ? W : H, columns = o >= 5 ? H : W;
        exif_turn(from.rgb, H, W, o, to);
        for (int64_t y = 0; y < lines; y++)
            for (int64_t x = 0; x < columns; x++) {
                const int64_t at[9][2] = {
                    {0},    {y, x},         {y, W - 1 - x},         {H - 1 - y, W - 1 - x}, {H - 1 - y, x},
                    {x, y}, {H - 1 - x, y}, {H - 1 - x, W - 1 - y}, {x, W - 1 - y}};
                ck_assert_mem_eq(to + (y * columns + x) * 3, from.rgb + (at[o][0] * W + at[o][1]) * 3, 3);
            }
    }
}
END_TEST

START_TEST(exif_that_lies)
{
    const uint8_t right[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0};
    ck_assert_int_eq(exif_orientation(right, sizeof right), 6);
    for (size_t cut = 0; cut < 19; cut++)
        ck_assert_int_eq(exif_orientation(right, cut), 1);
    uint8_t wrong[sizeof right];
    memcpy(wrong, right, sizeof right);
    wrong[19] = 9;
    ck_assert_int_eq(exif_orientation(wrong, sizeof wrong), 1);
    memset(wrong + 4, 0xff, 4);
    ck_assert_int_eq(exif_orientation(wrong, sizeof wrong), 1);
}
END_TEST

/* ---- resizing: a slow twin in double precision, each axis rounded to bytes ---- */

static double weight_of(resize_filter f, double x)
{
    x = fabs(x);
    if (f == RESIZE_BILINEAR)
        return x < 1 ? 1 - x : 0;
    if (f == RESIZE_LANCZOS)
        return x >= 3 ? 0 : x == 0 ? 1 : 3 * sin(M_PI * x) * sin(M_PI * x / 3) / (M_PI * M_PI * x * x);
    return x < 1 ? 1.5 * x * x * x - 2.5 * x * x + 1 : x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
}

/* Value i of `out` ones that stand for the `in` ones at from, `apart` bytes from each to the next. */
static uint8_t slow_value(const uint8_t *from, int64_t apart, int64_t in, int64_t out, int64_t i, resize_filter f)
{
    double scale = (double)in / (double)out, wide = scale > 1 ? scale : 1, centre = scale * ((double)i + 0.5);
    double reach = (f == RESIZE_LANCZOS ? 3 : f == RESIZE_BICUBIC ? 2 : 1) * wide, sum = 0, all = 0;
    int64_t first = (int64_t)fmax(0, floor(centre - reach + 0.5)),
            end = (int64_t)fmin((double)in, centre + reach + 0.5);
    for (int64_t j = first; j < end; j++) {
        double w = weight_of(f, ((double)j + 0.5 - centre) / wide);
        sum += w * from[j * apart];
        all += w;
    }
    return (uint8_t)fmin(255, fmax(0, floor(sum / all + 0.5)));
}

START_TEST(resized_as_slowly)
{
    static const int64_t sizes[][4] = {{40, 30, 17, 13}, {17, 13, 40, 30}, {9, 50, 9, 7}, {1, 1, 8, 8}, {64, 3, 2, 9}};
    static const resize_filter all[] = {RESIZE_BILINEAR, RESIZE_BICUBIC, RESIZE_LANCZOS};
    tn_error err = TN_ERROR_INIT;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int f = 0; f < 3; f++) {
            int64_t h = sizes[s][0], w = sizes[s][1], to_h = sizes[s][2], to_w = sizes[s][3];
            picture from = draw(h, w, s), got;
            uint8_t *lines = malloc((size_t)(h * to_w) * 3);
            for (int64_t i = 0; i < h * to_w * 3; i++)
                lines[i] = slow_value(from.rgb + i / (to_w * 3) * w * 3 + i % 3, 3, w, to_w, i / 3 % to_w, all[f]);
            ck_assert_int_eq(resize_picture(&from, to_h, to_w, all[f], &got, &err), TN_OK);
            for (int64_t i = 0; i < to_h * to_w * 3; i++) {
                int wanted = slow_value(lines + i % (to_w * 3), to_w * 3, h, to_h, i / (to_w * 3), all[f]);
                ck_assert_int_le(abs(wanted - (int)got.rgb[i]), 2); /* a level of each axis                  */
            }
            pictures_release(&got);
            free(lines);
        }
}
END_TEST

/* ---- preprocessor_config.json ---- */

static const struct {
    const char *config, *words; /* NULL: it opens                                                         */
} configs[] = {
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\"}", NULL},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessorFast\", \"size\": null, \"min_pixels\": null}", NULL},
    {"{}", "image_processor_type"},
    {"{\"image_processor_type\": \"Quen2VLImageProcessor\"}", "the nearest that is: Qwen2VLImageProcessor"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"patch_size\": 0}", "patch_size"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"merge_size\": -2}", "merge_size"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"max_pixels\": 10}", "max_pixels"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"max_pixels\": 1e99}", "max_pixels"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"image_std\": [1, 0, 1]}", "image_std"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"image_mean\": [1, 2]}", "image_mean"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"rescale_factor\": 0}", "rescale_factor"},
    {"{\"image_processor_type\": \"Qwen2VLImageProcessor\", \"resample\": 9}", "resample"},
    {"{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 0}", "size"},
    {"{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": {\"height\": 10}}", "size"},
    {"{\"image_processor_type\": \"CLIPImageProcessor\", \"do_center_crop\": false}", "do_center_crop"},
    {"{\"image_processor_type\": \"PixtralImageProcessor\", \"patch_size\": {\"height\": 16, \"width\": 8}}", "square"},
    {"{\"image_processor_type\": \"LlavaNextImageProcessor\", \"size\": 60}", "image_grid_pinpoints"},
    {"{\"image_processor_type\": \"LlavaNextImageProcessor\", \"size\": 336, \"image_grid_pinpoints\": []}", "entries"},
    {"{\"image_processor_type\": \"GotOcr2ImageProcessor\", \"min_patches\": 9, \"max_patches\": 3}", "max_patches"},
    {"{\"image_processor_type\": \"Llama4ImageProcessor\"}", NULL},
    {"{\"image_processor_type\": \"Llama4ImageProcessor\", \"size\": {\"height\": 16, \"width\": 8}}", "squares"},
    {"{\"image_processor_type\": \"Llama4ImageProcessor\", \"max_patches\": 0}", "max_patches"},
    {"{\"image_processor_type\": \"Llama4ImageProcessor\", \"max_patches\": 100}", "max_patches"},
    {"{\"image_processor_type\": \"Llama4ImageProcessor\", \"do_rescale\": false}", "do_rescale"},
    {"{\"image_processor_type\": \"Llama4ImageProcessor\", \"do_normalize\": false}", "do_normalize"},
    {"{\"image_processor_type\": \"SiglipImageProcessor\", \"rescale_factor\": 1e-300}", "rescale_factor"},
    {"[]", "object"},
    {"{\"image_processor_type\": ", "JSON"},
};

START_TEST(a_config)
{
    char *folder = tempdir_new();
    tn_error err = TN_ERROR_INIT;
    tempdir_put(folder, "preprocessor_config.json", configs[_i].config);
    processor *p = processor_open(folder, &err);
    if (configs[_i].words) {
        ck_assert_ptr_null(p);
        ck_assert_int_eq(err.code, TN_E_INPUT);
        suite_expect_in(err.message, configs[_i].words);
    } else {
        ck_assert_msg(p, "%s", err.message);
    }
    processor_free(p);
}
END_TEST

/* A line of pixels is no picture for Qwen; CLIP's crop must fit. */
START_TEST(shapes_that_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = tempdir_new();
    picture line = draw(1, 300, 3);
    processed x;
    tempdir_put(folder, "preprocessor_config.json", "{\"image_processor_type\": \"Qwen2VLImageProcessor\"}");
    processor *p = processor_open(folder, &err);
    ck_assert_int_eq(processor_run(p, &line, 1, &x, &err), TN_E_INPUT);
    suite_expect_in(err.message, "is 300 by 1 pixels; one side may be 200 times the other");
    processor_free(p);
    tempdir_put(folder, "preprocessor_config.json",
                "{\"image_processor_type\": \"CLIPImageProcessor\", \"size\": 20, \"crop_size\": 40}");
    tn_error_clear(&err);
    p = processor_open(folder, &err);
    ck_assert_msg(p, "%s", err.message);
    ck_assert_int_eq(processor_run(p, &line, 1, &x, &err), TN_E_INPUT);
    suite_expect_in(err.message, "crop_size is 40 by 40");
    processor_free(p);
}
END_TEST

/* Tiles of 16 by 16: as image_processing_llama4 chooses the canvas, and the size that a picture has on it. */
static const struct {
    int64_t most;
    bool largest;
    int64_t picture[2], grid[2], size[2]; /* height, width                                                 */
} canvases[] = {
    {6, false, {40, 30}, {3, 2}, {40, 30}},  {6, true, {40, 30}, {3, 2}, {42, 32}},
    {6, false, {8, 5}, {1, 1}, {16, 10}},    {6, true, {8, 5}, {3, 2}, {48, 30}},
    {4, false, {100, 60}, {2, 2}, {32, 19}}, {4, true, {10, 33}, {1, 4}, {16, 52}},
    {6, false, {10, 33}, {1, 3}, {10, 33}},  {6, false, {1, 64}, {1, 4}, {1, 64}},
    {16, false, {33, 47}, {3, 3}, {33, 47}}, {16, true, {33, 47}, {3, 5}, {48, 68}},
    {2, false, {300, 20}, {2, 1}, {32, 2}},  {1, false, {300, 20}, {1, 1}, {16, 1}},
    {1, true, {3, 20}, {1, 1}, {2, 16}},     {16, false, {16, 16}, {1, 1}, {16, 16}},
    {16, false, {32, 17}, {2, 2}, {32, 17}}, {5, false, {500, 3}, {5, 1}, {80, 1}},
};

/* White pictures, so that what is black was added; the whole one behind them has none of it. */
START_TEST(a_canvas_of_tiles)
{
    enum { SIDE = 16 };
    char *folder = tempdir_new(), config[256];
    tn_error err = TN_ERROR_INIT;
    const int64_t *grid = canvases[_i].grid, *size = canvases[_i].size, tiles = grid[0] * grid[1];
    snprintf(config, sizeof config,
             "{\"image_processor_type\": \"Llama4ImageProcessorFast\", \"size\": {\"height\": 16, \"width\": 16}, "
             "\"max_patches\": %d, \"resize_to_max_canvas\": %s}",
             (int)canvases[_i].most, canvases[_i].largest ? "true" : "false");
    tempdir_put(folder, "preprocessor_config.json", config);
    processor *p = processor_open(folder, &err);
    ck_assert_msg(p, "%s", err.message);
    picture white = draw(canvases[_i].picture[0], canvases[_i].picture[1], 1);
    memset(white.rgb, 255, (size_t)(white.height * white.width) * 3);
    processed x;
    ck_assert_msg(processor_run(p, &white, 1, &x, &err) == TN_OK, "%s", err.message);
    ck_assert_mem_eq(x.tiles, grid, 2 * sizeof *grid);
    ck_assert_int_eq(x.parts[0], tiles + (tiles > 1));
    ck_assert_int_eq(x.shape[0], x.parts[0]);
    for (int64_t i = 0; i < x.parts[0] * 3 * SIDE * SIDE; i++) {
        int64_t tile = i / (3 * SIDE * SIDE);
        int64_t row = tile / grid[1] * SIDE + i / SIDE % SIDE, column = tile % grid[1] * SIDE + i % SIDE;
        bool shown = tile == tiles || (row < size[0] && column < size[1]);
        ck_assert_float_eq(x.pixels[i], shown ? 1.0f : -1.0f);
    }
    processor_release(&x);
    processor_free(p);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("pictures", 120);
    tcase_add_loop_test(c, broken_files, 0, 4);
    tcase_add_loop_test(c, a_config, 0, sizeof configs / sizeof *configs);
    tcase_add_loop_test(c, a_canvas_of_tiles, 0, sizeof canvases / sizeof *canvases);
    suite_add(c, bombs, no_pictures, webp, orientations, exif_that_lies, resized_as_slowly, shapes_that_are_refused);
    return suite_run();
}
