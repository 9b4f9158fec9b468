/* Inside core: sessions. */
#ifndef TENON_CORE_SESSION_H
#define TENON_CORE_SESSION_H

#include "run/observe.h"

/* tn_session_run, which also calls progress (unless NULL) after each chunk with the tokens done; a non-zero return
 * stops with TN_E_CANCELLED and the session as it was before. */
tn_status session_run(tn_session *session, const tn_batch *batch, const tn_outputs *outputs,
                      int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx, tn_error *err);

/* From now on NaN and infinity among logits are no error: for who compares them. */
void session_take_any_logits(tn_session *session);

/* Whether session_run would take this batch, as far as rows, tokens and their number tell. */
tn_status session_check(const tn_session *session, const tn_batch *batch, tn_error *err);

/* From now on look is called behind each operation that the session performs; its error ends the run. */
void session_look(tn_session *session, run_look *look, void *ctx);

/* Has its model logits, and can what it has seen be gone on with? */
tn_status session_check_continues(const tn_session *session, tn_error *err);

const tn_model *session_model(const tn_session *session);
int64_t session_rows(const tn_session *session);
int64_t session_context(const tn_session *session);
int64_t session_position(const tn_session *session, int64_t row); /* tokens that the row holds       */

/* How many tokens may be fed behind the next one and be taken back (tn_session_rewind); 0: none. */
int64_t session_way_back(const tn_session *session);

#endif
