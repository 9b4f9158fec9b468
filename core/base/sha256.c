/* SHA-256 through libcrypto. */
#include "base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>

static const EVP_MD *algorithm; /* lives as long as the process                                      */

/* In a context of its own, which is complete or not there: the one that libcrypto makes for itself at the first use
 * holds null pointers where memory ran out meanwhile, and goes on with them. */
static void set_up(void)
{
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
    OSSL_LIB_CTX *context = OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL) ? OSSL_LIB_CTX_new() : NULL;
    algorithm = context ? EVP_MD_fetch(context, "SHA2-256", NULL) : NULL;
    if (!algorithm)
        OSSL_LIB_CTX_free(context);
#else
    algorithm = EVP_sha256();
#endif
}

bool sha256_hex(const void *data, size_t size, char hex[SHA256_HEX])
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
