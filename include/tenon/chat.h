/* Tenon: chat templates, which turn a conversation into the text that a model continues. tenon.h has the rules. */
#ifndef TENON_CHAT_H
#define TENON_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenon/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_template tn_template;

/* Reads the chat template of a checkpoint's folder: chat_template.jinja, else what tokenizer_config.json or
 * chat_template.json have as chat_template (where there are several: the one called "default", and "tool_use" for calls
 * with tools); and the special tokens of tokenizer_config.json and special_tokens_map.json, which templates see as
 * bos_token, eos_token and so on. Or path is a file with a template; special tokens are then those of its folder, if it
 * has such files. Or it is a .gguf, whose metadata have all of these. path may be a model's name as in tn_model_open.
 * TN_E_INPUT: there is none, or it is wrong; where is then "FILE:LINE". The template does not change afterwards. Owned:
 * tn_template_free. [any thread] */
TN_API tn_template *tn_template_open(const char *path, tn_error *err);

/* A template from memory, without special tokens; name is what errors call it. source need not end in NUL. Owned:
 * tn_template_free. [any thread] */
TN_API tn_template *tn_template_parse(const char *source, size_t length, const char *name, tn_error *err);
TN_API void tn_template_free(tn_template *chat_template); /* [one thread] */

/* Its text, for calls with tools or without: by that is told how a family of models writes calls of tools. It ends in a
 * NUL. [any thread] */
TN_API const char *tn_template_source(const tn_template *chat_template, bool tools);

typedef struct tn_render_options {
    uint32_t size;
    bool add_generation_prompt;  /* end with what opens the model's answer                                       */
    bool continue_final_message; /* end right behind the last message's content, so that the model goes on with it */
    const char *tools;           /* JSON, a list; NULL: `tools` is none                                           */
    const char *variables;       /* JSON, an object of further variables, such as {"enable_thinking": false};
                                  * before special tokens of the same name. NULL: none                            */
    int64_t now;                 /* what strftime_now sees, in seconds since 1970, shown in local time; 0: the clock */
} tn_render_options;

/* Renders a conversation as `transformers` does (apply_chat_template). messages: JSON, a list of objects such as
 * {"role": "user", "content": "Hello"}; it need not end in NUL. A content may be a list of parts, such as {"type":
 * "text", "text": "Hello"}: a template that loops over them gets them, for any other the texts are joined by line ends,
 * and a part that is none is an error. options may be NULL. text is owned: free(); it ends in
 * NUL, which length (may be NULL) does not count. Nothing is done to special tokens in it: encode it without adding
 * others. TN_E_INPUT: the messages are wrong, or the template refuses them (raise_exception), uses something that is
 * not supported, or asks for more time, depth or memory than a template may. [any thread] */
TN_API tn_status tn_template_render(const tn_template *chat_template, const char *messages, size_t messages_length,
                                    const tn_render_options *options, char **text, size_t *length, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
