/* Any bytes as a config.json and, behind a NUL, a generation_config.json: the model is built over a record in place of
 * weights. What is accepted has a tree and sizes that make sense. */
#include "fuzz.h"
#include "fuzz_folder.h"
#include "fuzz_json.h"
#include "open/model.h"

FUZZ_ENTRY(fuzz_graph)

int fuzz_graph(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    fuzz_folder_write("config.json", data, first);
    fuzz_folder_write("generation_config.json", rest, rest_size);
    tn_error err = TN_ERROR_INIT;
    shards *record = shards_record(TN_BF16, &err);
    fuzz_require(record != NULL, "no memory for a record");
    tn_model *model = model_open(fuzz_folder(), NULL, record, &err);
    fuzz_agree(model != NULL, &err);
    if (model) {
        tn_model_info info = {.size = sizeof info};
        fuzz_require(tn_model_get_info(model, &info) == TN_OK, "a model says nothing of itself");
        fuzz_require(info.layers > 0 && info.hidden > 0 && info.vocab > 0, "a model without a size");
        fuzz_require(info.parameters > 0 && info.eos_count >= 0 && info.eos_count <= 8, "a number is out of range");
        fuzz_require(model->target.graph->site_count > 0, "a model without operations");
    }
    tn_model_close(model);
    return 0;
}
