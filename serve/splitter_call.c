/* Calls as objects of JSON; see splitter_call.h. */
#include "splitter_call.h"

#include <string.h>

const json_t *splitter_call_tool(const json_t *tools, const char *name, size_t length)
{
    size_t i;
    json_t *each;
    json_array_foreach (tools, i, each) {
        const json_t *function = json_object_get(each, "function");
        const json_t *own = json_object_get(function ? function : each, "name");
        if (json_string_length(own) == length && length && memcmp(json_string_value(own), name, length) == 0)
            return function ? function : each;
    }
    return NULL;
}

void splitter_call_begin(splitter_call_reader *r, bool bare)
{
    *r = (splitter_call_reader){.bare = bare};
}

/* What members are called; "function" is the name's in some small models. */
static const struct {
    const char *key;
    splitter_member member;
} members[] = {
    {"name", MEMBER_NAME},
    {"function", MEMBER_NAME},
    {"tool_name", MEMBER_NAME},
    {"arguments", MEMBER_ARGUMENTS},
    {"parameters", MEMBER_ARGUMENTS},
    {"type", MEMBER_OTHER},
    {"id", MEMBER_OTHER},
    {"index", MEMBER_OTHER},
    {"tool_call_id", MEMBER_OTHER},
};

static bool read_key(splitter_call_reader *r, const char *key, size_t length)
{
    r->member = MEMBER_OTHER;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (strlen(members[i].key) == length && memcmp(members[i].key, key, length) == 0) {
            r->member = members[i].member;
            return true;
        }
    return !r->bare;
}

static splitter_match_result read_name(const json_t *tools, const char *text, size_t length, splitter_call *out)
{
    bool memory = true;
    json_t *name = splitter_json_load(text, length, &memory);
    out->tool = splitter_call_tool(tools, json_string_value(name), json_string_length(name));
    json_decref(name);
    return out->tool ? MATCH_MORE : memory ? MATCH_FAILED : MATCH_MEMORY;
}

/* A value of the object ends before place. */
static splitter_match_result read_value(splitter_call_reader *r, const json_t *tools, const splitter_window *w,
                                        size_t place, splitter_call *out)
{
    if (r->member == MEMBER_NAME)
        return read_name(tools, splitter_window_at(w, r->since), place - r->since, out);
    if (r->member == MEMBER_ARGUMENTS) {
        r->arguments = r->since;
        r->arguments_length = place - r->since;
    }
    return MATCH_MORE;
}

splitter_match_result splitter_call_step(splitter_call_reader *r, const json_t *tools, const splitter_window *w,
                                         size_t place, splitter_call *out)
{
    char c = *splitter_window_at(w, place);
    splitter_json_state before = r->json.state;
    int depth = r->json.depth;
    if (!depth && c != '{')
        return MATCH_FAILED;
    splitter_json_result result = splitter_json_step(&r->json, c);
    if (result == SCAN_WRONG)
        return MATCH_FAILED;
    if (depth == 1) {
        if (r->json.state == SCAN_STRING && (before == SCAN_FIRST_KEY || before == SCAN_NEXT_KEY))
            r->since = place + 1;
        else if (before == SCAN_STRING && r->json.state == SCAN_COLON &&
                 !read_key(r, splitter_window_at(w, r->since), place - r->since))
            return MATCH_FAILED;
        else if (before == SCAN_VALUE && r->json.state != SCAN_VALUE)
            r->since = place;
    }
    /* Numbers and words are neither a name nor arguments, so what ends with their last byte is enough. */
    if (r->json.depth == 1 && r->json.state == SCAN_AFTER && (before != SCAN_AFTER || depth != 1))
        return read_value(r, tools, w, place + 1, out);
    if (result == SCAN_MORE)
        return MATCH_MORE;
    bool memory = true;
    if (out->tool && r->arguments_length &&
        splitter_json_add_object(&out->arguments, splitter_window_at(w, r->arguments), r->arguments_length, &memory))
        return MATCH_DONE;
    return memory ? MATCH_FAILED : MATCH_MEMORY;
}
