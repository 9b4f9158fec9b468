/* run --schema: what the embedded model says has the form that is asked for, however it draws. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <string.h>
#include <tenon/tenon.h>

#define MODEL "models/demo"
#define SCHEMA                                                                                                         \
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, "                    \
    "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 200}, "                                             \
    "\"kind\": {\"enum\": [\"lamb\", \"ram\"]}}, \"required\": [\"name\", \"age\", \"kind\"]}"

static json_t *said(process_result r)
{
    json_error_t err;
    ck_assert_msg(r.status == 0, "%s", r.err);
    json_t *value = json_loads(r.out, 0, &err);
    ck_assert_msg(value != NULL, "%s: %s", err.text, r.out);
    return value;
}

START_TEST(objects_have_their_form)
{
    char seed[16];
    snprintf(seed, sizeof seed, "--seed=%d", _i);
    json_t *o = said(TENON(NULL, "run", MODEL, "A lamb: ", "-n", "200", "--schema", SCHEMA, seed, "--temperature=1.5"));
    const char *name = json_string_value(json_object_get(o, "name")),
               *kind = json_string_value(json_object_get(o, "kind"));
    json_int_t age = json_integer_value(json_object_get(o, "age"));
    ck_assert_ptr_nonnull(name);
    ck_assert(json_is_integer(json_object_get(o, "age")) && age >= 0 && age <= 200);
    ck_assert_msg(kind && (!strcmp(kind, "lamb") || !strcmp(kind, "ram")), "%s", kind ? kind : "no kind");
    ck_assert_uint_eq(json_object_size(o), 3);
    json_decref(o);
}
END_TEST

/* What was drafted goes through the same masks. */
START_TEST(drafts_change_nothing)
{
    const char *file = tempdir_at(tempdir_new(), "schema.json");
    tempdir_write(file, SCHEMA, strlen(SCHEMA));
    process_result plain = TENON(NULL, "run", MODEL, "A lamb: ", "-n", "200", "--schema", file, "--temperature=0");
    json_decref(said(plain));
    process_expect_output(
        TENON(NULL, "run", MODEL, "A lamb: ", "-n", "200", "--schema", file, "--temperature=0", "--speculate"),
        plain.out);
}
END_TEST

START_TEST(what_is_no_schema)
{
    process_expect_error(TENON(NULL, "run", MODEL, "a", "--schema", "{\"type\": \"strng\"}"), 4, "#", "strng", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "a", "--schema", "{\"type\": "), 4, "schema", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "a", "--schema", "/no/such/file"), 4, "/no/such/file", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "a", "--schema", "{\"not\": {}}"), 4, "not", NULL);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("run --schema", 300);
    tcase_add_loop_test(c, objects_have_their_form, 0, 4);
    suite_add(c, drafts_change_nothing, what_is_no_schema);
    return process_main();
}
