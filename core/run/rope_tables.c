/* Inverse frequencies of each rope_type and the tables made of them. Single precision where transformers computes in
 * single precision: a rounding here is a rotation there. */
#include "run/rope_tables.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static float base_frequency(double theta, int64_t i, int64_t dim)
{
    float exponent = (float)(2 * i) / (float)dim;
    return 1.0f / powf((float)theta, exponent);
}

static void init_linear(rope_params *rope)
{
    for (int64_t i = 0; i < rope->dim / 2; i++)
        rope->inv_freq[i] /= (float)rope->factor;
}

static tn_status init_llama3(rope_params *rope, const config_node *node, double original, tn_error *err)
{
    double low = 1, high = 4;
    tn_status status = config_f64(node, "low_freq_factor", &low, err);
    if (status == TN_OK)
        status = config_f64(node, "high_freq_factor", &high, err);
    if (status == TN_OK && !(low > 0 && high > low))
        return tn_fail(err, TN_E_INPUT, "config.json", "rope low_freq_factor %g and high_freq_factor %g do not fit",
                       low, high);
    for (int64_t i = 0; status == TN_OK && i < rope->dim / 2; i++) {
        float f = rope->inv_freq[i], wave = (float)(2 * PI) / f;
        if (wave > (float)(original / low)) {
            rope->inv_freq[i] = f / (float)rope->factor;
        } else if (!(wave < (float)(original / high))) {
            float smooth = ((float)original / wave - (float)low) / (float)(high - low);
            rope->inv_freq[i] = (1 - smooth) * f / (float)rope->factor + smooth * f;
        }
    }
    return status;
}

/* The frequency index at which r rotations fit into the original context. */
static double yarn_index(const rope_params *rope, double rotations, double original)
{
    return (double)rope->dim * log(original / (rotations * 2 * PI)) / (2 * log(rope->theta));
}

static double yarn_scale(double scale, double mscale)
{
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

static tn_status init_yarn(rope_params *rope, const config_node *node, double original, tn_error *err)
{
    double fast = 32, slow = 1, attention = 0, mscale = 0, mscale_all = 0;
    bool truncate = true;
    tn_status status = config_f64(node, "beta_fast", &fast, err);
    if (status == TN_OK)
        status = config_f64(node, "beta_slow", &slow, err);
    if (status == TN_OK)
        status = config_f64(node, "attention_factor", &attention, err);
    if (status == TN_OK)
        status = config_f64(node, "mscale", &mscale, err);
    if (status == TN_OK)
        status = config_f64(node, "mscale_all_dim", &mscale_all, err);
    if (status == TN_OK)
        status = config_bool(node, "truncate", &truncate, err);
    if (status != TN_OK)
        return status;
    if (!(fast > 0) || !(slow > 0))
        return tn_fail(err, TN_E_INPUT, "config.json", "rope beta_fast %g and beta_slow %g must be positive", fast,
                       slow);
    double lo = yarn_index(rope, fast, original), hi = yarn_index(rope, slow, original);
    if (truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0);
    hi = fmin(hi, (double)rope->dim - 1);
    if (lo == hi)
        hi += 0.001;
    for (int64_t i = 0; i < rope->dim / 2; i++) {
        float ramp = ((float)i - (float)lo) / (float)(hi - lo);
        ramp = fminf(fmaxf(ramp, 0), 1);
        float f = rope->inv_freq[i], inter = 1.0f / ((float)rope->factor * (1.0f / f));
        rope->inv_freq[i] = inter * ramp + f * (1 - ramp);
    }
    if (config_has(node, "attention_factor"))
        rope->scaling = (float)attention;
    else if (mscale != 0 && mscale_all != 0)
        rope->scaling = (float)(yarn_scale(rope->factor, mscale) / yarn_scale(rope->factor, mscale_all));
    else
        rope->scaling = (float)yarn_scale(rope->factor, 1);
    return TN_OK;
}

static tn_status parse_kind(const char *type, rope_kind *kind, tn_error *err)
{
    static const struct {
        const char *name;
        rope_kind kind;
    } kinds[] = {{"default", ROPE_DEFAULT}, {"mrope", ROPE_DEFAULT}, {"linear", ROPE_LINEAR},
                 {"dynamic", ROPE_DYNAMIC}, {"llama3", ROPE_LLAMA3}, {"yarn", ROPE_YARN}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(type, kinds[i].name)) {
            *kind = kinds[i].kind;
            return TN_OK;
        }
    return tn_fail(err, TN_E_INPUT, "config.json",
                   "rope_type '%s' is not known; known are default, linear, dynamic, "
                   "llama3, yarn",
                   type);
}

/* Old files: rope_scaling beside rope_theta; new ones: rope_parameters with everything in it. */
static tn_status find_parameters(const config_node *config, const config_node **node, tn_error *err)
{
    *node = NULL;
    tn_error local = TN_ERROR_INIT;
    const char *keys[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2 && !*node; i++)
        if (config_has(config, keys[i])) {
            *node = config_child(config, keys[i], &local);
            if (!*node && local.code != TN_OK)
                return tn_fail(err, local.code, local.where, "%s", local.message);
        }
    return TN_OK;
}

tn_status rope_init(rope_params *rope, const config_node *config, int64_t dim, double default_theta, tn_error *err)
{
    memset(rope, 0, sizeof *rope);
    if (dim < 2 || dim > ROPE_MAX_DIM || dim % 2)
        return tn_fail(err, TN_E_INPUT, "config.json", "rotary size %lld is not an even number from 2 to %d",
                       (long long)dim, ROPE_MAX_DIM);
    const config_node *node = NULL;
    const char *type = "default";
    rope->dim = dim;
    rope->theta = default_theta;
    rope->factor = 1;
    rope->scaling = 1;
    int64_t max_positions = 2048, original;
    tn_status status = find_parameters(config, &node, err);
    if (status == TN_OK)
        status = config_i64(config, "max_position_embeddings", 1, INT32_MAX, &max_positions, err);
    original = max_positions;
    if (status == TN_OK)
        status = config_f64(config, "rope_theta", &rope->theta, err);
    if (status == TN_OK && node)
        status = config_f64(node, "rope_theta", &rope->theta, err);
    if (status == TN_OK && node)
        status = config_str(node, "type", &type, err);
    if (status == TN_OK && node)
        status = config_str(node, "rope_type", &type, err);
    if (status == TN_OK && node)
        status = config_i64(node, "original_max_position_embeddings", 1, INT32_MAX, &original, err);
    if (status == TN_OK)
        status = config_i64(config, "original_max_position_embeddings", 1, INT32_MAX, &original, err);
    rope->factor = (double)max_positions / (double)original;
    if (status == TN_OK && node)
        status = config_f64(node, "factor", &rope->factor, err);
    if (status == TN_OK)
        status = parse_kind(type, &rope->kind, err);
    if (status != TN_OK)
        return status;
    if (!(rope->theta > 1) || !(rope->factor > 0))
        return tn_fail(err, TN_E_INPUT, "config.json", "rope_theta %g or factor %g is out of range", rope->theta,
                       rope->factor);
    if (rope->kind == ROPE_DYNAMIC && dim < 4)
        return tn_fail(err, TN_E_INPUT, "config.json", "rope_type dynamic needs a rotary size of at least 4");
    rope->max_positions = max_positions;
    for (int64_t i = 0; i < dim / 2; i++)
        rope->inv_freq[i] = base_frequency(rope->theta, i, dim);
    if (rope->kind == ROPE_LINEAR)
        init_linear(rope);
    if (rope->kind == ROPE_LLAMA3)
        status = init_llama3(rope, node, (double)original, err);
    if (rope->kind == ROPE_YARN)
        status = init_yarn(rope, node, (double)original, err);
    return status;
}

void rope_frequencies(const rope_params *rope, int64_t length, float *inv_freq)
{
    int64_t half = rope->dim / 2;
    memcpy(inv_freq, rope->inv_freq, (size_t)half * sizeof *inv_freq);
    if (rope->kind != ROPE_DYNAMIC || length <= rope->max_positions)
        return;
    double ratio = rope->factor * (double)length / (double)rope->max_positions - (rope->factor - 1);
    double theta = rope->theta * pow(ratio, (double)rope->dim / (double)(rope->dim - 2));
    for (int64_t i = 0; i < half; i++)
        inv_freq[i] = base_frequency(theta, i, rope->dim);
}

void rope_row(const rope_params *rope, const float *inv_freq, int64_t position, float *cosine, float *sine)
{
    int64_t half = rope->dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float angle = (float)position * inv_freq[i];
        cosine[i] = cosine[half + i] = cosf(angle) * rope->scaling;
        sine[i] = sine[half + i] = sinf(angle) * rope->scaling;
    }
}
