/* The model tree as text, JSON and a picture. */
#include "base/text.h"
#include "suite.h"
#include "tempdir.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_model *open_with_kernels(const char *name)
{
    tn_model *m = test_model(name, .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_kernel_add(&(test_kernel){.id = "mlp", .op = TN_OP_MLP});
    return m;
}

static char *describe(tn_model *m, const tn_report *report, tn_graph_format format, bool explain)
{
    tn_error err = TN_ERROR_INIT;
    char *out = tn_model_describe(m, report, format, explain, &err);
    ck_assert_msg(out != NULL, "%s", err.message);
    suite_keep(out, free);
    return out;
}

static size_t count_of(const char *text, const char *word)
{
    size_t n = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n++;
    return n;
}

/* The line that holds every word, or a failure. */
static void expect_line(const char *text, const char *a, const char *b)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t n = strcspn(line, "\n");
        const char *x = memmem(line, n, a, strlen(a));
        if (x && memmem(x, n - (size_t)(x - line), b, strlen(b)))
            return;
    }
    ck_abort_msg("no line with '%s' and then '%s' in:\n%s", a, b, text);
}

START_TEST(text_folds_equal_layers)
{
    tn_model *m = open_with_kernels("qwen3");
    tn_report *report = test_plan(m, NULL, "auto");
    char *text = describe(m, report, TN_GRAPH_TEXT, false);
    ck_assert_ptr_nonnull(strstr(text, "Qwen3ForCausalLM (qwen3, "));
    expect_line(text, "layers.0-1 ", "(2 alike)");
    expect_line(text, "  mlp ", "MLP          * mlp");
    expect_line(text, "  up_proj ", "LINEAR         (mlp)");
    expect_line(text, "  q_proj ", "LINEAR         eager");
    expect_line(text, "modeling_qwen3 ", "scope");
    expect_line(text, "apply_rotary_pos_emb", "ROPE");
    ck_assert_uint_eq(count_of(text, "self_attn"), 1);
    ck_assert_ptr_nonnull(strstr(text, report->summary));
    text = describe(m, NULL, TN_GRAPH_TEXT, false); /* what is applied: nothing */
    ck_assert_ptr_null(strstr(text, "* norm"));
}
END_TEST

START_TEST(layers_that_differ_stand_apart)
{
    tn_model *m = open_with_kernels("qwen3");
    ck_assert_int_eq(tn_apply_kernel(m, NULL, "norm", "model.layers.1.input_layernorm", NULL), TN_OK);
    char *text = describe(m, NULL, TN_GRAPH_TEXT, false);
    expect_line(text, "layers.0 ", "Qwen3DecoderLayer");
    expect_line(text, "layers.1 ", "Qwen3DecoderLayer");
    ck_assert_uint_eq(count_of(text, "* norm"), 1);
}
END_TEST

/* The sum before a norm has a line of its own where a kernel takes it; the first layer has none at its input. */
START_TEST(sums_are_shown_where_taken)
{
    tn_model *m = open_with_kernels("qwen3");
    test_kernel_add(&(test_kernel){.id = "pair", .op = TN_OP_ADD_RMS_NORM});
    char *text = describe(m, NULL, TN_GRAPH_TEXT, false);
    ck_assert_ptr_null(strstr(text, "+ residual"));
    tn_report *report = test_plan(m, NULL, "pair");
    text = describe(m, report, TN_GRAPH_TEXT, false);
    expect_line(text, "+ residual ", "ADD_RMS_NORM * pair");
    expect_line(text, "  post_attention_layernorm ", "RMS_NORM       (pair)");
    expect_line(text, "layers.0 ", "Qwen3DecoderLayer");
    ck_assert_uint_eq(count_of(text, "* pair"), 4);
    text = describe(m, report, TN_GRAPH_DOT, true);
    ck_assert_ptr_nonnull(strstr(text, "ADD_RMS_NORM: </font><font point-size=\"10\"><b>pair</b>"));
    text = describe(m, report, TN_GRAPH_JSON, true);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    json_t *model = json_array_get(json_object_get(root, "modules"), 0);
    json_t *norm = json_array_get(json_object_get(model, "modules"), 2);
    ck_assert_str_eq(json_string_value(json_object_get(norm, "path")), "model.norm");
    json_t *own = json_object_get(norm, "site"), *outer = json_object_get(norm, "outer_site");
    ck_assert_str_eq(json_string_value(json_object_get(own, "op")), "RMS_NORM");
    ck_assert_str_eq(json_string_value(json_object_get(own, "covered_by")), "model.norm");
    ck_assert_str_eq(json_string_value(json_object_get(outer, "op")), "ADD_RMS_NORM");
    ck_assert_str_eq(json_string_value(json_object_get(outer, "kernel")), "pair");
    json_decref(root);
}
END_TEST

/* A kernel decides about sites of its operation; about the others there is one line. */
START_TEST(explain_shows_decisions)
{
    tn_model *m = open_with_kernels("qwen3");
    test_kernel_add(&(test_kernel){.id = "idle", .op = TN_OP_MOE_BLOCK});
    tn_report *report = test_plan(m, NULL, "norm");
    char *text = describe(m, report, TN_GRAPH_TEXT, true);
    ck_assert_ptr_nonnull(strstr(text, "+ norm: takes it"));
    ck_assert_ptr_nonnull(strstr(text, "- mlp: kernels: not among those asked for"));
    ck_assert_uint_eq(count_of(text, "- mlp: "), 2); /* one MLP in each of the two layers */
    ck_assert_ptr_null(strstr(text, "op: site has"));
    ck_assert_ptr_nonnull(strstr(text,
                                 "\nno implementation for ADD_RMS_NORM (4 sites), ROPE (1 site), LINEAR (15 sites), "
                                 "ATTENTION (2 sites)\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nidle: this model has none of the operations that it implements\n"));
}
END_TEST

/* Counts the modules below, and those whose site has kernel. */
static void walk_json(json_t *modules, const char *kernel, size_t *count, size_t *with)
{
    size_t i;
    json_t *m;
    json_array_foreach (modules, i, m) {
        const char *has = json_string_value(json_object_get(json_object_get(m, "site"), "kernel"));
        *count += 1;
        *with += has && !strcmp(has, kernel);
        ck_assert(json_is_string(json_object_get(m, "path")) && json_is_string(json_object_get(m, "class")));
        if (json_object_get(m, "modules"))
            walk_json(json_object_get(m, "modules"), kernel, count, with);
    }
}

START_TEST(json_is_complete)
{
    tn_model *m = open_with_kernels("qwen3");
    tn_report *report = test_plan(m, NULL, "auto");
    char *text = describe(m, report, TN_GRAPH_JSON, true);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "%s at %d: %s", error.text, error.line, text);
    size_t count = 0, with = 0;
    walk_json(json_object_get(root, "modules"), "norm", &count, &with);
    ck_assert_uint_eq(with, 9);
    ck_assert_uint_eq(count, 5 + 1 + 2 * 14); /* model and its four, lm_head; a layer is 14 modules */
    ck_assert_str_eq(json_string_value(json_object_get(root, "summary")), report->summary);
    json_t *rope = json_array_get(json_object_get(json_array_get(json_object_get(root, "scopes"), 0), "modules"), 0);
    json_t *site = json_object_get(rope, "site");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(site, "meaning"), "rope")), "half");
    ck_assert(json_is_null(json_object_get(site, "kernel")));
    ck_assert_uint_eq(json_array_size(json_object_get(site, "verdicts")), 2);
    json_decref(root);
}
END_TEST

START_TEST(strings_are_escaped)
{
    text t = {0};
    text_add_quoted(&t, "a\"b\\c\n\x01 \xc3\xa9 \xff \xe2\x82\xac \xed\xa0\x80");
    json_t *value = json_loads(t.data, JSON_DECODE_ANY, NULL);
    ck_assert_msg(value != NULL, "%s", t.data);
    ck_assert_str_eq(json_string_value(value),
                     "a\"b\\c\n\x01 \xc3\xa9 \xef\xbf\xbd \xe2\x82\xac \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(value);
    free(t.data);
}
END_TEST

/* Graphviz accepts it, where it is installed. */
START_TEST(dot_is_valid)
{
    tn_model *m = open_with_kernels("qwen3_moe");
    tn_report *report = test_plan(m, NULL, "auto");
    char *dot = describe(m, report, TN_GRAPH_DOT, true);
    ck_assert_uint_eq(count_of(dot, "digraph"), 1);
    ck_assert_ptr_nonnull(strstr(dot, "<b>norm</b></font>"));
    ck_assert_ptr_nonnull(strstr(dot, "has a kernel"));
    if (system("dot -V >/dev/null 2>&1") == 0) {
        char command[1024], *folder = tempdir_new(), *in = tempdir_at(folder, "g.dot");
        char *svg = tempdir_at(folder, "g.svg"), *said = tempdir_at(folder, "stderr");
        tempdir_write(in, dot, strlen(dot));
        snprintf(command, sizeof command, "dot -Tsvg '%s' >'%s' 2>'%s'", in, svg, said);
        ck_assert_int_eq(system(command), 0);
        size_t size;
        char *picture = tempdir_read(svg, &size);
        ck_assert_ptr_nonnull(strstr(picture, ">norm</text>"));
        ck_assert_ptr_nonnull(strstr(picture, "Qwen3MoeSparseMoeBlock"));
        free(picture);
    } else {
        puts("SKIPPED drawings: dot is not installed");
    }
}
END_TEST

int main(void)
{
    TCase *c = suite_open("describe", 60);
    suite_add(c, text_folds_equal_layers, layers_that_differ_stand_apart, sums_are_shown_where_taken,
              explain_shows_decisions, json_is_complete, strings_are_escaped, dot_is_valid);
    return suite_run();
}
