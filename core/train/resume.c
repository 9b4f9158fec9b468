/* What a training goes on from, as a .safetensors file: "steps", the number of those that were taken and of the calls
 * in which something was dropped, and of each parameter "value.NAME", "first.NAME" and "second.NAME", itself and its
 * moments in the type that they are trained in, as they lie in memory, flat. What no step has changed is the model's:
 * its "value.NAME" has no elements. */
#include "train/resume.h"

#include "train/replicas.h"

#include "base/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE, FIRST, SECOND, KINDS };

static const char *const kinds[] = {"value.", "first.", "second."};

/* "KIND.NAME". Owned: free(); NULL: out of memory. */
static char *join(int kind, const char *name)
{
    char *joined;
    return asprintf(&joined, "%s%s", kinds[kind], name) < 0 ? NULL : joined;
}

/* ---- saving ----------------------------------------------------------------------------------------- */

static tn_status add(tn_named_tensor *to, char **name, int kind, const train_param *p, const void *data, tn_dtype dtype,
                     tn_error *err)
{
    int64_t count = data ? params_count(p) : 0;
    *name = join(kind, p->name);
    if (!*name)
        return tn_fail(err, TN_E_MEMORY, p->name, "out of memory");
    *to = (tn_named_tensor){*name, tn_tensor_dense((void *)(uintptr_t)data, dtype, 1, &count)};
    return TN_OK;
}

static tn_status write_state(const train_params *params, const optimiser *o, const char *file, tn_error *err)
{
    size_t count = 0;
    int64_t steps[2] = {o->steps, o->drawn};
    tn_named_tensor *tensors = calloc(KINDS * params->count + 1, sizeof *tensors);
    char **names = calloc(KINDS * params->count + 1, sizeof *names);
    tn_status status = tensors && names ? TN_OK : tn_fail(err, TN_E_MEMORY, file, "out of memory for its list");
    for (size_t i = 0; i < params->count && status == TN_OK; i++) {
        const train_param *p = &params->at[i];
        ptrdiff_t at = p->sums - params->sums;
        const void *data[] = {p->moved ? p->data : NULL, o->first + at, o->second + at};
        for (int kind = 0; kind < (p->moved ? KINDS : 1) && status == TN_OK; kind++, count++)
            status = add(&tensors[count], &names[count], kind, p, data[kind], p->dtype, err);
    }
    if (status == TN_OK) {
        tensors[count] = (tn_named_tensor){"steps", tn_tensor_dense(steps, TN_I64, 1, (int64_t[]){2})};
        status = tn_safetensors_write(file, tensors, count + 1, err);
    }
    for (size_t i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
    free(tensors);
    return status;
}

tn_status resume_save(const train_params *params, const optimiser *o, const char *file, tn_error *err)
{
    tn_status status = replicas_collect(params, o, err);
    if (status == TN_OK && replicas_writes(params))
        status = write_state(params, o, file, err);
    replicas_forget(params, o);
    return replicas_agree(params, status, err);
}

/* ---- loading ---------------------------------------------------------------------------------------- */

/* Of a parameter, by kind: data NULL where the file has none. */
typedef struct found {
    tn_tensor of[KINDS];
} found;

/* One tensor that must be there, of so many elements or (optional) of none. */
static tn_status look_up(const tn_safetensors *state, const char *file, int kind, const train_param *p, bool optional,
                         tn_tensor *t, tn_error *err)
{
    char *name = join(kind, p->name);
    tn_status status = TN_OK;
    if (!name)
        status = tn_fail(err, TN_E_MEMORY, file, "out of memory");
    else if (!tn_safetensors_get(state, name, t))
        status = tn_fail(err, TN_E_INPUT, file, "has no '%s': it is the state of another model, or of none", name);
    else if (t->dtype != p->dtype || (tn_tensor_count(t) != params_count(p) && !(optional && tn_tensor_count(t) == 0)))
        status = tn_fail(err, TN_E_INPUT, file, "'%s' has %lld elements of %s, and %lld of %s are trained", name,
                         (long long)tn_tensor_count(t), tn_dtype_name(t->dtype), (long long)params_count(p),
                         tn_dtype_name(p->dtype));
    free(name);
    return status;
}

static tn_status find_all(const tn_safetensors *state, const char *file, const train_params *params, found *all,
                          size_t *count, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < params->count && status == TN_OK; i++) {
        const train_param *p = &params->at[i];
        status = look_up(state, file, VALUE, p, !p->moved, &all[i].of[VALUE], err);
        ++*count;
        if (status != TN_OK || tn_tensor_count(&all[i].of[VALUE]) == 0) {
            all[i].of[VALUE].data = NULL;
            continue;
        }
        status = look_up(state, file, FIRST, p, false, &all[i].of[FIRST], err);
        if (status == TN_OK)
            status = look_up(state, file, SECOND, p, false, &all[i].of[SECOND], err);
        *count += 2;
    }
    return status;
}

static bool is_known(const train_params *params, const char *name)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < params->count && !strncmp(name, kinds[kind], strlen(kinds[kind])); i++)
            if (!strcmp(name + strlen(kinds[kind]), params->at[i].name))
                return true;
    return !strcmp(name, "steps");
}

static tn_status check_rest(const tn_safetensors *state, const char *file, const train_params *params, size_t count,
                            tn_error *err)
{
    size_t all = tn_safetensors_count(state);
    for (size_t i = 0; all > count && i < all; i++)
        if (!is_known(params, tn_safetensors_name(state, i)))
            return tn_fail(err, TN_E_INPUT, file, "'%s' is of no parameter that is trained here",
                           tn_safetensors_name(state, i));
    return TN_OK;
}

static tn_status read_steps(const tn_safetensors *state, const char *file, int64_t steps[2], tn_error *err)
{
    tn_tensor t;
    if (!tn_safetensors_get(state, "steps", &t) || t.dtype != TN_I64 || tn_tensor_count(&t) != 2)
        return tn_fail(err, TN_E_INPUT, file, "is no state of a training: it has no 'steps'");
    memcpy(steps, t.data, 2 * sizeof *steps);
    for (int i = 0; i < 2; i++)
        if (steps[i] < 0 || steps[i] > INT64_C(1) << 53)
            return tn_fail(err, TN_E_INPUT, file, "'steps' holds %lld", (long long)steps[i]);
    return TN_OK;
}

static void take(train_param *p, const train_params *params, const optimiser *o, const tn_model *model, const found *f)
{
    ptrdiff_t at = p->sums - params->sums;
    size_t bytes = (size_t)params_count(p) * tn_dtype_size(p->dtype);
    p->moved = f->of[VALUE].data;
    if (!p->moved)
        return;
    params_unlock(params, p);
    memcpy((void *)(uintptr_t)p->data, f->of[VALUE].data, bytes);
    params_round(params, p);
    params_lock(params, p, model);
    memcpy(o->first + at, f->of[FIRST].data, bytes);
    memcpy(o->second + at, f->of[SECOND].data, bytes);
}

static tn_status read_state(train_params *params, optimiser *o, const tn_model *model, const char *file, tn_error *err)
{
    int64_t steps[2] = {0};
    size_t count = 1;
    tn_error why = TN_ERROR_INIT;
    tn_safetensors *state = tn_safetensors_open(file, &why);
    if (!state)
        return tn_fail(err, why.code, why.where, "%s", why.message);
    found *all = calloc(params->count + 1, sizeof *all);
    tn_status status = all ? TN_OK : tn_fail(err, TN_E_MEMORY, file, "out of memory for its list");
    if (status == TN_OK)
        status = read_steps(state, file, steps, err);
    if (status == TN_OK)
        status = find_all(state, file, params, all, &count, err);
    if (status == TN_OK)
        status = check_rest(state, file, params, count, err);
    if (status == TN_OK)
        status = optimiser_check(model, params, err);
    if (status == TN_OK)
        status = optimiser_open(o, params, err);
    if (status == TN_OK)
        status = tn_safetensors_check(state, err);
    if (status == TN_OK) {
        params_clear(params);
        for (size_t i = 0; i < params->count; i++)
            take(&params->at[i], params, o, model, &all[i]);
        o->steps = steps[0];
        o->drawn = steps[1];
        status = tn_safetensors_check(state, err);
    }
    free(all);
    tn_safetensors_close(state);
    return status;
}

tn_status resume_load(train_params *params, optimiser *o, const tn_model *model, const char *file, tn_error *err)
{
    tn_status status = replicas_writes(params) ? read_state(params, o, model, file, err) : TN_OK;
    status = replicas_agree(params, status, err);
    return status == TN_OK ? replicas_deal(params, o, model, err) : status;
}
