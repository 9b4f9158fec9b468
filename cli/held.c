/* What a session holds of a conversation. */
#include "held.h"

#include <stdlib.h>

void held_close(held *h)
{
    tn_session_free(h->session);
    free(h->ids);
}

void held_forget(held *h)
{
    tn_session_reset(h->session);
    h->count = 0;
}

int64_t held_reuse(held *h, const attached *files, const int64_t *ids, int64_t count)
{
    int64_t same = 0;
    tn_error why = TN_ERROR_INIT;
    while (same < h->count && same < count - 1 && h->ids[same] == ids[same])
        same++;
    if (h->files != files->state || (files->media && same < h->seen))
        same = 0; /* the tokens of other pictures are the same ones                                    */
    if (same < h->count && tn_session_rewind(h->session, same, &why) != TN_OK) {
        if (option_given(h->o, OPT_VERBOSE))
            note(h->o, "the conversation is computed anew: %s", why.message);
        held_forget(h);
        same = 0;
    }
    h->count = same;
    return same;
}

tn_status held_feed(held *h, const attached *files, const int64_t *ids, int64_t count, const tn_generate_options *g,
                    int64_t *out, tn_generate_result *r, tn_error *err)
{
    h->files = files->state;
    if (h->count > 0 || !files->media) {
        h->seen = h->count > 0 ? h->seen : 0;
        return tn_generate(h->session, ids + h->count, count - h->count, g, out, r, err);
    }
    const tn_batch batch = {.size = sizeof batch,
                            .rows = 1,
                            .tokens = count,
                            .ids = ids,
                            .images = tn_media_pictures(files->media),
                            .sounds = tn_media_sounds(files->media)};
    tn_generate_result **made = NULL;
    h->seen = count;
    tn_status status = tn_generate_rows(h->session, &batch, g, out, &made, err);
    if (made)
        *r = *made[0];
    free(made);
    return status;
}

void held_remember(held *h, const int64_t *ids, int64_t count, const int64_t *answer, int64_t written)
{
    h->count = tn_session_length(h->session);
    for (int64_t i = 0; i < h->count; i++)
        h->ids[i] = i < count ? ids[i] : i - count < written ? answer[i - count] : -1;
}
