/* Infinity in JSON. */
#include "base/json_infinity.h"

#include "base/json_memory.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char infinity[] = "Infinity", largest[] = "1.79e308";
_Static_assert(sizeof infinity == sizeof largest, "nothing behind it moves");

void json_infinity_spell(char *text, size_t size)
{
    size_t length = strlen(infinity);
    bool inside = false;
    for (size_t i = 0; i < size; i++)
        if (text[i] == '"')
            inside = !inside;
        else if (inside && text[i] == '\\')
            i++;
        else if (!inside && size - i >= length && !memcmp(text + i, infinity, length))
            memcpy(text + i, largest, length);
}

double json_infinity(const char *word)
{
    bool minus = word && word[0] == '-';
    if (!word || strcmp(word + minus, infinity))
        return 0;
    return minus ? -strtod(largest, NULL) : strtod(largest, NULL);
}

json_t *json_infinity_load(const char *path, char *text, size_t size, tn_error *err)
{
    json_error_t at;
    json_infinity_spell(text, size);
    json_memory_watch();
    json_t *json = json_loadb(text, size, 0, &at);
    if (json && !json_memory_failed())
        return json;
    if (json_memory_failed())
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    else
        tn_fail(err, TN_E_INPUT, path, "is not valid JSON: line %d, column %d: %s", at.line, at.column, at.text);
    json_decref(json);
    return NULL;
}
