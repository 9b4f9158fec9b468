/* Rotary parameters from config.json. */
#include "models/rope_config.h"

#include <math.h>
#include <string.h>

static rope_kind read_kind(const config_reader *c, bool old_names)
{
    static const config_word kinds[] = {{"default", ROPE_DEFAULT},
                                        {"linear", ROPE_LINEAR},
                                        {"mrope", ROPE_DEFAULT},
                                        {"dynamic", ROPE_DYNAMIC},
                                        {"llama3", ROPE_LLAMA3},
                                        {"yarn", ROPE_YARN},
                                        {"longrope", ROPE_LONG},
                                        {"proportional", ROPE_PROPORTIONAL},
                                        {0}};
    static const config_word old_kinds[] = {
        {"default", ROPE_DEFAULT}, {"longrope", ROPE_LONG}, {"su", ROPE_LONG}, {"yarn", ROPE_LONG}, {0}};
    bool by_type = !config_has(c, "rope_type") && config_has(c, "type");
    return (rope_kind)config_choice(c, by_type ? "type" : "rope_type", "default", old_names ? old_kinds : kinds);
}

config_reader rope_config_object(const config_reader *config, const char *layer_type)
{
    config_reader old = config_child(config, "rope_scaling"), now = config_child(config, "rope_parameters");
    bool use_old = config_has(config, "rope_scaling");
    if (!layer_type)
        return use_old ? old : now;
    return use_old && !strcmp(layer_type, "full_attention") ? old : config_child(&now, layer_type);
}

static void read_llama3(const config_reader *c, rope_params *rope)
{
    rope->low = config_f64(c, "low_freq_factor", 1);
    rope->high = config_f64(c, "high_freq_factor", 4);
    if (!(rope->low > 0 && rope->high >= rope->low)) /* Llama 4 has the same for both: nothing is in between */
        config_fail(c, "low_freq_factor", "is %g, it must lie between 0 and high_freq_factor, %g", rope->low,
                    rope->high);
}

/* The factor of cos and sin: given, or a quotient of two that are given, or made of the length's factor alone. */
static void read_yarn(const config_reader *c, rope_params *rope)
{
    rope->fast = config_f64(c, "beta_fast", 0);
    rope->slow = config_f64(c, "beta_slow", 0);
    rope->fast = rope->fast != 0 ? rope->fast : 32; /* 0 counts as none */
    rope->slow = rope->slow != 0 ? rope->slow : 1;
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

static void read_factors(const config_reader *c, const char *key, int64_t count, float *factors)
{
    int64_t given = config_list(c, key);
    if (given != count)
        config_fail(c, key, given < 0 ? "is missing" : "has %lld entries, half the rotary size is %lld",
                    (long long)given, (long long)count);
    for (int64_t i = 0; i < count && *c->status == TN_OK; i++) {
        factors[i] = (float)config_list_f64(c, key, i);
        if (!(factors[i] > 0))
            config_fail(c, key, "has the entry %g, all must be positive", (double)factors[i]);
    }
}

static void read_long(const config_reader *c, const rope_config_spec *spec, rope_params *rope)
{
    const char *factor = spec->mscales ? "short_mscale" : "attention_factor";
    read_factors(c, "short_factor", rope->dim / 2, rope->inv_freq);
    read_factors(c, spec->mscales ? "short_factor" : "long_factor", rope->dim / 2, rope->long_freq);
    rope->scaling_given = spec->mscales || config_has(c, factor);
    rope->scaling = (float)config_f64(c, factor, 1);
    if (spec->mscales && !(config_has(c, factor) && config_f64(c, "long_mscale", 0) == config_f64(c, factor, 1)))
        config_fail(c, "long_mscale", "must be there and be what short_mscale is: others are not supported");
}

/* R of a head of D. partial_rotary_factor may stand beside the object, too. */
static void read_dim(const config_reader *config, const config_reader *c, const rope_config_spec *spec,
                     rope_params *rope)
{
    const char *key = "partial_rotary_factor";
    double fallback = rope->partial != 0 ? rope->partial : spec->partial != 0 ? spec->partial : 1;
    rope->partial = config_f64(c, key, config_f64(config, key, fallback));
    if (!(rope->partial > 0 && rope->partial <= 1)) {
        config_fail(config_has(c, key) ? c : config, key, "is %g, it must be above 0 and at most 1", rope->partial);
        return;
    }
    bool whole = rope->kind == ROPE_PROPORTIONAL || (rope->kind == ROPE_DEFAULT && spec->partial == 0);
    rope->dim = whole ? spec->head_dim : (int64_t)((double)spec->head_dim * rope->partial);
    if (rope->dim < 2 || rope->dim > ROPE_MAX_DIM || rope->dim % 2)
        config_fail(config, "head_dim", "gives a rotary size of %lld, which is no even number from 2 to %d",
                    (long long)rope->dim, ROPE_MAX_DIM);
    if (rope->kind == ROPE_DYNAMIC && rope->dim < 4)
        config_fail(config, "head_dim", "is too small for rope_type dynamic, which needs a rotary size of 4");
}

static void read_theta(const config_reader *config, const config_reader *c, const rope_config_spec *spec,
                       rope_params *rope)
{
    bool sliding = spec->layer_type && !strcmp(spec->layer_type, "sliding_attention");
    const char *beside = sliding ? "rope_local_base_freq" : "rope_theta";
    rope->theta = config_f64(c, "rope_theta", config_f64(config, beside, spec->theta));
    bool inside = config_has(c, "rope_theta");
    if (!(rope->theta > 1))
        config_fail(inside ? c : config, inside ? "rope_theta" : beside, "is %g, it must be above 1", rope->theta);
}

static void read_alpha(const config_reader *c, rope_params *rope)
{
    double alpha = config_f64(c, "alpha", 1);
    if (!(alpha > 0))
        config_fail(c, "alpha", "is %g, it must be positive", alpha);
    rope->theta *= pow(alpha, (double)rope->dim / (double)(rope->dim - 2));
    rope->kind = ROPE_DEFAULT;
}

/* What depends on the kind. */
static void read_scaling(const config_reader *c, const rope_config_spec *spec, rope_params *rope)
{
    bool needed = rope->kind == ROPE_LINEAR || rope->kind == ROPE_DYNAMIC || rope->kind == ROPE_LLAMA3;
    double ratio = (double)rope->max_positions / rope->original;
    if (needed && !config_has(c, "factor"))
        config_fail(c, "factor", "is missing, and this rope_type needs it");
    rope->factor = config_f64(c, "factor", rope->kind == ROPE_PROPORTIONAL ? 1 : ratio);
    if (!(rope->factor > 0))
        config_fail(c, "factor", "is %g, it must be positive", rope->factor);
    rope->mscale_all = rope->kind == ROPE_DEFAULT ? 0 : config_f64(c, "mscale_all_dim", 0);
    if (rope->kind == ROPE_LLAMA3)
        read_llama3(c, rope);
    if (rope->kind == ROPE_YARN)
        read_yarn(c, rope);
    if (rope->kind == ROPE_LONG)
        read_long(c, spec, rope);
}

static bool has_none(const config_reader *config)
{
    return !config_has(config, "rope_scaling") && !config_has(config, "rope_parameters");
}

/* original_max_position_embeddings: beside the object before inside it. */
static int64_t read_original(const config_reader *config, const config_reader *c, const rope_config_spec *spec,
                             int64_t fallback)
{
    const char *key = "original_max_position_embeddings";
    if (has_none(config) && spec->absent && spec->absent->original != 0)
        fallback = (int64_t)spec->absent->original;
    int64_t inside = config_i64(c, key, fallback, 1, INT32_MAX);
    return spec->layer_type ? inside : config_i64(config, key, spec->original ? spec->original : inside, 1, INT32_MAX);
}

void rope_config_read(const config_reader *config, const rope_config_spec *spec, rope_params *rope)
{
    config_reader c = rope_config_object(config, spec->layer_type);
    bool absent = spec->absent && has_none(config);
    *rope = absent ? *spec->absent : (rope_params){.kind = read_kind(&c, spec->old_names)};
    rope->max_positions = config_i64(config, "max_position_embeddings", 2048, 1, INT32_MAX);
    rope->max_positions = spec->positions ? spec->positions : rope->max_positions;
    rope->original = (double)read_original(config, &c, spec, rope->max_positions);
    if (!absent)
        read_theta(config, &c, spec, rope);
    read_dim(config, &c, spec, rope);
    if (spec->ntk_alpha && rope->kind == ROPE_DYNAMIC && config_has(&c, "alpha"))
        read_alpha(&c, rope);
    if (!absent)
        read_scaling(&c, spec, rope);
    if (*config->status == TN_OK)
        rope_tables_init(rope);
}

q_scale_params rope_config_q_scale(const config_reader *config, const rope_config_spec *spec, double beta)
{
    const char *key = "llama_4_scaling_beta";
    config_reader c = rope_config_object(config, spec->layer_type);
    int64_t positions = config_i64(config, "max_position_embeddings", 2048, 1, INT32_MAX);
    if (!has_none(config) && !config_has(&c, key))
        config_fail(&c, key, "is missing");
    return (q_scale_params){Q_SCALE_POSITION, config_f64(&c, key, beta),
                            (double)read_original(config, &c, spec, positions)};
}
