/* Pictures and sounds in messages: from base64 to files in memory, which the library decodes in a child process. */
#include "shown.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pictures of one request at a time: a small file may hold a large one. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* ---- base64 --------------------------------------------------------------------------------------- */

/* -1: it is none. Both alphabets are taken. */
static int value_of(char c)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    c = c == '-' ? '+' : c == '_' ? '/' : c;
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

/* The bytes that text stands for; blanks and ends of lines are skipped, and the padding may be missing. Owned; NULL
 * with *size 0: no memory, with *size 1: it is no base64. */
static unsigned char *decode(const char *text, size_t length, size_t *size)
{
    unsigned char *out = malloc(length / 4 * 3 + 4);
    size_t n = 0, digits = 0, padding = 0;
    uint32_t bits = 0;
    bool good = true;
    *size = 0;
    for (size_t i = 0; out && good && i < length; i++) {
        int value = value_of(text[i]);
        if (text[i] && strchr(" \t\r\n", text[i]))
            continue;
        padding += text[i] == '=';
        good = text[i] == '=' ? padding <= 2 && digits % 4 >= 2 : value >= 0 && padding == 0;
        if (!good || text[i] == '=')
            continue;
        bits = bits << 6 | (uint32_t)value;
        if (++digits % 4 != 1)
            out[n++] = (unsigned char)(bits >> (6 - 2 * ((digits - 1) % 4)));
    }
    if (out && good && digits % 4 != 1 && n > 0) {
        *size = n;
        return out;
    }
    *size = out != NULL;
    free(out);
    return NULL;
}

/* ---- parts ---------------------------------------------------------------------------------------- */

static bool add(shown *s, const unsigned char *data, size_t size, bool sound, const char *param, request_error *e)
{
    int file = memfd_create(sound ? "sound" : "picture", MFD_CLOEXEC);
    size_t done = 0;
    while (file >= 0 && done < size) {
        ssize_t n = write(file, data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    if (file < 0 || done < size) {
        if (file >= 0)
            close(file);
        return request_refuse(e, 503, param, "%s: there is no room for another file; try again later", param);
    }
    s->sound[s->count] = sound;
    s->file[s->count++] = file;
    return true;
}

/* The base64 of a data URL. NULL: it is none. */
static const char *data_of(const char *url)
{
    const char *comma = strchr(url, ',');
    bool data = strncasecmp(url, "data:", 5) == 0 && comma && comma - url >= 12;
    return data && strncasecmp(comma - 7, ";base64", 7) == 0 ? comma + 1 : NULL;
}

static const char *text_of(const json_t *part, const char *type, const char *member)
{
    const json_t *inner = json_object_get(part, type);
    return json_string_value(json_is_object(inner) ? json_object_get(inner, member) : inner);
}

json_t *shown_take(shown *s, const json_t *part, const char *param, request_error *e)
{
    bool sound = strcmp(json_string_value(json_object_get(part, "type")), "input_audio") == 0;
    const char *given = sound ? text_of(part, "input_audio", "data") : text_of(part, "image_url", "url");
    const char *text = given && !sound ? data_of(given) : given;
    size_t size = 0;
    if (!given)
        request_refuse(e, 400, param, "%s has a part without %s", param, sound ? "input_audio.data" : "image_url.url");
    else if (!text)
        request_refuse(e, 400, param,
                       "%s has a picture that is no data URL (data:image/...;base64,...); nothing is fetched", param);
    else if (s->count == SHOWN_MOST)
        request_refuse(e, 400, param, "%s: a request may bring %d pictures and sounds", param, (int)SHOWN_MOST);
    unsigned char *data = e->status ? NULL : decode(text, strlen(text), &size);
    if (!data && size == 0)
        request_no_memory(e);
    else if (!data)
        request_refuse(e, 400, param, "%s has a %s whose base64 is broken", param, sound ? "sound" : "picture");
    bool good = data && add(s, data, size, sound, param, e);
    free(data);
    json_t *one = good ? json_pack("{s:s}", "type", sound ? "audio" : "image") : NULL;
    if (good && !one)
        request_no_memory(e);
    return one;
}

/* ---- all of them ---------------------------------------------------------------------------------- */

/* Those that are sounds, or are not, by names that the library can open. */
static int64_t name_all(const shown *s, bool sounds, char (*names)[32], const char **list)
{
    int64_t n = 0;
    for (size_t i = 0; i < s->count; i++)
        if (s->sound[i] == sounds) {
            snprintf(names[i], sizeof names[i], "/proc/self/fd/%d", s->file[i]);
            list[n++] = names[i];
        }
    return n;
}

/* What the library says of one of them, by its number instead of its name. */
static void tell(const char *const *list, int64_t count, const char *what, const tn_error *err, request_error *e)
{
    for (int64_t i = 0; i < count && err->code == TN_E_INPUT; i++)
        if (strcmp(err->where, list[i]) == 0)
            request_refuse(e, 400, "messages", "%s %lld %s", what, (long long)i + 1, err->message);
}

tn_media *shown_make(const shown *s, const api *a, request_error *e)
{
    char names[SHOWN_MOST][32];
    const char *images[SHOWN_MOST], *sounds[SHOWN_MOST];
    tn_error err = TN_ERROR_INIT;
    int64_t image_count = name_all(s, false, names, images), sound_count = name_all(s, true, names, sounds);
    pthread_mutex_lock(&making);
    tn_media *media = tn_media_files(a->model, images, image_count, sounds, sound_count, &err);
    pthread_mutex_unlock(&making);
    if (media)
        return media;
    tell(images, image_count, "picture", &err, e);
    tell(sounds, sound_count, "sound", &err, e);
    request_failed(e, "messages", &err);
    return NULL;
}

void shown_close(shown *s)
{
    for (size_t i = 0; i < s->count; i++)
        close(s->file[i]);
    s->count = 0;
}
