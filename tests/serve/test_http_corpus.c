/* Replays what the fuzzer of connections once found interesting. */
#include "../fuzz/corpus.h"
#include "../fuzz/fuzz.h"

START_TEST(corpus)
{
    ck_assert_int_ge(corpus_replay("tests/data/fuzz/http", fuzz_http), 16);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("serve: corpus", 600);
    suite_add(tc, corpus);
    return suite_run();
}
