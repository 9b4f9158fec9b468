/* Files that messages of a conversation bring along. */
#include "attached.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static void drop(attached *a, attached_list *list, size_t count)
{
    for (; count > 0; count--)
        free(list->name[--list->count]);
    tn_media_free(a->media);
    a->media = NULL;
    a->state++;
}

void attached_drop(attached *a, size_t images, size_t sounds)
{
    if (images + sounds > 0) {
        drop(a, &a->images, images);
        drop(a, &a->sounds, sounds);
    }
}

void attached_close(attached *a)
{
    drop(a, &a->images, a->images.count);
    drop(a, &a->sounds, a->sounds.count);
    free(a->images.name);
    free(a->sounds.name);
    *a = (attached){0};
}

tn_status attached_add(attached *a, const char *name, size_t length, bool sound, tn_error *err)
{
    attached_list *list = sound ? &a->sounds : &a->images;
    char *own = strndup(name, length), **more = realloc(list->name, (list->count + 1) * sizeof *more);
    if (more)
        list->name = more;
    if (!own || !more) {
        free(own);
        return tn_fail(err, TN_E_MEMORY, "conversation", "out of memory; close other programs");
    }
    list->name[list->count++] = own;
    drop(a, list, 0);
    return TN_OK;
}

tn_status attached_read(attached *a, const tn_model *model, tn_error *err)
{
    if (a->media || a->images.count + a->sounds.count == 0)
        return TN_OK;
    a->media = tn_media_files(model, (const char *const *)a->images.name, (int64_t)a->images.count,
                              (const char *const *)a->sounds.name, (int64_t)a->sounds.count, err);
    return a->media ? TN_OK : err->code;
}

/* ---- words ------------------------------------------------------------------------------------------- */

static const struct {
    const char *suffix;
    bool sound;
} suffixes[] = {{".png", false}, {".jpg", false}, {".jpeg", false}, {".webp", false}, {".wav", true},
                {".flac", true}, {".ogg", true},  {".oga", true},   {".opus", true},  {".mp3", true}};

static bool is_known(const char *name, size_t length, bool *sound)
{
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t size = strlen(suffixes[i].suffix);
        if (length > size && strncasecmp(name + length - size, suffixes[i].suffix, size) == 0) {
            *sound = suffixes[i].sound;
            return true;
        }
    }
    return false;
}

static bool is_file(const char *name, size_t length)
{
    char path[4096];
    struct stat s;
    if (length >= sizeof path)
        return false;
    memcpy(path, name, length);
    path[length] = '\0';
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

/* Up to a blank or a NUL. */
static size_t word_length(const char *text, size_t length)
{
    size_t n = 0;
    while (n < length && !strchr(" \t\r\n", text[n]))
        n++;
    return n;
}

bool attached_find(const char *text, size_t length, size_t from, attached_word *word)
{
    for (size_t i = from; i < length; i++) {
        if (text[i] != '@' || (i > 0 && !strchr(" \t\r\n", text[i - 1])))
            continue;
        *word = (attached_word){i, word_length(text + i + 1, length - i - 1), false};
        while (word->length > 0 && !is_known(text + i + 1, word->length, &word->sound) &&
               strchr(".,;:!?)", text[i + word->length]))
            word->length--;
        if (is_known(text + i + 1, word->length, &word->sound) && is_file(text + i + 1, word->length))
            return true;
    }
    return false;
}
