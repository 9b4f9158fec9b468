/* A conversation: messages, and the text and tokens that the model's chat template makes of them. Of run and chat. */
#ifndef TENON_CONVERSATION_H
#define TENON_CONVERSATION_H

#include "attached.h"

typedef struct conversation {
    tn_template *chat_template;
    json_t *messages;          /* a list of {"role", "content", ...}                             */
    json_t *tools, *variables; /* for the template; or NULL                                      */
    attached files;            /* of all messages                                                */
    bool plain;                /* the model has no template: what was said is one text, which it continues */
} conversation;

/* The template of a checkpoint's folder, and no messages. conversation_close is due also after a failure. */
tn_status conversation_open(conversation *c, const char *folder, tn_error *err);
void conversation_close(conversation *c);

/* The same of a model that may have no template. */
tn_status conversation_open_any(conversation *c, const char *folder, tn_error *err);

/* Takes what the options give to begin with: messages, the system's message, tools, and variables of the template. */
tn_status conversation_start(conversation *c, const options *o, tn_error *err);

/* Writes the messages so that --messages reads them; the file is whole or not there. */
tn_status conversation_save(const conversation *c, const char *path, tn_error *err);

tn_status conversation_add(conversation *c, const char *role, const char *text, size_t length, tn_error *err);

/* The same of the user's, behind files; with words that name some (attached_find), these in their places. */
tn_status conversation_ask(conversation *c, const media_file *files, size_t count, bool words, const char *text,
                           size_t length, tn_error *err);
void conversation_take_back(conversation *c); /* the last message, and its files                  */

/* The system's message, which is the first one; NULL: none. */
tn_status conversation_system(conversation *c, const char *text, tn_error *err);

/* Forgets all but the system's message. */
void conversation_reset(conversation *c);

/* Tokens that the model continues: up to where its answer begins, or, where the last message is the assistant's, up to
 * its end. Files must have been read (attached_read). ids is owned: free(). */
tn_status conversation_ids(const conversation *c, const tn_tokenizer *tokenizer, int64_t **ids, size_t *count,
                           tn_error *err);

/* The options that conversation_start looks at, beside --messages. */
#define CONVERSATION_OPTIONS                                                                                           \
    {OPT_SYSTEM, "system", "TEXT", 0, OPTION_TEXT, 0, 0, "the system's message"},                                      \
        {OPT_TOOLS, "tools", "FILE.json", 0, OPTION_TEXT, 0, 0, "a list of tools for the chat template"},              \
    {                                                                                                                  \
        OPT_TEMPLATE_VAR, "template-var", "NAME=VALUE", 0, OPTION_TEXT, 0, 0,                                          \
            "a variable of the chat template; may be repeated"                                                         \
    }

#endif
