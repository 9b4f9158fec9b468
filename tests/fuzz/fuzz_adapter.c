/* Any bytes as an adapter_config.json and, behind a NUL, an adapter_model.safetensors, around a small mixture whose
 * weights are a record. What is accepted has factors of finite sizes beside some product. */
#include "fuzz.h"
#include "fuzz_folder.h"
#include "fuzz_json.h"
#include "open/model.h"

FUZZ_ENTRY(fuzz_adapter)

static const char config[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 8, \"intermediate_size\": 12, \"moe_intermediate_size\": 6, "
    "\"num_hidden_layers\": 2, \"mlp_only_layers\": [1], \"decoder_sparse_step\": 1, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"num_experts\": 2, \"num_experts_per_tok\": 1, \"vocab_size\": 16, "
    "\"max_position_embeddings\": 32, \"norm_topk_prob\": true}";

static void look_at(const tn_model *model)
{
    const graph *g = model->target.graph;
    size_t found = 0;
    for (size_t i = 0; i < g->site_count; i++) {
        const graph_site *s = g->sites[i];
        fuzz_require(s->index == i, "a site has another number");
        if (s->site.op != TN_OP_LORA_LINEAR)
            continue;
        fuzz_require(s->part[GRAPH_PART_LINEAR] && s->part[GRAPH_PART_LINEAR]->outer == s, "an adapter around nothing");
        fuzz_require(s->site.dim[TN_DIM_RANK] > 0, "an adapter without a rank");
        found++;
    }
    fuzz_require(model->adapter && model->adapter->count >= 2, "an adapter without factors");
    fuzz_require(found > 0 || model->adapter->view_count > 0, "an adapter beside nothing");
    for (size_t i = 0; i < model->adapter->view_count; i++)
        fuzz_require(peft_find(model->adapter, model->adapter->views[i].name) != NULL, "a factor is not found");
}

int fuzz_adapter(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    fuzz_folder_write("config.json", (const uint8_t *)config, sizeof config - 1);
    fuzz_folder_write("adapter_config.json", data, first);
    fuzz_folder_write("adapter_model.safetensors", rest, rest_size);
    tn_error err = TN_ERROR_INIT;
    shards *record = shards_record(TN_BF16, &err);
    fuzz_require(record != NULL, "no memory for a record");
    const tn_model_options options = {.size = sizeof options, .adapter = fuzz_folder()};
    tn_model *model = model_open(fuzz_folder(), &options, record, &err);
    fuzz_agree(model != NULL, &err);
    if (model)
        look_at(model);
    tn_model_close(model);
    return 0;
}
