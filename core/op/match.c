/* Does a kernel take a site? Its match is data, evaluated here in one fixed order, so that the first rule that fails
 * can be told with both values. */
#include "op/match.h"

#include "op/op.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BIT(axis) (1u << (axis))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- is a declaration complete? ------------------------------------------------------------ */

static tn_status validate_axes(const tn_impl *impl, tn_error *err)
{
    const op_row *row = op_find(impl->op);
    for (int axis = 0; axis < TN_AXIS_MAX; axis++) {
        uint64_t takes = impl->match.takes[axis];
        bool needed = row->needs & BIT(axis), allowed = row->allows & BIT(axis);
        uint64_t values = (UINT64_C(2) << op_last_value((tn_axis)axis)) - 2;
        if (takes && !values)
            return tn_fail(err, TN_E_KERNEL, NULL, "match: axis %d is unknown to this host; use a newer tenon", axis);
        if (needed && !takes)
            return tn_fail(err, TN_E_KERNEL, NULL, "match is open-ended: %s must name the %s values that it takes",
                           row->name, tn_axis_name((tn_axis)axis));
        if (takes && !needed && !allowed)
            return tn_fail(err, TN_E_KERNEL, NULL, "match: %s has no %s; leave it empty", row->name,
                           tn_axis_name((tn_axis)axis));
        if (takes & ~values)
            return tn_fail(err, TN_E_KERNEL, NULL, "match: %s takes a value that does not exist (bits 0x%" PRIx64 ")",
                           tn_axis_name((tn_axis)axis), takes & ~values);
    }
    return TN_OK;
}

/* The lowest bit. */
static uint64_t first_bit(uint64_t bits)
{
    return bits & (~bits + 1);
}

static tn_status validate_features(const tn_impl *impl, tn_error *err)
{
    uint64_t strange = impl->match.features & ~op_find(impl->op)->features;
    if (strange)
        return tn_fail(err, TN_E_KERNEL, NULL, "match: %s has no %s (features 0x%" PRIx64 "); leave it out",
                       tn_op_name(impl->op), tn_feature_name(first_bit(strange)), strange);
    return TN_OK;
}

static tn_status validate_dims(const tn_impl *impl, tn_error *err)
{
    const tn_match *match = &impl->match;
    const op_row *row = op_find(impl->op);
    if (match->dim_count > TN_DIM_MAX || (match->dim_count > 0 && !match->dims))
        return tn_fail(err, TN_E_KERNEL, NULL, "match: %u dim rules, and no such list; set .dims and .dim_count",
                       match->dim_count);
    for (uint32_t i = 0; i < match->dim_count; i++) {
        const tn_dim_rule *r = &match->dims[i];
        if (!op_knows_dim(r->dim))
            return tn_fail(err, TN_E_KERNEL, NULL, "match: dim %d of rule %u is unknown", (int)r->dim, i);
        if (!((row->dims | row->more_dims) & BIT(r->dim)))
            return tn_fail(err, TN_E_KERNEL, NULL,
                           "match: %s has no %s, so a rule for it decides nothing; leave it out", row->name,
                           tn_dim_name(r->dim));
        if (r->min < 0 || r->max < 0 || r->multiple < 0 || (r->max > 0 && r->min > r->max))
            return tn_fail(err, TN_E_KERNEL, NULL,
                           "match: the rule for %s allows nothing: min %" PRId64 ", max %" PRId64 ", multiple %" PRId64,
                           tn_dim_name(r->dim), r->min, r->max, r->multiple);
    }
    return TN_OK;
}

static tn_status validate_tolerance(const tn_tolerance *t, const char *name, tn_error *err)
{
    const struct {
        const char *dtype;
        double ulps, most;
    } all[] = {{"f32", t->ulps_f32, TN_TOLERANCE_MAX_F32},
               {"bf16", t->ulps_bf16, TN_TOLERANCE_MAX_BF16},
               {"f16", t->ulps_f16, TN_TOLERANCE_MAX_F16}};
    for (size_t i = 0; i < COUNT(all); i++) {
        if (!isfinite(all[i].ulps) || all[i].ulps < 0)
            return tn_fail(err, TN_E_KERNEL, NULL, "%s: must be finite and not negative", name);
        if (all[i].ulps > all[i].most)
            return tn_fail(err, TN_E_KERNEL, NULL, "%s of %g ulps in %s checks nothing; at most %g", name, all[i].ulps,
                           all[i].dtype, all[i].most);
    }
    return TN_OK;
}

tn_status match_validate(const tn_impl *impl, tn_error *err)
{
    const op_row *row = op_find(impl->op);
    if (!row || row->kind == OP_STEP)
        return tn_fail(err, TN_E_KERNEL, NULL, "unknown op %d", (int)impl->op);
    if (row->kind == OP_LATER)
        return tn_fail(err, TN_E_KERNEL, NULL, "%s: nothing performs this operation yet; use a newer tenon", row->name);
    if (!impl->forward)
        return tn_fail(err, TN_E_KERNEL, NULL, "%s has no forward; it needs one", tn_op_name(impl->op));
    uint32_t unknown = impl->optional_outputs & ~op_optional_outputs(impl->op);
    if (unknown)
        return tn_fail(err, TN_E_KERNEL, NULL, "optional_outputs: %s has no optional outputs with the bits 0x%x",
                       row->name, unknown);
    uint64_t new = impl->traits & ~(TN_KEEPS_STATE | TN_SAME_BITS | TN_ROUNDS_INPUTS);
    if (new)
        return tn_fail(err, TN_E_KERNEL, NULL, "traits: this host knows no bits 0x%llx; use a newer tenon",
                       (unsigned long long)new);
    tn_status status = validate_tolerance(&impl->tolerance, "tolerance", err);
    if (status == TN_OK)
        status = validate_tolerance(&impl->gradient_tolerance, "gradient_tolerance", err);
    if (status == TN_OK)
        status = validate_axes(impl, err);
    if (status == TN_OK)
        status = validate_features(impl, err);
    return status == TN_OK ? validate_dims(impl, err) : status;
}

/* ---- does it take a site? ------------------------------------------------------------------- */

static tn_status __attribute__((format(printf, 3, 4))) decline(char *reason, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reason, size, format, args);
    va_end(args);
    return TN_DECLINED;
}

static void append(char *list, size_t size, const char *name)
{
    size_t used = strlen(list);
    if (used < size)
        snprintf(list + used, size - used, "%s%s", used ? ", " : "", name);
}

/* "silu, gelu" */
static void value_list(tn_axis axis, uint64_t takes, char *list, size_t size)
{
    list[0] = '\0';
    for (int32_t v = 1; v < 64; v++)
        if (takes & TN_TAKES(v))
            append(list, size, tn_axis_value_name(axis, v));
}

static void feature_list(uint64_t features, char *list, size_t size)
{
    snprintf(list, size, "%s", features ? "" : "none");
    for (int i = 0; i < 64; i++)
        if (features & (UINT64_C(1) << i))
            append(list, size, tn_feature_name(UINT64_C(1) << i));
}

static tn_status match_axis(const tn_site *site, const tn_impl *impl, tn_axis axis, char *reason, size_t size)
{
    int32_t has = site->meaning[axis];
    uint64_t takes = impl->match.takes[axis];
    if (axis == TN_AXIS_WEIGHT && takes == 0) {
        int32_t dtype = site->meaning[TN_AXIS_DTYPE];
        if (has == 0 || has == dtype)
            return TN_OK;
        return decline(reason, size, "weight: site has %s, kernel takes %s (the dtype of the activations)",
                       tn_axis_value_name(axis, has), tn_axis_value_name(axis, dtype));
    }
    bool needed = op_find(impl->op)->needs & BIT(axis);
    if (takes == 0 || (has == 0 && !needed))
        return TN_OK;
    if (has > 0 && has < 64 && (takes & TN_TAKES(has)))
        return TN_OK;
    char list[256];
    value_list(axis, takes, list, sizeof list);
    return decline(reason, size, "%s: site has %s, kernel takes %s", tn_axis_name(axis),
                   has ? tn_axis_value_name(axis, has) : "none", list);
}

/* A dimension that the site does not have is 0 and cannot be wrong. */
static tn_status match_dim(const tn_site *site, const tn_dim_rule *r, char *reason, size_t size)
{
    int64_t has = site->dim[r->dim];
    const char *name = tn_dim_name(r->dim);
    if (has == 0)
        return TN_OK;
    if (has < r->min)
        return decline(reason, size, "%s: site has %" PRId64 ", kernel takes at least %" PRId64, name, has, r->min);
    if (r->max > 0 && has > r->max)
        return decline(reason, size, "%s: site has %" PRId64 ", kernel takes at most %" PRId64, name, has, r->max);
    if (r->multiple > 0 && has % r->multiple != 0)
        return decline(reason, size, "%s: site has %" PRId64 ", kernel takes multiples of %" PRId64, name, has,
                       r->multiple);
    return TN_OK;
}

/* A site that hangs on roundings is taken by whoever has all of them. */
static tn_status match_features(const tn_site *site, const tn_impl *impl, char *reason, size_t size)
{
    int32_t dtype = site->meaning[TN_AXIS_DTYPE];
    double ulps = dtype == TN_BF16 ? impl->tolerance.ulps_bf16 : dtype == TN_F16 ? impl->tolerance.ulps_f16 : 0;
    if (site->features & ~(impl->match.features | TN_HAS_ROUNDINGS)) {
        char has[256], takes[256];
        feature_list(site->features & ~TN_HAS_ROUNDINGS, has, sizeof has);
        feature_list(impl->match.features, takes, sizeof takes);
        return decline(reason, size, "features: site has %s, kernel takes %s", has, takes);
    }
    if (site->features & TN_HAS_ROUNDINGS && ulps > 0)
        return decline(reason, size,
                       "roundings: what follows the site hangs on them, and the kernel may be %g ulps off in %s", ulps,
                       tn_dtype_name((tn_dtype)dtype));
    return TN_OK;
}

tn_status match_site(const tn_site *site, const tn_impl *impl, char *reason, size_t reason_size)
{
    static const tn_axis order[] = {TN_AXIS_DTYPE, TN_AXIS_WEIGHT, TN_AXIS_NORM,  TN_AXIS_ROPE,
                                    TN_AXIS_ACT,   TN_AXIS_SCORE,  TN_AXIS_LAYOUT};
    const tn_match *m = &impl->match;
    if (reason_size > 0)
        reason[0] = '\0';
    if (site->op != impl->op)
        return decline(reason, reason_size, "op: site has %s, kernel takes %s", tn_op_name(site->op),
                       tn_op_name(impl->op));
    tn_status status = TN_OK;
    for (size_t i = 0; status == TN_OK && i < COUNT(order); i++)
        status = match_axis(site, impl, order[i], reason, reason_size);
    if (status == TN_OK)
        status = match_features(site, impl, reason, reason_size);
    for (uint32_t i = 0; status == TN_OK && i < m->dim_count; i++)
        status = match_dim(site, &m->dims[i], reason, reason_size);
    if (status == TN_OK && m->class_glob && fnmatch(m->class_glob, site->class_name ? site->class_name : "", 0) != 0)
        status = decline(reason, reason_size, "class: site has %s, kernel takes %s",
                         site->class_name ? site->class_name : "none", m->class_glob);
    return status;
}
