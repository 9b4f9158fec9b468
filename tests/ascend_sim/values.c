/* Numbers of 16 bits, and the names and sizes of types. */
#include "sim.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float sim_from_bf16(uint16_t value)
{
    return of_bits((uint32_t)value << 16);
}

uint16_t sim_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float sim_from_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, exponent = value >> 10 & 31, fraction = value & 1023;
    if (exponent == 31)
        return of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        float magnitude = ldexpf((float)fraction, -24);
        return sign ? -magnitude : magnitude;
    }
    return of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t sim_to_f16(float value)
{
    uint16_t sign = (uint16_t)(bits_of(value) >> 16 & 0x8000);
    uint32_t bits = bits_of(value) & 0x7fffffff;
    if (bits > 0x7f800000)
        return sign | 0x7e00;
    if (bits >= 0x477ff000) /* 65520: from here on it is nearer to what would be 65536 */
        return sign | 0x7c00;
    if (bits < 0x38800000) /* below 2^-14 steps are 2^-24; nearbyintf rounds ties to even */
        return sign | (uint16_t)nearbyintf(ldexpf(of_bits(bits), 24));
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((bits - 0x38000000) >> 13);
}

float aclFloat16ToFloat(aclFloat16 value)
{
    return sim_from_f16(value);
}

aclFloat16 aclFloatToFloat16(float value)
{
    return sim_to_f16(value);
}

size_t aclDataTypeSize(aclDataType type)
{
    switch ((int)type) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
        return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
        return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
        return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
        return 8;
    case ACL_COMPLEX128:
        return 16;
    default:
        return 0;
    }
}

const char *sim_type_name(aclDataType type)
{
    static const char *const names[] = {
        [ACL_FLOAT] = "FLOAT", [ACL_FLOAT16] = "FLOAT16", [ACL_INT8] = "INT8",     [ACL_INT32] = "INT32",
        [ACL_UINT8] = "UINT8", [ACL_INT16] = "INT16",     [ACL_UINT16] = "UINT16", [ACL_UINT32] = "UINT32",
        [ACL_INT64] = "INT64", [ACL_UINT64] = "UINT64",   [ACL_DOUBLE] = "DOUBLE", [ACL_BOOL] = "BOOL",
        [ACL_BF16] = "BF16",
    };
    int at = (int)type;
    return at >= 0 && at < (int)(sizeof names / sizeof *names) && names[at] ? names[at] : "another type";
}
