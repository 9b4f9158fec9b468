/* Rotary parameters from config.json. */
#include "models/rope_config.h"

static rope_kind read_kind(const config_reader *c)
{
    static const struct config_word list[] = {{"default", ROPE_DEFAULT}, {"linear", ROPE_LINEAR},
                                              {"mrope", ROPE_DEFAULT},   {"dynamic", ROPE_DYNAMIC},
                                              {"llama3", ROPE_LLAMA3},   {"yarn", ROPE_YARN}};
    static const config_words kinds = {sizeof list / sizeof list[0], list};
    bool old = !config_has(c, "rope_type") && config_has(c, "type");
    return (rope_kind)config_choice(c, old ? "type" : "rope_type", "default", &kinds);
}

static void read_llama3(const config_reader *c, rope_params *rope)
{
    rope->low = config_f64(c, "low_freq_factor", 1);
    rope->high = config_f64(c, "high_freq_factor", 4);
    if (!(rope->low > 0 && rope->high > rope->low))
        config_fail(c, "low_freq_factor", "is %g, it must lie between 0 and high_freq_factor, %g", rope->low,
                    rope->high);
}

/* The factor of cos and sin: given, or a quotient of two that are given, or made of the length's factor alone. */
static void read_yarn(const config_reader *c, rope_params *rope)
{
    rope->fast = config_f64(c, "beta_fast", 32);
    rope->slow = config_f64(c, "beta_slow", 1);
    rope->truncate = config_bool(c, "truncate", true);
    if (!(rope->fast > 0) || !(rope->slow > 0))
        config_fail(c, "beta_fast", "is %g and beta_slow %g, they must be positive", rope->fast, rope->slow);
    double mscale = config_f64(c, "mscale", 0), mscale_all = config_f64(c, "mscale_all_dim", 0);
    bool quotient = mscale != 0 && mscale_all != 0;
    double made =
        quotient ? rope_tables_yarn_scale(rope->factor, mscale) / rope_tables_yarn_scale(rope->factor, mscale_all) : 0;
    rope->scaling_given = quotient || config_has(c, "attention_factor");
    rope->scaling = (float)config_f64(c, "attention_factor", made);
}

void rope_config_read(const config_reader *config, int64_t dim, double theta, rope_params *rope)
{
    config_reader old = config_child(config, "rope_scaling"), now = config_child(config, "rope_parameters");
    const config_reader *c = config_has(config, "rope_scaling") ? &old : &now;
    int64_t positions = config_i64(config, "max_position_embeddings", 2048, 1, INT32_MAX);
    int64_t original = config_i64(c, "original_max_position_embeddings", positions, 1, INT32_MAX);
    original = config_i64(config, "original_max_position_embeddings", original, 1, INT32_MAX);
    *rope = (rope_params){.kind = read_kind(c), .dim = dim, .max_positions = positions, .original = (double)original};
    rope->theta = config_f64(c, "rope_theta", config_f64(config, "rope_theta", theta));
    rope->factor = config_f64(c, "factor", (double)positions / (double)original);
    if (dim < 2 || dim > ROPE_MAX_DIM || dim % 2)
        config_fail(config, "head_dim", "gives a rotary size of %lld, which is no even number from 2 to %d",
                    (long long)dim, ROPE_MAX_DIM);
    if (!(rope->theta > 1))
        config_fail(config_has(c, "rope_theta") ? c : config, "rope_theta", "is %g, it must be above 1", rope->theta);
    if (!(rope->factor > 0))
        config_fail(c, "factor", "is %g, it must be positive", rope->factor);
    if (rope->kind == ROPE_DYNAMIC && dim < 4)
        config_fail(config, "head_dim", "is too small for rope_type dynamic, which needs a rotary size of 4");
    if (rope->kind == ROPE_LLAMA3)
        read_llama3(c, rope);
    if (rope->kind == ROPE_YARN)
        read_yarn(c, rope);
    if (*config->status == TN_OK)
        rope_tables_init(rope);
}
