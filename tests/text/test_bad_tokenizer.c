/* Broken and hostile tokenizer.json files: each is one clear error, and none crashes. */
#include "text_test.h"

#include <sys/stat.h>

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

typedef struct bad_file {
    const char *json, *word; /* word: what the message must hold                                  */
} bad_file;

static void assert_bad(const bad_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_msg(open_text(files[i].json, &err) == NULL, "%s", files[i].json);
        ck_assert_int_eq(err.code, TN_E_INPUT);
        ck_assert_msg(strstr(err.where, "tokenizer.json"), "no file in '%s'", err.where);
        ck_assert_msg(strstr(err.message, files[i].word), "%s: '%s' lacks '%s'", files[i].json, err.message,
                      files[i].word);
        ck_assert_msg(strchr(err.message, ';'), "'%s' says not what to do", err.message);
    }
}

#define ASSERT_BAD(files) assert_bad(files, sizeof files / sizeof files[0])

START_TEST(whole_file)
{
    static const bad_file files[] = {
        {"", "JSON"},
        {"[]", "object"},
        {"3", "JSON"},
        {"{}", "model"},
        {"{\"model\":null}", "model"},
        {"{\"model\":[]}", "model"},
        {"{" MODEL, "line 1"},
        {"{" MODEL "," MODEL "}", "duplicate"},
        {"{\"model\":{\"type\":\"Morse\",\"vocab\":{}}}", "Morse"},
        {"{" MODEL ",\"version\":\"2.0\"}", "2.0"},
    };
    ASSERT_BAD(files);
}
END_TEST

START_TEST(model)
{
    static const bad_file files[] = {
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}", "merges"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "not an integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "outside"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":9000000000000},\"merges\":[]}}", "outside"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e3},\"merges\":[]}}", "not an integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "both have id 0"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "'b' is not in vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}", "'ab' is not in vocab"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}", "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}}", "merges[0]"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "unk_token"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"fuse_unk\":1}}", "fuse_unk"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":1}}",
         "end_of_word_suffix"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\"],"
         "\"continuing_subword_prefix\":\"@@\"}}",
         "shorter than continuing_subword_prefix"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"max_merges\":7}}",
         "'max_merges' of BPE is not known"},
    };
    ASSERT_BAD(files);
}
END_TEST

START_TEST(components)
{
    static const bad_file files[] = {
        {"{" MODEL ",\"normalizer\":{\"type\":\"Bertie\"}}", "normalizer: type 'Bertie'"},
        {"{" MODEL ",\"normalizer\":7}", "normalizer: not an object"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\"}}", "normalizers"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"x\"}}", "pattern"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Prepend\",\"prepend\":1}}", "prepend"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Scripts\"}}", "pre_tokenizer: type 'Scripts'"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{}]}}", "pre_tokenizer: type ''"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}}", "not usable"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Other\":\"(\"}}}", "pattern"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":\"a\",\"behavior\":\"Sideways\"}}", "Sideways"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":\"no\"}}", "use_regex"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Bert\"}}", "post_processor: type 'Bert'"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\"}}", "single"},
        {"{" MODEL
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
         "'x' has no 'ids'"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]}}",
         "sequence A"},
        {"{" MODEL
         ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}],"
         "\"special_tokens\":{\"x\":{\"ids\":[-4]}}}}",
         "outside"},
        {"{" MODEL ",\"decoder\":{\"type\":\"CTD\"}}", "decoder: type 'CTD'"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"ab\"}}", "one character"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"a\",\"start\":\"x\"}}", "start"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":{}}}", "decoders"},
    };
    ASSERT_BAD(files);
}
END_TEST

#define COMPONENT(part, json) "{" MODEL ",\"" part "\":" json "}"

/* Members of the newer components: missing, of the wrong type, or not known. */
START_TEST(members)
{
    static const bad_file files[] = {
        {COMPONENT("normalizer", "{\"type\":\"BertNormalizer\"}"), "'clean_text' of BertNormalizer is missing"},
        {COMPONENT("normalizer", "{\"type\":\"Precompiled\"}"), "'precompiled_charsmap'"},
        {COMPONENT("normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"?\"}"), "not base64"},
        {COMPONENT("normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}"), "no whole trie"},
        {COMPONENT("normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}"), "no whole trie"},
        {COMPONENT("normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD/\"}"), "not UTF-8"},
        {COMPONENT("normalizer", "{\"type\":\"Lowercase\",\"locale\":\"tr\"}"), "'locale' of Lowercase is not known"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"CharDelimiterSplit\"}"), "'delimiter'"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"--\"}"), "one character"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"FixedLength\",\"length\":0}"), "not positive"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"Metaspace\"}"), "'replacement'"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"),
         "prepend_scheme 'last' is unknown"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}"),
         "add_prefix_space is false"},
        {COMPONENT("pre_tokenizer", "{\"type\":\"Digits\",\"base\":7}"), "'base' of Digits is not known"},
        {COMPONENT("post_processor", "{\"type\":\"BertProcessing\"}"), "'cls' is no token with its id"},
        {COMPONENT("post_processor", "{\"type\":\"RobertaProcessing\",\"cls\":[\"c\",1],\"sep\":[\"s\",-1]}"),
         "outside"},
        {COMPONENT("decoder", "{\"type\":\"CTC\",\"pad_token\":\"p\",\"cleanup\":true}"), "'word_delimiter_token'"},
        {COMPONENT("decoder", "{\"type\":\"BPEDecoder\"}"), "'suffix'"},
        {COMPONENT("decoder", "{\"type\":\"WordPiece\",\"prefix\":\"#\"}"), "'cleanup'"},
        {COMPONENT("decoder", "{\"type\":\"Metaspace\",\"replacement\":\"\"}"), "one character"},
    };
    ASSERT_BAD(files);
}
END_TEST

START_TEST(other_models)
{
    static const bad_file files[] = {
        {"{\"model\":{\"type\":\"Unigram\"}}", "'vocab'"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "vocab[0]"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"0\"]]}}", "vocab[0]"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", "unk_id 1"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":-1}}", "unk_id -1"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"alpha\":0.1}}", "'alpha'"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "'unk_token' of WordPiece is missing"},
        {"{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"vocab\":{}}}", "'continuing_subword_prefix'"},
        {"{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\"}}", "'vocab'"},
        {"{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"b\":0}}}", "both have id 0"},
    };
    ASSERT_BAD(files);
}
END_TEST

START_TEST(added_entries)
{
    static const bad_file files[] = {
        {"{" MODEL ",\"added_tokens\":{}}", "added_tokens"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":5}]}", "content"},
        {"{" MODEL ",\"added_tokens\":[{\"content\":\"x\"}]}", "outside"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]},\"added_tokens\":[{\"id\":2,"
         "\"content\":"
         "\"x\"}]}",
         "both have id 2"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":2147483648,\"content\":\"x\"}]}", "outside"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"lstrip\":\"yes\"}]}", "lstrip"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"case\":\"any\"}]}", "'case' is not known"},
    };
    ASSERT_BAD(files);
    char json[4096];
    size_t n = (size_t)snprintf(json, sizeof json, "{" MODEL ",\"added_tokens\":[{\"id\":5,\"content\":\"");
    memset(json + n, 'x', 2000);
    snprintf(json + n + 2000, sizeof json - n - 2000, "\"}]}");
    const bad_file file = {json, "longer than"};
    assert_bad(&file, 1);
}
END_TEST

/* The demo file cut short at many places, and with single bytes changed: whatever opens must also encode. */
START_TEST(damaged)
{
    FILE *f = fopen(DEMO "/tokenizer.json", "rb");
    ck_assert_ptr_nonnull(f);
    static char data[1 << 17];
    size_t size = fread(data, 1, sizeof data, f);
    fclose(f);
    ck_assert(size > 50000 && size < sizeof data);
    size_t last = size;
    while (last > 0 && data[last - 1] != '}')
        last--;
    for (size_t cut = 0; cut < last; cut += last / 37) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_ptr_null(open_bytes(data, cut, &err));
        ck_assert_int_eq(err.code, TN_E_INPUT);
    }
    uint64_t state = 5;
    for (int round = 0; round < 60; round++) {
        size_t at = noise(&state) % (round % 2 ? 900 : (uint32_t)size);
        char was = data[at];
        data[at] = (char)noise(&state);
        tn_error err = TN_ERROR_INIT;
        tn_tokenizer *t = open_bytes(data, size, &err);
        ck_assert_int_eq(err.code, t ? TN_OK : TN_E_INPUT);
        int64_t *ids = NULL;
        size_t count;
        if (t)
            ck_assert_int_eq(tn_tokenizer_encode(t, "In the beginning", 16, true, &ids, &count, NULL), TN_OK);
        free(ids);
        tn_tokenizer_free(t);
        data[at] = was;
    }
}
END_TEST

/* A named pipe that nobody writes to, and a link to one: both are refused at once, where opening them would wait. */
START_TEST(named_pipes)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.json.gz", "tokenizer.model"};
    char folder[] = "/tmp/tenon-text-XXXXXX", pipe[64], file[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(pipe, sizeof pipe, "%s/pipe", folder);
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    for (int i = 0; i < 9; i++) {
        snprintf(file, sizeof file, "%s/%s", folder, names[i / 3]);
        ck_assert_int_eq(symlink("pipe", file), 0);
        const char *const paths[] = {pipe, file, folder};
        tn_error err = TN_ERROR_INIT;
        ck_assert_ptr_null(tn_tokenizer_open(paths[i % 3], &err));
        ck_assert_int_eq(err.code, TN_E_INPUT);
        ck_assert_msg(strstr(err.message, "regular file"), "%s", err.message);
        unlink(file);
    }
    unlink(pipe);
    rmdir(folder);
}
END_TEST

/* Objects nested far deeper than any component, and a file that is a folder. */
START_TEST(nonsense)
{
    static char json[1 << 16];
    memset(json, '[', sizeof json - 1);
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(open_bytes(json, sizeof json - 1, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    const char *open = "{\"type\":\"Sequence\",\"normalizers\":[";
    size_t n = (size_t)snprintf(json, sizeof json, "{" MODEL ",\"normalizer\":");
    for (int i = 0; i < 900; i++)
        n += (size_t)snprintf(json + n, sizeof json - n, "%s", open);
    for (int i = 0; i < 900; i++)
        n += (size_t)snprintf(json + n, sizeof json - n, "]}");
    n += (size_t)snprintf(json + n, sizeof json - n, "}");
    tn_tokenizer *t = open_bytes(json, n, NULL);
    ck_assert_ptr_nonnull(t); /* deep but empty: no normalizer at all */
    tn_tokenizer_free(t);
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_tokenizer_open("/dev/null", &err));
    ck_assert_ptr_nonnull(strstr(err.message, "regular file"));
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("bad_tokenizer", TEXT_SECONDS);
    suite_add(tc, whole_file, model, components, members, other_models, added_entries, damaged, named_pipes, nonsense);
    return suite_run();
}
