/* Tenon: status codes and the error record that every fallible function fills. */
#ifndef TENON_ERROR_H
#define TENON_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_API __attribute__((visibility("default")))

/* Zero is success, positive is an answer that is not an error, negative is an error.
 * The program's exit status is the negated code. */
typedef enum tn_status {
    TN_OK = 0,
    TN_DECLINED = 1,    /* a kernel does not take this site; the message says why           */
    TN_E_INTERNAL = -1, /* a defect of this library or of the system below it               */
    TN_E_USAGE = -2,    /* the caller asked for something that cannot be                    */
    TN_E_KERNEL = -3,   /* configuration, plugin or kernel selection                        */
    TN_E_INPUT = -4,    /* checkpoint, tokenizer or input data                              */
    TN_E_VERIFY = -5,   /* a kernel's numbers are outside its tolerance, or the model's none  */
    TN_E_MEMORY = -6,   /* out of memory, or no more processes can be started                */
    TN_E_CANCELLED = -7 /* a callback asked to stop                                         */
} tn_status;

/* Owned by the caller, who starts it as TN_ERROR_INIT. Every function accepts NULL instead.
 * The first error written is kept: later ones are consequences. */
typedef struct tn_error {
    tn_status code;
    char where[256];   /* file, tensor, key, plugin or option concerned; may be empty        */
    char message[768]; /* "what is wrong; what to do", one line, UTF-8                       */
} tn_error;

#define TN_ERROR_INIT                                                                                                  \
    {                                                                                                                  \
        TN_OK, "", ""                                                                                                  \
    }

/* Writes an error (unless err is NULL or already holds one) and returns code, so that a
 * failing function ends in `return tn_fail(err, TN_E_INPUT, path, "...", ...)`.
 * where may be NULL. Control characters in the texts, and bytes that are not UTF-8, become \xNN. [any thread] */
TN_API tn_status tn_fail(tn_error *err, tn_status code, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Forgets what err holds. [any thread] */
TN_API void tn_error_clear(tn_error *err);

/* For "did you mean": of count texts, the one nearest to a misspelt word, or to a part of it that was given ("swiglu"
 * for "npu_fused_swiglu"). NULL when none is near. Borrowed: one of texts. [any thread] */
TN_API const char *tn_nearest_name(const char *word, const char *const *texts, size_t count);

#ifdef __cplusplus
}
#endif
#endif
