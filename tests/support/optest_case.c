/* Golden files of operations: their cases, and what these expect. */
#include "optest.h"

#include <stdio.h>

tn_safetensors *optest_open(const char *op)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/ops/%s.safetensors", op);
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    ck_assert_msg(file != NULL, "%s: %s", err.where, err.message);
    return file;
}

static bool find(const tn_safetensors *file, int number, const char *name, const char *suffix, tn_tensor *t)
{
    char key[128];
    snprintf(key, sizeof key, "%d.%s%s", number, name, suffix);
    return tn_safetensors_get(file, key, t);
}

bool optest_has(const tn_safetensors *file, int number, const char *name)
{
    tn_tensor t;
    return find(file, number, name, "", &t);
}

tn_tensor optest_get(const tn_safetensors *file, int number, const char *name, const char *suffix)
{
    tn_tensor t;
    ck_assert_msg(find(file, number, name, suffix, &t), "no tensor %d.%s%s", number, name, suffix);
    return t;
}

double optest_number(const tn_safetensors *file, int number, const char *name)
{
    tn_tensor t = optest_get(file, number, name, "");
    return optest_at(&t, 0);
}

/* The types that a case comes in, and what the names of transformers' tensors end in. */
static const struct {
    tn_dtype dtype;
    const char *suffix;
} forms[] = {{TN_F32, ""}, {TN_BF16, "_bf16"}, {TN_F16, "_f16"}};
enum { FORMS = sizeof forms / sizeof *forms };

static int form_of(tn_dtype dtype)
{
    int form = 0;
    while (form < FORMS && forms[form].dtype != dtype)
        form++;
    return form;
}

optest_case optest_cases(const char *op, const char *tensor)
{
    return (optest_case){.op = op, .tensor = tensor, .file = optest_open(op), .number = -1, .dtype = TN_F16};
}

bool optest_next(optest_case *c, int cases)
{
    int form = (form_of(c->dtype) + 1) % FORMS;
    c->number += form == 0;
    c->dtype = forms[form].dtype;
    if (optest_has(c->file, c->number, c->tensor))
        return true;
    tn_safetensors_close(c->file);
    ck_assert_msg(c->number == cases, "%s: %d cases, not %d", c->op, c->number, cases);
    return false;
}

tn_tensor optest_truth(const optest_case *c, const char *name)
{
    return optest_get(c->file, c->number, name, "");
}

tn_tensor optest_theirs(const optest_case *c, const char *name)
{
    return optest_get(c->file, c->number, name, forms[form_of(c->dtype)].suffix);
}

tn_tensor optest_input(const optest_case *c, const char *name)
{
    tn_tensor t = optest_truth(c, name);
    return optest_from(c->dtype, &t);
}

static const char *label(const optest_case *c, const char *name)
{
    static char text[128];
    snprintf(text, sizeof text, "%s, %d.%s", c->op, c->number, name);
    return text;
}

void optest_expect(const optest_case *c, const char *name, const tn_tensor *got)
{
    tn_tensor truth = optest_truth(c, name), theirs = optest_theirs(c, name);
    optest_golden(got, &truth, &theirs, label(c, name));
}

void optest_expect_grad(const optest_case *c, const char *name, const tn_tensor *got)
{
    tn_tensor truth = optest_truth(c, name);
    optest_golden_grad(got, &truth, label(c, name));
}
