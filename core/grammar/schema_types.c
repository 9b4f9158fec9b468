/* Types of a schema. */
#include "grammar/schema.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"null", "boolean", "object", "array", "string", "number", "integer"};

static uint32_t type_named(schema *s, const json_t *name)
{
    for (uint32_t i = 0; json_is_string(name) && i < sizeof names / sizeof *names; i++)
        if (strcmp(json_string_value(name), names[i]) == 0)
            return 1U << i;
    if (json_is_string(name))
        schema_fail(s, "type", "'%.40s' is no type", json_string_value(name));
    else
        schema_fail(s, "type", "a type is a string, or a list of strings");
    return 0;
}

/* What the keywords are about; all types where they are about none. */
static uint32_t spoken_of(const json_t *node)
{
    static const struct {
        const char *word;
        uint32_t type;
    } words[] = {{"properties", SCHEMA_OBJECT},
                 {"required", SCHEMA_OBJECT},
                 {"additionalProperties", SCHEMA_OBJECT},
                 {"items", SCHEMA_ARRAY},
                 {"prefixItems", SCHEMA_ARRAY},
                 {"minItems", SCHEMA_ARRAY},
                 {"maxItems", SCHEMA_ARRAY},
                 {"minLength", SCHEMA_STRING},
                 {"maxLength", SCHEMA_STRING},
                 {"pattern", SCHEMA_STRING},
                 {" patterns", SCHEMA_STRING},
                 {"format", SCHEMA_STRING},
                 {"minimum", SCHEMA_NUMBER},
                 {"maximum", SCHEMA_NUMBER},
                 {"exclusiveMinimum", SCHEMA_NUMBER},
                 {"exclusiveMaximum", SCHEMA_NUMBER},
                 {"multipleOf", SCHEMA_NUMBER}};
    uint32_t types = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (json_object_get(node, words[i].word))
            types |= words[i].type;
    return types ? types : SCHEMA_ANY;
}

uint32_t schema_types(schema *s, const json_t *node)
{
    const json_t *type = json_object_get(node, "type");
    uint32_t types = 0;
    if (!type)
        return spoken_of(node);
    if (!json_is_array(type))
        return type_named(s, type);
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_named(s, json_array_get(type, i));
    if (types == 0)
        schema_fail(s, "type", "no type is left");
    return types & SCHEMA_NUMBER ? types & ~(uint32_t)SCHEMA_INTEGER : types;
}

bool schema_types_value(uint32_t types, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return types & SCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return types & SCHEMA_BOOLEAN;
    case JSON_OBJECT:
        return types & SCHEMA_OBJECT;
    case JSON_ARRAY:
        return types & SCHEMA_ARRAY;
    case JSON_STRING:
        return types & SCHEMA_STRING;
    case JSON_INTEGER:
        return types & (SCHEMA_NUMBER | SCHEMA_INTEGER);
    case JSON_REAL:
        return types & SCHEMA_NUMBER ||
               (types & SCHEMA_INTEGER && json_real_value(value) == floor(json_real_value(value)));
    }
    return false;
}

/* The values of const or enum; NULL: other values are allowed, too. A new reference. */
static json_t *values_of(const json_t *node)
{
    json_t *one = json_object_get(node, "const");
    return one ? json_pack("[O]", one) : json_incref(json_object_get(node, "enum"));
}

static bool values_apart(schema *s, const json_t *a, const json_t *b)
{
    if (!schema_spend(s, json_array_size(a) * json_array_size(b)))
        return false;
    for (size_t i = 0; i < json_array_size(a); i++)
        for (size_t k = 0; k < json_array_size(b); k++)
            if (json_equal(json_array_get(a, i), json_array_get(b, k)))
                return false;
    return true;
}

/* Where the types are not named, those of the keywords are no bound, but those of values are. */
static uint32_t bounds(schema *s, const json_t *node, const json_t *values)
{
    static const uint32_t each[] = {SCHEMA_NULL,  SCHEMA_BOOLEAN, SCHEMA_OBJECT,
                                    SCHEMA_ARRAY, SCHEMA_STRING,  SCHEMA_NUMBER};
    uint32_t types = json_object_get(node, "type") ? schema_types(s, node) : SCHEMA_ANY, of_values = 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        for (size_t k = 0; k < sizeof each / sizeof *each; k++)
            of_values |= schema_types_value(each[k], json_array_get(values, i)) ? each[k] : 0;
    types |= types & SCHEMA_INTEGER ? SCHEMA_NUMBER : 0;
    return (values ? types & of_values : types) & SCHEMA_ANY;
}

/* Is it in that array of names? */
static bool lists(const json_t *required, const char *name)
{
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *other = json_string_value(json_array_get(required, i));
        if (other && strcmp(other, name) == 0)
            return true;
    }
    return false;
}

/* A property that both must have, with values that differ. */
static bool told_by_property(schema *s, json_t *a, json_t *b)
{
    const char *name;
    json_t *one, *properties = json_object_get(a, "properties");
    size_t required = json_array_size(json_object_get(a, "required")) + json_array_size(json_object_get(b, "required"));
    if (!schema_spend(s, json_object_size(properties) * required))
        return false;
    json_object_foreach (properties, name, one) {
        json_t *other = json_object_get(json_object_get(b, "properties"), name);
        if (!other || !lists(json_object_get(a, "required"), name) || !lists(json_object_get(b, "required"), name))
            continue;
        json_t *x = values_of(one), *y = values_of(other);
        bool apart = x && y && values_apart(s, x, y);
        json_decref(x);
        json_decref(y);
        if (apart)
            return true;
    }
    return false;
}

bool schema_types_apart(schema *s, json_t *a, json_t *b)
{
    enum { PAIR_WORK = 16 }; /* about what two without values take */
    if (!json_is_object(a) || !json_is_object(b))
        return json_is_false(a) || json_is_false(b);
    json_t *x = values_of(a), *y = values_of(b);
    schema_spend(s, PAIR_WORK + json_array_size(x) + json_array_size(y));
    uint32_t common = bounds(s, a, x) & bounds(s, b, y);
    bool apart =
        common == 0 || (x && y && values_apart(s, x, y)) || (common == SCHEMA_OBJECT && told_by_property(s, a, b));
    json_decref(x);
    json_decref(y);
    return apart;
}
