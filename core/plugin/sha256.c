/* SHA-256 through libcrypto. */
#include "plugin/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>

bool sha256_hex(const void *data, size_t size, char hex[65])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    if (!EVP_Digest(data, size, digest, &length, EVP_sha256(), NULL) || length != 32)
        return false;
    for (unsigned int i = 0; i < length; i++)
        snprintf(hex + 2 * (size_t)i, 3, "%02x", digest[i]);
    return true;
}
