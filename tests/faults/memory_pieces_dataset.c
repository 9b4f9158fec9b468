/* Training data for test_memory: records of all formats, and two that are wrong. */
#include "dataset/dataset.h"
#include "dataset/reader.h"
#include "device/device.h"
#include "memory_pieces.h"

#include <string.h>

static tn_status pack(const tn_dataset *d, uint64_t *sum, tn_error *err)
{
    int64_t samples[64], first[65], rows = tn_dataset_pack(d, 0, samples, first, err);
    if (rows < 0)
        return err->code;
    piece_add(sum, samples, (size_t)tn_dataset_count(d) * sizeof *samples);
    return TN_OK;
}

tn_status piece_read_data(const char *path, uint64_t *sum, tn_error *err)
{
    reader r;
    tn_status status = reader_open(&r, "tests/data/tokenizers/letters", 1, err);
    if (status == TN_OK && r.tokenizer) {
        tn_template_free(r.chat);
        r.by.chat = r.chat = tn_template_open("tests/data/templates/qwen2.5/template.jinja", err);
        status = r.chat ? TN_OK : err->code;
    }
    r.by.options = (tn_dataset_options){.size = sizeof r.by.options, .max_length = 4096, .join = "", .skip_bad = true};
    int32_t before = threads_limit(1); /* it is this thread's memory that fails */
    tn_dataset *d = status == TN_OK ? dataset_open(&r.by, &path, 1, err) : NULL;
    threads_limit(before);
    status = d ? pack(d, sum, err) : err->code;
    if (d)
        piece_add(sum, tn_dataset_digest(d), 64);
    tn_dataset_close(d);
    reader_close(&r);
    return status;
}
