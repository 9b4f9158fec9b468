/* make_checkpoint: a folder as the Hub would have it, with real shapes and random weights: of a model that it knows, to
 * measure on, or of any config.json that the library supports. */
#include "model_config.h"
#include "recorded.h"
#include "spec.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct options {
    const char *like, *config, *out;
    tn_dtype dtype;                     /* TN_DTYPE_NONE: the file's, else bf16                                  */
    int64_t layers, vocab, shard_bytes; /* layers, vocab 0: the model's own                       */
    uint64_t seed;
} options;

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: make_checkpoint (--like MODEL | --config FILE) OUT [--dtype bf16|f32|f16] [--layers N] [--vocab N]\n"
        "                       [--seed S] [--shard-bytes N]\n"
        "MODEL: ");
    spec_list(out);
    fprintf(out, "\nexample: make_checkpoint --like qwen3-0.6b /tmp/qwen3-0.6b\n");
}

static bool read_number(const char *option, const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max) {
        fprintf(stderr, "make_checkpoint: --%s: '%s' is not a number from %lld to %lld\n", option, text, (long long)min,
                (long long)max);
        return false;
    }
    *out = value;
    return true;
}

/* false: said why. */
static bool parse(int argc, char **argv, options *o)
{
    static const struct option known[] = {
        {"like", 1, NULL, 'm'},   {"config", 1, NULL, 'c'}, {"dtype", 1, NULL, 'd'},
        {"layers", 1, NULL, 'l'}, {"seed", 1, NULL, 's'},   {"shard-bytes", 1, NULL, 'b'},
        {"vocab", 1, NULL, 'v'},  {"help", 0, NULL, 'h'},   {NULL, 0, NULL, 0}};
    int64_t seed = 0;
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'm':
            o->like = optarg;
            break;
        case 'c':
            o->config = optarg;
            break;
        case 'd':
            o->dtype = tn_dtype_parse(optarg);
            ok = o->dtype == TN_F32 || o->dtype == TN_BF16 || o->dtype == TN_F16;
            if (!ok)
                fprintf(stderr, "make_checkpoint: --dtype: '%s' is not bf16, f32 or f16\n", optarg);
            break;
        case 'l':
            ok = read_number("layers", optarg, 1, 1000, &o->layers);
            break;
        case 'v':
            ok = read_number("vocab", optarg, 1, 10000000, &o->vocab);
            break;
        case 's':
            ok = read_number("seed", optarg, 0, INT64_MAX, &seed);
            break;
        case 'b':
            ok = read_number("shard-bytes", optarg, 1, INT64_MAX, &o->shard_bytes);
            break;
        case 'h':
            usage(stdout);
            exit(0);
        default:
            ok = false;
        }
    }
    o->seed = (uint64_t)seed;
    if (!ok)
        return false;
    if (optind + 1 != argc || !o->like == !o->config) {
        usage(stderr);
        return false;
    }
    o->out = argv[optind];
    return true;
}

static const char *dtype_word(tn_dtype dtype)
{
    return dtype == TN_F32 ? "float32" : dtype == TN_F16 ? "float16" : dtype == TN_BF16 ? "bfloat16" : NULL;
}

static weights_tensor *of_config(const options *o, size_t *count)
{
    tn_error err = TN_ERROR_INIT;
    model_config_changes changes = {o->layers, o->vocab, dtype_word(o->dtype)};
    if (model_config_copy(o->config, &changes, o->out, &err) == TN_OK)
        return recorded_tensors(o->out, count);
    fprintf(stderr, "make_checkpoint: %s: %s\n", err.where, err.message);
    return NULL;
}

static weights_tensor *of_spec(const options *o, const spec *found, size_t *count)
{
    spec s = *found;
    tn_dtype dtype = o->dtype ? o->dtype : TN_BF16;
    s.layers = o->layers ? o->layers : s.layers;
    if (o->vocab) {
        s.vocab = o->vocab;
        s.bos = s.bos < o->vocab ? s.bos : 0;
        s.eos = s.eos < o->vocab ? s.eos : o->vocab - 1;
    }
    if (spec_write_config(&s, dtype, o->out))
        return spec_tensors(&s, dtype, count);
    fprintf(stderr, "make_checkpoint: %s: cannot write the configuration: %s\n", o->out, strerror(errno));
    return NULL;
}

int main(int argc, char **argv)
{
    options o = {.shard_bytes = 2000000000};
    if (!parse(argc, argv, &o))
        return 2;
    const spec *found = o.like ? spec_find(o.like) : NULL;
    if (o.like && !found) {
        fprintf(stderr, "make_checkpoint: no model '%s'; there are: ", o.like);
        spec_list(stderr);
        fputc('\n', stderr);
        return 2;
    }
    if (mkdir(o.out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "make_checkpoint: %s: cannot make the folder: %s\n", o.out, strerror(errno));
        return 4;
    }
    size_t count;
    weights_summary made;
    weights_tensor *tensors = found ? of_spec(&o, found, &count) : of_config(&o, &count);
    bool ok = tensors && weights_write(tensors, count, o.seed, o.shard_bytes, o.out, &made);
    if (ok)
        printf("model=%s tensors=%zu params=%lld bytes=%lld shards=%zu out=%s\n", found ? found->name : o.config, count,
               (long long)made.parameters, (long long)made.bytes, made.files, o.out);
    free(tensors);
    return ok ? 0 : 4;
}
