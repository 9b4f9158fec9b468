/* Values by a schema; see splitter_value.h. */
#include "splitter_value.h"

#include "splitter_json.h"
#include "splitter_literal.h"

#include <string.h>

enum {
    IS_STRING = 1,
    IS_INTEGER = 2,
    IS_NUMBER = 4,
    IS_BOOLEAN = 8,
    IS_NULL = 16,
    IS_ARRAY = 32,
    IS_OBJECT = 64,
    LEVELS = 8, /* of schemas in one another                                                              */
    MOST = 64   /* schemas that are looked at                                                             */
};

static int type_named(const json_t *name)
{
    static const struct {
        const char *name;
        int type;
    } types[] = {{"string", IS_STRING},   {"integer", IS_INTEGER}, {"number", IS_INTEGER | IS_NUMBER},
                 {"boolean", IS_BOOLEAN}, {"null", IS_NULL},       {"array", IS_ARRAY},
                 {"object", IS_OBJECT}};
    for (size_t i = 0; i < sizeof types / sizeof types[0] && json_is_string(name); i++)
        if (strcmp(json_string_value(name), types[i].name) == 0)
            return types[i].type;
    return 0;
}

static int type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return IS_STRING;
    case JSON_INTEGER:
        return IS_INTEGER;
    case JSON_REAL:
        return IS_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return IS_BOOLEAN;
    case JSON_NULL:
        return IS_NULL;
    case JSON_ARRAY:
        return IS_ARRAY;
    default:
        return IS_OBJECT;
    }
}

/* What is looked at of a schema, which may be one of many that refer to each other. */
typedef struct walk {
    const json_t *root;
    int left;
} walk;

static int types_of(walk *w, const json_t *schema, int level);

/* "#/$defs/name", and no other. */
static const json_t *referred(const walk *w, const json_t *schema)
{
    static const char *const places[] = {"$defs", "definitions"};
    const char *text = json_string_value(json_object_get(schema, "$ref"));
    for (size_t i = 0; text && i < 2; i++) {
        size_t length = strlen(places[i]);
        if (strncmp(text, "#/", 2) == 0 && strncmp(text + 2, places[i], length) == 0 && text[length + 2] == '/')
            return json_object_get(json_object_get(w->root, places[i]), text + length + 3);
    }
    return NULL;
}

static int types_of_list(walk *w, const json_t *list, int level)
{
    int types = 0;
    size_t i;
    json_t *each;
    json_array_foreach (list, i, each)
        types |= types_of(w, each, level);
    return types;
}

/* 0: it does not say. */
static int types_of(walk *w, const json_t *schema, int level)
{
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"), *each;
    if (!json_is_object(schema) || level == LEVELS || !w->left)
        return 0;
    w->left--;
    int types = type_named(type);
    size_t i;
    json_array_foreach ((json_t *)type, i, each)
        types |= type_named(each);
    if (types)
        return types;
    json_array_foreach (values, i, each)
        types |= type_of(each);
    if ((each = json_object_get(schema, "const")))
        types |= type_of(each);
    if ((each = referred(w, schema)))
        types |= types_of(w, each, level + 1);
    types |= types_of_list(w, json_object_get(schema, "anyOf"), level + 1);
    types |= types_of_list(w, json_object_get(schema, "oneOf"), level + 1);
    return types | types_of_list(w, json_object_get(schema, "allOf"), level + 1);
}

static int types_of_argument(const json_t *function, const char *key, size_t length)
{
    const json_t *root = json_object_get(function, "parameters"), *properties = json_object_get(root, "properties");
    walk w = {root, MOST};
    const char *name;
    json_t *each;
    json_object_foreach ((json_t *)properties, name, each)
        if (strlen(name) == length && memcmp(name, key, length) == 0)
            return types_of(&w, each, 0);
    return 0;
}

/* The type of a text of JSON; 0: it is none. A number without point and exponent is an integer, however long. */
static int type_of_text(const char *text, size_t length, bool *memory)
{
    json_t *json = splitter_json_load(text, length, memory);
    int type = json ? type_of(json) : 0;
    if (type == IS_NUMBER && !memchr(text, '.', length) && !memchr(text, 'e', length) && !memchr(text, 'E', length))
        type = IS_INTEGER;
    json_decref(json);
    return type;
}

bool splitter_value_add(splitter_text *out, const json_t *function, const char *key, size_t key_length,
                        const char *value, size_t length)
{
    int types = types_of_argument(function, key, key_length);
    if (types == IS_STRING)
        return splitter_text_add_string(out, value, length);
    const char *text = value;
    size_t size = length, before = out->length;
    while (size && splitter_space(*text))
        text++, size--;
    while (size && splitter_space(text[size - 1]))
        size--;
    bool memory = true;
    int type = size ? type_of_text(text, size, &memory) : 0;
    if (type && (!types || types & type))
        return splitter_text_add(out, text, size);
    /* Some templates show values as Python does. */
    if (!type && types && splitter_literal_add(out, LITERAL_VALUE, text, size, NULL, &memory)) {
        if (types & type_of_text(out->bytes + before, out->length - before, &memory))
            return true;
        out->length = before;
    }
    return memory && splitter_text_add_string(out, value, length);
}
