/* Who has a place and memory: the oldest first; what others have computed is taken over; who must give way is computed
 * again later, to the same text. */
#include "engine/engine_state.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Beginnings shorter than this are not worth a copy. */
enum { LEAST_SHARED = 16 };

/* Tokens that a sequence is to have room for behind its prompt when it enters. */
enum { RESERVE = 64 };

size_t admit_held(const tn_engine *e)
{
    size_t held = 0;
    for (int64_t i = 0; i < e->running_count; i++)
        held += held_bytes(&e->running[i]->text);
    for (int64_t i = 0; i < e->kept_count; i++)
        held += held_bytes(e->kept[i]);
    return held;
}

/* ---- kept texts ----------------------------------------------------------------------------------- */

static void forget(tn_engine *e, int64_t kept)
{
    held_close(e->kept[kept]);
    free(e->kept[kept]);
    e->kept[kept] = e->kept[--e->kept_count];
}

/* The one that was not used for the longest time; -1: there is none but `but`. */
static int64_t oldest(const tn_engine *e, const held_text *but)
{
    int64_t found = -1;
    for (int64_t i = 0; i < e->kept_count; i++)
        if (e->kept[i] != but && (found < 0 || e->kept[i]->used < e->kept[found]->used))
            found = i;
    return found;
}

/* Kept texts make room for so many bytes more, but not `but`. false: there is none yet. */
static bool make_room(tn_engine *e, size_t more, const held_text *but)
{
    size_t held = admit_held(e);
    for (int64_t i; held + more > e->cache_bytes && (i = oldest(e, but)) >= 0;) {
        held -= held_bytes(e->kept[i]);
        forget(e, i);
    }
    return held + more <= e->cache_bytes;
}

/* false: there is none. */
static bool forget_oldest(tn_engine *e)
{
    int64_t kept = oldest(e, NULL);
    if (kept >= 0)
        forget(e, kept);
    return kept >= 0;
}

static void keep(tn_engine *e, held_text *t)
{
    bool keeps = t->fed > 0 && t->cache.device && e->most_kept > 0;
    held_text *copy = keeps ? malloc(sizeof *copy) : NULL;
    if (copy && e->kept_count == e->most_kept)
        forget_oldest(e);
    if (!copy)
        return;
    *copy = *t;
    copy->count = copy->fed;
    copy->used = (uint64_t)e->info.steps;
    *t = (held_text){0};
    e->kept[e->kept_count++] = copy;
}

/* ---- leaving -------------------------------------------------------------------------------------- */

static void take_out(tn_engine *e, int64_t running)
{
    memmove(e->running + running, e->running + running + 1,
            (size_t)(e->running_count - running - 1) * sizeof *e->running);
    e->running_count--;
}

void admit_leave(tn_engine *e, int64_t running)
{
    sequence *s = e->running[running];
    take_out(e, running);
    if (s->result.status == TN_OK || s->result.status == TN_E_CANCELLED)
        keep(e, &s->text);
    sequence_free(s);
}

/* A running sequence waits again, before all others, and will be computed anew. waiting has room for it. */
static void put_back(tn_engine *e, int64_t running)
{
    sequence *s = e->running[running];
    take_out(e, running);
    held_drop_cache(&s->text);
    if (s->media)
        media_drop(s->media);
    memmove(e->waiting + 1, e->waiting, (size_t)e->waiting_count * sizeof *e->waiting);
    e->waiting[0] = s;
    e->waiting_count++;
    e->info.preempted++;
}

bool admit_room(tn_engine *e, sequence *s, int64_t tokens)
{
    tn_error err = TN_ERROR_INIT;
    for (;;) {
        size_t now = held_bytes(&s->text), then = held_would_hold(&s->text, tokens);
        size_t more = then > now ? then - now : 0;
        tn_status status = make_room(e, more, NULL) ? cache_hold(&s->text.cache, tokens, &err) : TN_E_MEMORY;
        if (status == TN_OK)
            return true;
        if (err.code == TN_E_MEMORY && forget_oldest(e)) { /* the system has less than the cache may take */
            tn_error_clear(&err);
            continue;
        }
        int64_t youngest = e->running_count - 1;
        if (youngest == 0) { /* alone, and there is not enough for it                              */
            if (err.code == TN_OK)
                tn_fail(&err, TN_E_MEMORY, "KV cache", "%lld tokens need more than the %zu MiB that the cache may take",
                        (long long)tokens, e->cache_bytes >> 20);
            sequence_end(s, TN_E_MEMORY, &err);
            return false;
        }
        bool itself = e->running[youngest] == s;
        if (e->running[youngest]->ended) /* in this step: nothing is to be computed again                */
            admit_leave(e, youngest);
        else
            put_back(e, youngest);
        if (itself)
            return false;
        tn_error_clear(&err);
    }
}

/* ---- entering ------------------------------------------------------------------------------------- */

/* A text that the sequence can begin with. */
typedef struct beginning {
    held_text *from;
    int64_t length;
    bool kept;  /* nobody else uses it                                                                 */
    bool takes; /* it is taken over, not copied                                                        */
    bool soon;  /* a running sequence is just computing more that they have in common                    */
} beginning;

/* How much of a beginning in common a sequence takes over: not a part of a picture whose tokens see each other, since
 * where a window is shorter it counts from the first of them. */
static int64_t shared_of(const tn_engine *e, const held_text *from, const sequence *s)
{
    int64_t n = held_shared(&e->maker, from, &s->text), whole = 0;
    if (!s->media || n == 0 || n >= s->media->tokens)
        return n;
    for (int64_t at = 0, run; at < n; at += run < 0 ? -run : run) {
        run = media_mutual(s->media, at, s->media->tokens - at);
        whole = run < 0 ? n < at - run ? n : at - run : at + run <= n ? at + run : whole;
    }
    return whole == n || (whole > 0 && cache_holds_beginning(&from->cache, whole)) ? whole : 0;
}

static beginning find_beginning(const tn_engine *e, const sequence *s)
{
    beginning best = {0};
    for (int64_t i = 0; i < e->kept_count; i++) {
        int64_t n = shared_of(e, e->kept[i], s);
        if (n > best.length)
            best = (beginning){.from = e->kept[i], .length = n, .kept = true};
    }
    int64_t promised = 0;
    for (int64_t i = 0; i < e->running_count; i++) {
        sequence *other = e->running[i];
        int64_t n = shared_of(e, &other->text, s);
        if (n > best.length)
            best = (beginning){.from = &other->text, .length = n};
        int64_t common = held_common(&other->text, &s->text);
        common = common < other->prompt ? common : other->prompt;
        if (other->text.fed < common && common > promised)
            promised = common;
    }
    if (best.length < LEAST_SHARED)
        best = (beginning){0};
    best.takes = best.kept && !e->has_states && best.length * 10 >= best.from->fed * 9;
    best.soon = promised >= best.length + 4 * LEAST_SHARED && !e->replays;
    return best;
}

static void begin_ropes(tn_engine *e, sequence *s)
{
    const model_shape *shape = e->maker.shape;
    int64_t length = e->replays ? s->prompt : s->text.count;
    for (int32_t i = 0; i < shape->rope_count; i++)
        s->text.rope_length[i] = rope_tables_length(&shape->rope[i], 0, length);
}

/* Gives it keys: those of the beginning, or none. */
static tn_status give_keys(tn_engine *e, sequence *s, const beginning *b, tn_error *err)
{
    tn_status status = TN_DECLINED;
    if (b->from) {
        b->from->used = (uint64_t)e->info.steps;
        status = b->takes ? held_take(&s->text, b->from, b->length, err)
                          : held_copy(&s->text, &e->maker, b->from, b->length, err);
        for (int64_t i = e->kept_count - 1; i >= 0; i--)
            if (!e->kept[i]->cache.device)
                forget(e, i);
    }
    if (status == TN_OK) {
        s->cached = s->begun ? s->cached : s->text.fed < s->prompt ? s->text.fed : s->prompt;
        e->info.prefix_hits += s->begun ? 0 : s->cached;
        return TN_OK;
    }
    do {
        tn_error_clear(err);
        status = held_open_cache(&s->text, &e->maker, err);
    } while (status == TN_E_MEMORY && forget_oldest(e));
    return status;
}

static void drop_first_waiting(tn_engine *e)
{
    memmove(e->waiting, e->waiting + 1, (size_t)(e->waiting_count - 1) * sizeof *e->waiting);
    e->waiting_count--;
}

/* Lets go of kept texts until the sequence has room beside the one that it begins with; a copy that does not fit is
 * none, and where nothing else helps it begins with nothing. false: not now. */
static bool find_room(tn_engine *e, const sequence *s, beginning *b)
{
    int64_t tokens = s->text.count + RESERVE < e->maker.context ? s->text.count + RESERVE : e->maker.context;
    size_t all = held_would_hold(&e->sample, tokens), own = b->kept ? held_bytes(b->from) : 0;
    size_t added = all > own ? all - own : 0;
    if (make_room(e, b->takes ? added : all, b->from))
        return true;
    b->takes = b->kept && !e->has_states;
    if (b->takes && make_room(e, added, b->from))
        return true;
    if (e->running_count > 0 && admit_held(e) - own + all > e->cache_bytes)
        return false;
    make_room(e, all, NULL);
    *b = (beginning){0};
    return true;
}

/* The first of those that wait. false: not now. */
static bool enter(tn_engine *e)
{
    sequence *s = e->waiting[0];
    tn_error err = TN_ERROR_INIT;
    bool whole = s->on_prompt_logits && s->heard < s->prompt;
    beginning b = {0};
    if (!whole)
        b = find_beginning(e, s);
    if (b.soon || !find_room(e, s, &b))
        return false;
    tn_status status = give_keys(e, s, &b, &err);
    drop_first_waiting(e);
    if (status != TN_OK) {
        sequence_end(s, status, &err);
        sequence_free(s);
        return true;
    }
    begin_ropes(e, s);
    if (!s->begun) {
        s->started = clock_seconds();
        e->info.prefix_queries += s->prompt;
    }
    s->begun = true;
    e->running[e->running_count++] = s;
    return true;
}

void admit_sequences(tn_engine *e)
{
    while (e->waiting_count > 0 && e->running_count < e->sequences && enter(e))
        ;
}
