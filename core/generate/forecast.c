/* What a call of a parallel model takes: its memory is measured once more, and what ranks would exchange counted. */
#include "generate/session_state.h"

#include "base/structs.h"
#include "open/parallel.h"

#include <tenon/parallel.h>

tn_status tn_session_forecast(tn_session *session, int64_t tokens, tn_forecast *forecast, tn_error *err)
{
    tn_forecast own = {.size = sizeof own};
    if (!session || !forecast)
        return structs_missing(session ? "forecast" : "session", err);
    group *g = session->model->group;
    if (!g)
        return tn_fail(err, TN_E_USAGE, "tn_session_forecast", "the model is not parallel; open it so");
    if (tokens < 1 || tokens > session->chunk)
        return tn_fail(err, TN_E_USAGE, "tn_session_forecast", "%lld tokens; the session's calls have 1 to %lld",
                       (long long)tokens, (long long)session->chunk);
    const arena kept = session->arena;
    g->expected = (group_expected){0};
    tn_status status = arena_init(&session->arena, session->model->target.device, 0, err);
    if (status == TN_OK) {
        status = session_chunk_expect(session, tokens, err);
        arena_close(&session->arena);
    }
    session->arena = kept;
    own.gathers = g->expected.gathers;
    own.gathered_bytes = g->expected.gathered;
    own.passes = g->expected.passes;
    own.passed_bytes = g->expected.passed;
    own.stage_gathers = g->expected.stage_gathers;
    own.stage_gathered_bytes = g->expected.stage_gathered;
    parallel_work(session->model, tokens, &own.weight_bytes, &own.operations);
    return status == TN_OK ? structs_give(forecast, &own, sizeof own, "tn_forecast", err) : status;
}
