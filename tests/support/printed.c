/* What the program printed as JSON. */
#include "printed.h"

#include "suite.h"

static void release(void *root)
{
    json_decref(root);
}

json_t *printed_text(const char *text)
{
    json_error_t err;
    json_t *root = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &err);
    ck_assert_msg(root != NULL, "%s in %s", err.text, text);
    suite_keep(root, release);
    return root;
}

json_t *printed_json(const process_result *r, int status)
{
    ck_assert_msg(r->status == status, "status %d: %s%s", r->status, r->out, r->err);
    return printed_text(r->out);
}

const char *printed_string(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    ck_assert_msg(value != NULL, "no text '%s'", key);
    return value;
}

double printed_number(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_number(json_object_get(object, key)), "no number '%s'", key);
    return json_number_value(json_object_get(object, key));
}

int64_t printed_count(const json_t *object, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "no integer '%s'", key);
    return json_integer_value(json_object_get(object, key));
}
