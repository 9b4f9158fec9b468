/* Infinity in JSON. */
#include "base/json_infinity.h"

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
