/* What stands for pictures and sounds in a prompt: as many tokens as they have rows, and what the model's processor
 * writes around them. */
#include "media/media_files.h"
#include "models/vit.h"
#include "open/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a prompt may have places for. */
enum { PICTURE, SOUND, KINDS };

typedef struct kind {
    char *token;       /* the text of its token; NULL: the model has none, or its tokenizer no text for it */
    const char *place; /* what the template leaves for one                                            */
    int64_t count, next;
} kind;

typedef struct expansion {
    const tn_media *media;
    const multimodal *model;
    tower_marks marks; /* those that are tokens as texts, too                                         */
    kind kinds[KINDS];
    char *around[2]; /* these texts; NULL: none                                                       */
    FILE *out;
} expansion;

/* Rows of picture i; -1 after an error. */
static int64_t rows_of(const expansion *e, int64_t i, tn_error *err)
{
    const processed *x = &e->media->made;
    if (x->tokens)
        return x->tokens[i];
    tower_media one = {.count = x->parts ? x->parts[i] : 1, .sizes = x->sizes ? x->sizes + 2 * i : NULL};
    int64_t shape[6];
    memcpy(shape, x->shape, sizeof shape);
    shape[0] = one.count;
    one.pixels = tn_tensor_dense(NULL, TN_F32, x->ndim, shape);
    return e->model->vision->tokens(e->model->vision_state, &one, err);
}

static void put(const expansion *e, const char *text)
{
    fputs(text ? text : "", e->out);
}

/* What precedes part p of a picture, and what follows it. Crops stand behind the whole picture, each with its own
 * marks; tiles stand line by line before it, all within one pair of marks. */
static void write_lead(const expansion *e, int64_t p, int64_t parts)
{
    const tower_marks *k = &e->marks;
    if (parts > 1 && !k->across)
        put(e, p == 0 ? k->whole : p == 1 ? k->crops : " ");
    if (p == 0 || !k->across)
        put(e, k->before);
    if (p == parts - 1 && k->across)
        put(e, k->whole);
}

static void write_trail(const expansion *e, int64_t i, int64_t p, int64_t parts)
{
    const tower_marks *k = &e->marks;
    if (p == parts - 1 || !k->across)
        put(e, k->after);
    else
        put(e, (p + 1) % e->media->made.tiles[2 * i + 1] ? k->across : k->down);
}

static tn_status check_processor(const expansion *e, tn_error *err)
{
    const processed *x = &e->media->made;
    if (e->marks.across && !x->tiles)
        return tn_fail(err, TN_E_INPUT, "preprocessor_config.json",
                       "makes no tiles, which pictures of this model have; is the file another model's?");
    if (e->marks.line && !x->sizes)
        return tn_fail(err, TN_E_INPUT, "preprocessor_config.json",
                       "makes pictures of one size, those of this model have their own; is the file another model's?");
    return TN_OK;
}

static tn_status write_picture(const expansion *e, int64_t i, tn_error *err)
{
    const processed *x = &e->media->made;
    const tower_marks *k = &e->marks;
    int64_t rows = rows_of(e, i, err);
    tn_status status = rows < 0 ? TN_E_INPUT : check_processor(e, err);
    if (status)
        return status;
    int64_t parts = x->parts && (k->crops || k->across) ? x->parts[i] : 1;
    int64_t columns = k->line ? x->sizes[2 * i + 1] / vit_unit(e->model->vision_state) : rows;
    for (int64_t p = 0; p < parts; p++) {
        write_lead(e, p, parts);
        for (int64_t r = 1; r <= rows / parts; r++) {
            put(e, e->kinds[PICTURE].token);
            if (r % columns == 0 && r < rows / parts)
                put(e, k->line);
        }
        write_trail(e, i, p, parts);
    }
    return TN_OK;
}

/* Rows of sound i; -1 after an error. */
static int64_t rows_of_sound(const expansion *e, int64_t i, tn_error *err)
{
    const extracted *x = &e->media->heard;
    tower_media one = {.frames = x->lengths + i};
    one.pixels = tn_tensor_dense(NULL, TN_F32, 3, (int64_t[]){1, x->bins, x->frames});
    int64_t rows = e->model->audio->tokens(e->model->audio_state, &one, err);
    if (rows == 0)
        tn_fail(err, TN_E_INPUT, "sounds", "sound %lld is too short: its %lld frames make no row of the model",
                (long long)i, (long long)x->lengths[i]);
    return rows > 0 ? rows : -1;
}

static tn_status write_sound(const expansion *e, int64_t i, tn_error *err)
{
    int64_t rows = rows_of_sound(e, i, err);
    for (int64_t r = 0; r < rows; r++)
        fputs(e->kinds[SOUND].token, e->out);
    return rows < 0 ? TN_E_INPUT : TN_OK;
}

/* The first place from text on; NULL: there is none. which: what it is for. */
static const char *next_place(const expansion *e, const char *text, const char *end, int *which)
{
    const char *first = NULL;
    for (int k = 0; k < KINDS; k++) {
        const char *place = e->kinds[k].place;
        const char *at = place ? memmem(text, (size_t)(end - text), place, strlen(place)) : NULL;
        if (at && (!first || at < first)) {
            first = at;
            *which = k;
        }
    }
    return first;
}

static tn_status write_prompt(expansion *e, const char *text, size_t length, tn_error *err)
{
    static const char *const names[KINDS] = {"pictures", "sounds"};
    const char *end = text + length, *at;
    tn_status status = TN_OK;
    for (int k = 0; status == TN_OK && (at = next_place(e, text, end, &k)); text = at + strlen(e->kinds[k].place)) {
        int64_t i = e->kinds[k].next++;
        fwrite(text, 1, (size_t)(at - text), e->out);
        if (i < e->kinds[k].count)
            status = k == PICTURE ? write_picture(e, i, err) : write_sound(e, i, err);
    }
    fwrite(text, 1, (size_t)(end - text), e->out);
    for (int k = 0; k < KINDS && status == TN_OK; k++) {
        const kind *x = &e->kinds[k];
        if (x->next != x->count)
            status = tn_fail(err, TN_E_INPUT, "prompt", "has %lld places for %s ('%s'), and %lld %s are given",
                             (long long)x->next, names[k], x->place, (long long)x->count, names[k]);
    }
    return status;
}

/* What the tokenizer writes before a text: its token of a beginning. Owned: free. */
static tn_status text_before(const tn_tokenizer *tokenizer, char **out, tn_error *err)
{
    int64_t *ids = NULL;
    size_t count = 0;
    *out = NULL;
    tn_status status = tn_tokenizer_encode(tokenizer, "", 0, true, &ids, &count, err);
    if (status == TN_OK && count > 0)
        status = tn_tokenizer_decode(tokenizer, ids, count, false, out, NULL, err);
    free(ids);
    return status;
}

/* Of a model whose prompt sees itself: pictures, the token of a beginning, what is said, and the end of a line. Where
 * the text has no places for pictures, they are in front. */
static tn_status write_whole(expansion *e, const tn_tokenizer *tokenizer, const char *text, size_t length,
                             tn_error *err)
{
    const char *rest = text, *end = text + length, *at;
    char *before;
    tn_status status = text_before(tokenizer, &before, err);
    for (int k; status == TN_OK && (at = next_place(e, rest, end, &k));)
        rest = at + strlen(e->kinds[k].place);
    if (status == TN_OK && rest > text)
        status = write_prompt(e, text, (size_t)(rest - text), err);
    for (int64_t i = 0; rest == text && i < e->kinds[PICTURE].count && status == TN_OK; i++)
        status = write_picture(e, i, err);
    fputs(before ? before : "", e->out);
    fwrite(rest, 1, (size_t)(end - rest), e->out);
    fputc('\n', e->out);
    free(before);
    return status;
}

/* The text of the token that stands for a kind, which must be there where some of it are given. */
static tn_status find_kind(expansion *e, int which, multimodal_kind token, int64_t count, const tn_tokenizer *tokenizer,
                           tn_error *err)
{
    const multimodal *m = e->model;
    kind *k = &e->kinds[which];
    tn_error why = TN_ERROR_INIT;
    *k = (kind){.count = count};
    if (m->token[token] < 0)
        return TN_OK;
    tn_status status = tn_tokenizer_decode(tokenizer, &m->token[token], 1, false, &k->token, NULL, &why);
    if (status != TN_OK && (status == TN_E_MEMORY || count > 0))
        return tn_fail(err, status, why.where, "%s", why.message);
    if (status == TN_OK && !k->token[0] && count > 0)
        return tn_fail(err, TN_E_INPUT, "prompt", "the tokenizer has no text for %s %lld", m->token_key[token],
                       (long long)m->token[token]);
    if (status == TN_OK && k->token[0])
        k->place = which == PICTURE && e->marks.place ? e->marks.place : k->token;
    return TN_OK;
}

static tn_status text_of(const tn_tokenizer *tokenizer, const char *key, int64_t id, char **out, tn_error *err)
{
    tn_status status = tn_tokenizer_decode(tokenizer, &id, 1, false, out, NULL, err);
    if (status == TN_OK && !(*out)[0])
        status = tn_fail(err, TN_E_INPUT, "prompt", "the tokenizer has no text for %s %lld", key, (long long)id);
    return status;
}

static tn_status find_texts(expansion *e, const tn_tokenizer *tokenizer, tn_error *err)
{
    tower_marks *k = &e->marks;
    const tn_media *media = e->media;
    tn_status status = find_kind(e, PICTURE, MULTIMODAL_IMAGE, media->made.count, tokenizer, err);
    if (status == TN_OK)
        status = find_kind(e, SOUND, MULTIMODAL_SOUND, media->heard.count, tokenizer, err);
    for (int i = 0; i < 2 && k->token_key[i] && media->made.count > 0 && status == TN_OK; i++)
        status = text_of(tokenizer, k->token_key[i], k->token[i], &e->around[i], err);
    k->before = e->around[0] ? e->around[0] : k->before;
    k->after = e->around[1] ? e->around[1] : k->after;
    return status;
}

tn_status tn_media_expand(const tn_media *media, const tn_tokenizer *tokenizer, const char *text, size_t length,
                          char **out, size_t *out_length, tn_error *err)
{
    if (!media || !tokenizer || !text || !out || !out_length)
        return tn_fail(err, TN_E_USAGE, "tn_media_expand",
                       "takes media, the model's tokenizer, a text, and places for the result");
    const multimodal *m = media->model->flow->shape(media->model->arch_state)->media;
    expansion e = {.media = media, .model = m, .marks = m->marks ? *m->marks : (tower_marks){0}};
    *out = NULL;
    *out_length = 0;
    tn_status status = find_texts(&e, tokenizer, err);
    if (status == TN_OK && !(e.out = open_memstream(out, out_length)))
        status = tn_fail(err, TN_E_MEMORY, "prompt", "out of memory for its text");
    if (status == TN_OK) {
        bool prefix = m->sight == SIGHT_PROMPT && media->made.count > 0;
        status = prefix ? write_whole(&e, tokenizer, text, length, err) : write_prompt(&e, text, length, err);
        bool lost = ferror(e.out) != 0;
        if ((fclose(e.out) || lost) && status == TN_OK)
            status = tn_fail(err, TN_E_MEMORY, "prompt", "out of memory for its text");
    }
    if (status != TN_OK) {
        free(*out);
        *out = NULL;
    }
    for (int k = 0; k < KINDS; k++)
        free(e.kinds[k].token);
    free(e.around[0]);
    free(e.around[1]);
    return status;
}
