/* What the server has. */
#include "models.h"

static json_t *describe(const api *a)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:{s:I, s:I, s:s, s:s}}", "id", a->name, "object", "model", "created",
                     (json_int_t)a->created, "owned_by", "tenon", "max_model_len", (json_int_t)a->context, "meta",
                     "n_params", (json_int_t)a->info.parameters, "size", (json_int_t)a->info.weight_bytes, "dtype",
                     tn_dtype_name(a->info.dtype), "model_type", a->info.model_type);
}

void models_list(api *a, exchange *x)
{
    exchange_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", describe(a)));
}

void models_get(api *a, exchange *x, const char *id)
{
    if (state_knows(a, id))
        exchange_json(x, 200, describe(a));
    else
        exchange_error(x, 404, "model", "the model '%.100s' does not exist", id);
}

void models_version(api *a, exchange *x)
{
    (void)a;
    exchange_json(x, 200, json_pack("{s:s}", "version", tn_version()));
}
