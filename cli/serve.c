/* tenon serve: its options, for tenon, which shows them, and for tenon-serve, which does it. */
#include "cli.h"

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    LOCK_OPTION,
    {OPT_MODEL, "model", "MODEL", 'm', OPTION_TEXT, 0, 0, "another way to give MODEL"},
    {OPT_HOST, "host", "ADDRESS", 0, OPTION_TEXT, 0, 0,
     "listen here; default 127.0.0.1, so nobody else's machine can ask"},
    {OPT_PORT, "port", "N", 0, OPTION_INTEGER, 0, 65535,
     "and at this port; default 8080; 0: any, which the output says"},
    {OPT_UNIX, "unix", "PATH", 0, OPTION_TEXT, 0, 0, "listen at this socket instead"},
    {OPT_KEY_FILE, "api-key-file", "FILE", 0, OPTION_TEXT, 0, 0,
     "only who sends a key of this file, one a line, may ask"},
    {OPT_CORS, "cors", "ORIGIN", 0, OPTION_TEXT, 0, 0,
     "pages from there may ask; default: none; * for all; may be repeated"},
    {OPT_NAME, "name", "NAME", 0, OPTION_TEXT, 0, 0, "what the model is called; default: as its folder"},
    {OPT_ALIAS, "alias", "NAME", 0, OPTION_TEXT, 0, 0,
     "another name that requests may use; * for any; may be repeated"},
    {OPT_SEQUENCES, "sequences", "N", 0, OPTION_INTEGER, 1, 1024, "texts computed at a time, at most; default 16"},
    {OPT_QUEUE, "queue", "N", 0, OPTION_INTEGER, 0, 1e6, "requests that may wait beside them; default 128"},
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 1, 1e9,
     "positions of each; default: what the model is made for"},
    {OPT_CACHE_MB, "cache-mb", "N", 0, OPTION_INTEGER, 1, 1e9,
     "memory for keys and values of all; default a quarter of the machine's"},
    {OPT_BODY_MB, "max-body-mb", "N", 0, OPTION_INTEGER, 1, 4096, "most MiB of a request; default 32"},
    {OPT_READ_TIMEOUT, "read-timeout", "SECONDS", 0, OPTION_REAL, 0.1, 1e6, "for a request to come in; default 30"},
    {OPT_REQUEST_TIMEOUT, "request-timeout", "SECONDS", 0, OPTION_REAL, 0, 1e6, "for an answer; default 0: any"},
    {OPT_DRAIN, "drain", "SECONDS", 0, OPTION_REAL, 0, 1e6, "to finish what runs when asked to end; default 30"},
    {OPT_PING, "ping", "SECONDS", 0, OPTION_REAL, 0, 1e6, "of silence in a stream before a comment; default 15"},
    {OPT_ANY_ORDER, "any-order", NULL, 0, OPTION_FLAG, 0, 0,
     "kernels whose sums depend on what else runs may be used, too"},
};

const command command_serve = {
    .name = "serve",
    .arguments = "MODEL [options]",
    .summary = "Answers HTTP as OpenAI's API does: chat, completions, embeddings; a page to talk to is at /.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "no model given",
    .notes =
        "What a request is answered does not depend on what else runs, bit for bit, where the kernels promise it;\n"
        "else a line says so. Kernels are auto unless a kernels.json says otherwise. SIGTERM and Ctrl-C let what\n"
        "runs finish; a second one does not. Neither requests nor answers nor keys are ever written to a log.\n"
        "docs/server.md has more.",
    .example = "  tenon serve models/demo --port 8080\n"
               "  curl -N localhost:8080/v1/completions -d '{\"prompt\": \"And it came to pass\", \"stream\": true}'",
    .program = "tenon-serve",
};
