/* Made-up sites that an implementation takes. Not every combination, but every value of everything: site i has value i
 * of each axis, feature and dimension, counted round and round, with a shift after each round so that other values
 * meet. */
#include "verify/verify_plugin_sites.h"

#include "base/blocks.h"
#include "base/tensor.h"
#include "base/text.h"
#include "check/draw_site.h"
#include "check/draw_weight.h"
#include "check/inputs.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* What weights have by their types. */
static const uint64_t QUANTISED = TN_HAS_SCALES | TN_HAS_ZERO_POINTS | TN_HAS_MIXED;

/* SHIFT: each dtype begins at other sizes, so that together they meet all of them. */
enum { LEAST_SITES = 12, QUICK_SITES = 7, SIZES = 16, SHIFT = 5, LEAST_SIDE = 8 };

/* A token's operations, and elements of parameters: what eager and plain C do in milliseconds. */
static const double MOST_WORK = 1e6, MOST_WORK_QUICK = 2e5, MOST_ELEMENTS = 3e5;

/* Value number i of count, round and round. */
static size_t turn(size_t i, size_t count)
{
    return (i + i / count) % count;
}

/* ---- meaning --------------------------------------------------------------------------------------------------- */

static size_t count_values(const tn_impl *impl, tn_axis axis)
{
    size_t count = 0;
    for (int32_t v = 1; v < 64; v++)
        count += (impl->match.takes[axis] & TN_TAKES(v)) && draw_site_has_value(impl->op, axis, v);
    return count;
}

static int32_t value_of(const tn_impl *impl, tn_axis axis, size_t index)
{
    for (int32_t v = 1; v < 64; v++)
        if ((impl->match.takes[axis] & TN_TAKES(v)) && draw_site_has_value(impl->op, axis, v) && index-- == 0)
            return v;
    return 0;
}

/* Types of weights that can be drawn; matrices in a stack have no blocks. */
static uint64_t weights_of(const tn_impl *impl, int32_t layout)
{
    bool stacked = layout == TN_LAYOUT_STACKED_OI || layout == TN_LAYOUT_STACKED_IO || layout == TN_LAYOUT_PAIRS_IO ||
                   layout == TN_LAYOUT_LIST_IO;
    uint64_t types = 0;
    for (int v = 1; v < TN_DTYPE_COUNT; v++)
        if (tensor_is_float((tn_dtype)v) || (!stacked && draw_weight_can((tn_dtype)v)))
            types |= TN_TAKES(v);
    return impl->match.takes[TN_AXIS_WEIGHT] & types;
}

static void give_meaning(tn_site *site, const tn_impl *impl, tn_dtype dtype, size_t i)
{
    const op_row *row = op_find(impl->op);
    /* Each dtype begins elsewhere. */
    size_t shift = (size_t)dtype - TN_F32;
    site->meaning[TN_AXIS_DTYPE] = (int32_t)dtype;
    for (int axis = 0; axis < TN_AXIS_MAX; axis++) {
        size_t count = count_values(impl, (tn_axis)axis);
        if (axis != TN_AXIS_DTYPE && axis != TN_AXIS_WEIGHT && (row->needs >> axis & 1) && count > 0)
            site->meaning[axis] = value_of(impl, (tn_axis)axis, (turn(i, count) + shift) % count);
    }
    /* Every other site has the weights that most models have: those of the type of the activations. */
    uint64_t weights = weights_of(impl, site->meaning[TN_AXIS_LAYOUT]);
    size_t at = 0, types = (size_t)__builtin_popcountll(weights);
    if (i % 2 == 0 && (weights & TN_TAKES(dtype)))
        return;
    for (int32_t v = 1; types > 0 && v < TN_DTYPE_COUNT; v++)
        if ((weights & TN_TAKES(v)) && at++ == (turn(i, types) + shift) % types)
            site->meaning[TN_AXIS_WEIGHT] = v;
}

static size_t count_feature_sets(const tn_impl *impl)
{
    size_t count = (size_t)__builtin_popcountll(impl->match.features & ~QUANTISED);
    return count == 0 ? 1 : count == 1 ? 2 : count + 2;
}

/* Scales, and zero points beside every other site's, where the type of the weights has them; every fourth site's
 * matrices are of several types. */
static void give_parts(tn_site *site, const tn_impl *impl, size_t i)
{
    tn_dtype weight = (tn_dtype)site->meaning[TN_AXIS_WEIGHT];
    if (draw_weight_has_scales(weight))
        site->features |= impl->match.features & TN_HAS_SCALES;
    if (draw_weight_has_zeros(weight) && i % 2 && site->features & TN_HAS_SCALES)
        site->features |= impl->match.features & TN_HAS_ZERO_POINTS;
    if (i % 4 == 1 && blocks_is_quantised(weight) && (impl->op == TN_OP_MLP || impl->op == TN_OP_MOE_EXPERTS))
        site->features |= impl->match.features & TN_HAS_MIXED;
}

/* None, each alone, all. */
static void give_features(tn_site *site, const tn_impl *impl, size_t i)
{
    uint64_t features = impl->match.features & ~QUANTISED;
    size_t set = turn(i, count_feature_sets(impl));
    if (set == 0)
        return;
    for (int bit = 0; bit < 64; bit++)
        if ((features >> bit & 1) && --set == 0) {
            draw_site_add(site, UINT64_C(1) << bit);
            return;
        }
    draw_site_add(site, features);
}

/* ---- dimensions ------------------------------------------------------------------------------------------------ */

/* One, small ones, around the widths of vectors and tiles, and some larger. The sides of matrices are not smaller than
 * 8: tolerances are told by the largest value of a row, and a row of few sums may cancel to next to nothing. Heads are
 * even: half of them turn with the other half. */
static const int64_t widths[SIZES] = {37, 1, 16, 33, 64, 15, 130, 8, 17, 65, 3, 32, 257, 31, 63, 1030};
static const int64_t sides[SIZES] = {40, 8, 16, 33, 64, 15, 130, 9, 17, 65, 24, 32, 257, 31, 63, 1030};
static const int64_t heads[SIZES] = {16, 8, 64, 2, 24, 80, 34, 128, 40, 4, 96, 6, 12, 32, 66, 10};
static const int64_t q_heads[] = {6, 1, 4, 8, 3, 5}, kv_heads[] = {2, 1, 4, 1, 3, 5};
static const int64_t experts[] = {9, 2, 33, 5, 16, 64}, top_k[] = {2, 1, 8, 1, 4, 6};
static const int64_t windows[] = {7, 1, 40};

#define PICK(list, i) (list)[(i) % (sizeof(list) / sizeof *(list))]

int64_t verify_plugin_sites_fit(const tn_impl *impl, tn_dim dim, int64_t size)
{
    for (uint32_t i = 0; i < impl->match.dim_count; i++) {
        const tn_dim_rule *r = &impl->match.dims[i];
        int64_t multiple = r->multiple > 1 ? r->multiple : 1;
        if (r->dim != dim)
            continue;
        size = size < r->min ? r->min : size;
        size = (size + multiple - 1) / multiple * multiple;
        if (r->max > 0 && size > r->max)
            size = r->max / multiple * multiple;
    }
    return size;
}

/* The same for rows of matrices, which are whole blocks. */
static int64_t fit_side(const tn_site *site, const tn_impl *impl, tn_dim dim, int64_t size)
{
    int64_t block = tn_dtype_block_elements((tn_dtype)site->meaning[TN_AXIS_WEIGHT]);
    int64_t down = tn_dtype_block_elements(draw_site_type(site, TN_ROLE_DOWN));
    block = down > block ? down : block;
    if (block > 1 && dim != TN_DIM_OUT)
        size = (size + block - 1) / block * block;
    return verify_plugin_sites_fit(impl, dim, size);
}

static void set_side(tn_site *site, const tn_impl *impl, tn_dim dim, int64_t size)
{
    if (site->dim[dim] > 0)
        site->dim[dim] = fit_side(site, impl, dim, size);
}

static void set(tn_site *site, const tn_impl *impl, tn_dim dim, int64_t size)
{
    if (site->dim[dim] > 0)
        site->dim[dim] = verify_plugin_sites_fit(impl, dim, size);
}

static void give_dims(tn_site *site, const tn_impl *impl, size_t i)
{
    set(site, impl, TN_DIM_WIDTH, PICK(widths, i));
    set_side(site, impl, TN_DIM_HIDDEN, PICK(sides, i));
    set_side(site, impl, TN_DIM_INTER, PICK(sides, 5 * i + 3));
    set_side(site, impl, TN_DIM_OUT, PICK(sides, 7 * i + 2));
    set_side(site, impl, TN_DIM_SHARED_INTER, PICK(sides, 3 * i + 4));
    /* A mean of many values of few columns may cancel to next to nothing, as above. */
    int64_t head = PICK(heads, i), least = impl->op == TN_OP_ATTENTION ? LEAST_SIDE : 0;
    set(site, impl, TN_DIM_HEAD, head > least ? head : least);
    bool more_values = impl->op == TN_OP_GATED_DELTA_RULE || impl->op == TN_OP_SELECTIVE_SCAN;
    set(site, impl, TN_DIM_Q_HEADS, more_values ? PICK(kv_heads, i) : PICK(q_heads, i));
    set(site, impl, TN_DIM_KV_HEADS, more_values ? PICK(q_heads, i) : PICK(kv_heads, i));
    set(site, impl, TN_DIM_TAPS, 2 + (int64_t)i % 4);
    set(site, impl, TN_DIM_EXPERTS, PICK(experts, i));
    set(site, impl, TN_DIM_TOP_K, PICK(top_k, i));
    /* The weight of the only one chosen is 1 where weights add up to 1: nothing is left of its gradient. */
    if ((site->features & TN_HAS_RENORM || site->meaning[TN_AXIS_SCORE] == TN_SCORE_TOPK_SOFTMAX) &&
        site->dim[TN_DIM_TOP_K] == 1)
        site->dim[TN_DIM_TOP_K] = verify_plugin_sites_fit(impl, TN_DIM_TOP_K, 2);
    set(site, impl, TN_DIM_WINDOW, PICK(windows, i));
    if ((op_find(impl->op)->more_dims >> TN_DIM_HEAD_V & 1) && i % 3 == 1)
        site->dim[TN_DIM_HEAD_V] = verify_plugin_sites_fit(impl, TN_DIM_HEAD_V, 24);
    if (site->features & TN_HAS_PARTIAL)
        site->dim[TN_DIM_ROTARY] =
            verify_plugin_sites_fit(impl, TN_DIM_ROTARY, (site->dim[TN_DIM_HEAD] / 2 + 1) & ~INT64_C(1));
    if (site->features & TN_HAS_GROUPS) {
        tn_dim all = impl->op == TN_OP_RMS_NORM ? TN_DIM_WIDTH : TN_DIM_EXPERTS;
        int64_t groups = site->dim[TN_DIM_GROUPS], n = site->dim[all];
        site->dim[all] = verify_plugin_sites_fit(impl, all, (n + groups - 1) / groups * groups);
    }
    if (op_find(impl->op)->nums >> TN_NUM_EPS & 1)
        site->num[TN_NUM_EPS] = i % 2 ? 1e-5 : 1e-6;
}

static double elements_of(const tn_site *site)
{
    const op_row *row = op_find(site->op);
    double count = 0;
    for (int i = 0; i < OP_PARAMS && row->param[i].shape; i++) {
        tn_tensor t = op_param_tensor(&row->param[i], site);
        if (op_is_there(&row->param[i].when, site))
            count += (double)tn_tensor_count(&t) * (double)op_param_count(&row->param[i], site);
    }
    return count;
}

/* Halves the largest of its matrices' sides until the work is bearable, or none can be smaller. */
static void bound_work(tn_site *site, const tn_impl *impl, double most)
{
    static const tn_dim which[] = {TN_DIM_HIDDEN, TN_DIM_INTER, TN_DIM_OUT, TN_DIM_SHARED_INTER};
    for (;;) {
        tn_dim largest = TN_DIM_HIDDEN;
        if (inputs_operations(site, 1) <= most && elements_of(site) <= MOST_ELEMENTS)
            return;
        for (size_t i = 0; i < sizeof which / sizeof *which; i++)
            if (site->dim[which[i]] > site->dim[largest])
                largest = which[i];
        int64_t smaller = fit_side(site, impl, largest, site->dim[largest] / 2 + 1);
        if (smaller >= site->dim[largest])
            return;
        site->dim[largest] = smaller;
    }
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

/* A class name that the implementation's pattern takes: the pattern itself, when it has no wildcard. */
static void give_class(tn_site *site, const tn_impl *impl)
{
    if (impl->match.class_glob)
        site->class_name = impl->match.class_glob;
}

static int by_work(const void *a, const void *b)
{
    double x = inputs_operations(a, 1), y = inputs_operations(b, 1);
    return (x > y) - (x < y);
}

static size_t count_sites(const tn_impl *impl, bool quick)
{
    size_t count = quick ? QUICK_SITES : LEAST_SITES, features = count_feature_sets(impl);
    for (int axis = TN_AXIS_NORM; axis < TN_AXIS_MAX && !quick; axis++) {
        size_t values = count_values(impl, (tn_axis)axis);
        count = values > count ? values : count;
    }
    size_t types = (size_t)__builtin_popcountll(weights_of(impl, 0));
    count = features > count && !quick ? features : count;
    count = types > count && !quick ? types : count;
    return count < VERIFY_PLUGIN_SITES_MAX ? count : VERIFY_PLUGIN_SITES_MAX;
}

size_t verify_plugin_sites_draw(const tn_impl *impl, tn_dtype dtype, bool quick, tn_site sites[VERIFY_PLUGIN_SITES_MAX])
{
    size_t count = count_sites(impl, quick);
    for (size_t i = 0; i < count; i++) {
        sites[i] = draw_site_plain(impl->op);
        give_meaning(&sites[i], impl, dtype, i);
        give_features(&sites[i], impl, i);
        give_parts(&sites[i], impl, i);
        give_dims(&sites[i], impl, SHIFT * ((size_t)dtype - TN_F32) + i);
        give_class(&sites[i], impl);
        bound_work(&sites[i], impl, quick ? MOST_WORK_QUICK : MOST_WORK);
    }
    qsort(sites, count, sizeof *sites, by_work);
    return count;
}

void verify_plugin_sites_text(const tn_site *site, char *text, size_t size)
{
    size_t used = text_cut(text, size, "%s", tn_dtype_name((tn_dtype)site->meaning[TN_AXIS_DTYPE]));
    for (int axis = TN_AXIS_WEIGHT; axis < TN_AXIS_MAX; axis++)
        if (site->meaning[axis] && (axis != TN_AXIS_WEIGHT || site->meaning[axis] != site->meaning[TN_AXIS_DTYPE]))
            used += text_cut(text + used, size - used, ", %s %s", tn_axis_name((tn_axis)axis),
                             tn_axis_value_name((tn_axis)axis, site->meaning[axis]));
    for (int bit = 0; bit < 64; bit++)
        if (site->features >> bit & 1)
            used += text_cut(text + used, size - used, ", %s", tn_feature_name(UINT64_C(1) << bit));
    for (int dim = 0; dim < TN_DIM_MAX; dim++)
        if (site->dim[dim] > 0)
            used +=
                text_cut(text + used, size - used, ", %s %lld", tn_dim_name((tn_dim)dim), (long long)site->dim[dim]);
}
