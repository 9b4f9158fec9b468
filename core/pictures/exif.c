/* The orientation of a photo: what EXIF says of it, and turning it upright. */
#include "pictures/pictures.h"

#include <string.h>

typedef struct exif_block {
    const uint8_t *data;
    size_t size;
    bool big; /* end first                                                                              */
} exif_block;

/* count bytes at offset as a number; 0 outside of the block. */
static uint32_t number_at(const exif_block *e, size_t at, size_t count)
{
    uint32_t value = 0;
    if (at > e->size || count > e->size - at)
        return 0;
    for (size_t i = 0; i < count; i++)
        value = value << 8 | e->data[at + (e->big ? i : count - 1 - i)];
    return value;
}

int32_t exif_orientation(const uint8_t *exif, size_t size)
{
    enum { ORIENTATION = 0x112, ENTRY = 12 };
    exif_block e = {exif, size, size >= 2 && exif[0] == 'M'};
    if (size < 8 || (memcmp(exif, "II*\0", 4) != 0 && memcmp(exif, "MM\0*", 4) != 0))
        return 1;
    size_t at = number_at(&e, 4, 4), entries = number_at(&e, at, 2);
    for (size_t i = 0; i < entries; i++) {
        size_t entry = at + 2 + ENTRY * i;
        if (number_at(&e, entry, 2) != ORIENTATION)
            continue;
        uint32_t value = number_at(&e, entry + 8, number_at(&e, entry + 2, 2) == 3 ? 2 : 4); /* short, else long */
        return value >= 1 && value <= 8 ? (int32_t)value : 1;
    }
    return 1;
}

void exif_turn(const uint8_t *rgb, int64_t height, int64_t width, int32_t orientation, uint8_t *to)
{
    bool changed = orientation >= 5;
    /* Where the upright picture's first pixel lies, and how far it is to the next one across and down. */
    bool right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    int64_t across = right ? -3 : 3, down = (below ? -3 : 3) * width;
    const uint8_t *line = rgb + (below ? 3 * width * (height - 1) : 0) + (right ? 3 * (width - 1) : 0);
    int64_t lines = changed ? width : height, columns = changed ? height : width;
    for (int64_t y = 0; y < lines; y++) {
        const uint8_t *pixel = line + y * (changed ? across : down);
        for (int64_t x = 0; x < columns; x++, to += 3)
            memcpy(to, pixel + x * (changed ? down : across), 3);
    }
}
