/* A program that embeds Tenon: applies every kernel that fits, continues a prompt greedily and prints the text as it
 * comes. tenon/continue.h names the single steps, for who wants more than one text of a model.
 *
 *     cc embed.c $(pkg-config --cflags --libs tenon) -o embed
 *     ./embed MODEL /path/to/plugins "And it came to pass"
 */
#include <stdio.h>
#include <tenon/tenon.h>

static void print_report(void *ctx, const tn_report *report)
{
    (void)ctx;
    fprintf(stderr, "%s\n", report->summary);
}

static int print_text(void *ctx, const char *text, size_t length)
{
    fwrite(text, 1, length, ctx);
    return fflush(ctx) != 0;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL PLUGINS PROMPT\n", argv[0]);
        return 2;
    }
    /* Folders of plugins are absolute, so that nobody can slip in others by choosing where a program starts. */
    tn_continue_options options = {.size = sizeof options, .plugins = argv[2], .kernels = "auto", .max_tokens = 48};
    options.on_report = print_report;
    options.on_text = print_text;
    options.ctx = stdout;
    tn_error err = TN_ERROR_INIT;
    if (tn_continue_text(argv[1], argv[3], &options, &err) == TN_OK)
        puts("");
    else
        fprintf(stderr, "%s: %s: %s\n", argv[0], err.where, err.message);
    return -err.code;
}
