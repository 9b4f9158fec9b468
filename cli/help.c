/* The sub-commands and what --help says about them. */
#include "cli.h"

#include <string.h>

const command *const commands[] = {
    &command_run,      &command_chat,  &command_kernels,    &command_check, &command_inspect,  &command_verify,
    &command_logits,   &command_bench, &command_perplexity, &command_embed, &command_tokenize, &command_cache,
    &command_quantize, &command_train, &command_merge,      &command_lock,  &command_serve,    NULL};

static void print_option(FILE *to, const option_spec *s)
{
    char left[64];
    int at = s->letter ? snprintf(left, sizeof left, "-%c, ", s->letter) : snprintf(left, sizeof left, "    ");
    at += snprintf(left + at, sizeof left - (size_t)at, "--%s", s->name);
    if (s->kind == OPTION_OPTIONAL)
        snprintf(left + at, sizeof left - (size_t)at, "[=%s]", s->metavar);
    else if (s->metavar)
        snprintf(left + at, sizeof left - (size_t)at, " %s", s->metavar);
    if (strlen(left) > 26)
        fprintf(to, "  %s\n  %-26s  %s\n", left, "", s->help);
    else
        fprintf(to, "  %-26s  %s\n", left, s->help);
}

static void print_common(FILE *to)
{
    for (size_t i = 0; i < common_option_count; i++)
        print_option(to, &common_options[i]);
}

void help_command(FILE *to, const command *c)
{
    fprintf(to, "usage: tenon %s %s\n\n%s\n\n", c->name, c->arguments, c->summary);
    if (c->option_count) {
        fprintf(to, "options:\n");
        for (size_t i = 0; i < c->option_count; i++)
            print_option(to, &c->options[i]);
        fputc('\n', to);
    }
    fprintf(to, "common options:\n");
    print_common(to);
    if (c->notes)
        fprintf(to, "\n%s\n", c->notes);
    fprintf(to, "\nexample:\n%s\n", c->example);
}

void help_program(FILE *to)
{
    fprintf(to, "usage: tenon COMMAND [options] ...\n"
                "       tenon --kernels=auto MODEL PROMPT    (the same as tenon run)\n\n"
                "Runs Hugging Face checkpoints, with fused kernels from drop-in plugins.\n"
                "MODEL is a folder with config.json, *.safetensors and tokenizer.json, a .gguf file (of several the\n"
                "first), or the name ORG/NAME[@REVISION] of a model that hf download has put into the cache of the\n"
                "Hugging Face Hub.\n\n"
                "commands:\n");
    for (const command *const *c = commands; *c; c++) {
        const char *summary = (*c)->summary;
        fprintf(to, "  %-10s  %.*s\n", (*c)->name, (int)strcspn(summary, "."), summary);
    }
    fprintf(to, "\ncommon options:\n");
    print_common(to);
    fprintf(to,
            "\n--kernels SPEC chooses: auto takes whatever fits, none nothing, a list of ids those, the first before\n"
            "the next. auto,ID takes ID first wherever it fits and auto for the rest; auto,-ID all but ID.\n"
            "LLaMA-Factory's kernel_config does as well, as JSON text.\n");
    fprintf(to, "\nTENON_CONFIG, or kernels.json in ~/.config/tenon, says where plugins are and which kernels to use.\n"
                "Results go to stdout, everything else to stderr.\n"
                "Exit status: 0 done; 1 internal; 2 usage; 3 configuration, plugin or kernel selection; 4 checkpoint\n"
                "or input; 5 verification failed, or NaN; 6 out of memory or processes; 130 stopped by Ctrl-C.\n\n"
                "tenon COMMAND --help says more and shows an example, as does man tenon.\n\n"
                "example:\n  tenon run --kernels=auto models/demo \"And it came to pass\"\n");
}
