/* Texts that the tests of training learn from, and what every one of them does. */
#ifndef TEST_TRAIN_TEXTS_H
#define TEST_TRAIN_TEXTS_H

#include <check.h>
#include <tenon/tenon.h>

static const int64_t ids[] = {9, 4, 7, 30, 12, 5, 21, 8, 40, 3};
static const int64_t both[] = {6, 4};

static inline tn_train_loss learn(tn_trainer *t, const tn_train_texts *texts)
{
    tn_error err = TN_ERROR_INIT;
    tn_train_loss loss = {.size = sizeof loss};
    ck_assert_msg(tn_trainer_backward(t, texts, &loss, &err) == TN_OK, "%s: %s", err.where, err.message);
    return loss;
}

static inline tn_train_texts texts_of(const int64_t *first, const int64_t *lengths, int64_t count)
{
    return (tn_train_texts){.size = sizeof(tn_train_texts),
                            .ids = first,
                            .labels = first,
                            .lengths = lengths,
                            .count = count,
                            .divisor = 8};
}

static inline tn_tensor gradient_of(const tn_trainer *t, const char *name)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor g;
    ck_assert_msg(tn_trainer_gradient(t, name, &g, &err) == TN_OK, "%s: %s", err.where, err.message);
    return g;
}

#endif
