/* SHA-256 through libcrypto. */
#include "plugin/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>

static const EVP_MD *algorithm;

/* Once, and asked for what came of it: libcrypto sets itself up at the first use otherwise, and where that fails for
 * lack of memory goes on with null pointers. No configuration file is read, no exit handler left: plugins may stay. */
static void set_up(void)
{
    if (OPENSSL_init_crypto(OPENSSL_INIT_ADD_ALL_DIGESTS | OPENSSL_INIT_NO_LOAD_CONFIG, NULL) == 1)
        algorithm = EVP_sha256();
}

bool sha256_hex(const void *data, size_t size, char hex[65])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    pthread_once(&once, set_up);
    EVP_MD_CTX *context = algorithm ? EVP_MD_CTX_new() : NULL;
    bool done = context && EVP_DigestInit_ex(context, algorithm, NULL) && EVP_DigestUpdate(context, data, size) &&
                EVP_DigestFinal_ex(context, digest, &length) && length == 32;
    EVP_MD_CTX_free(context);
    for (unsigned int i = 0; done && i < length; i++)
        snprintf(hex + 2 * (size_t)i, 3, "%02x", digest[i]);
    return done;
}
