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

/* ---- types ----------------------------------------------------------------------------------------------------- */

typedef struct sim_type {
    const char *name; /* NULL: operators do not take it */
    size_t size;
    int bit;
} sim_type;

static const sim_type *type_of(aclDataType type)
{
    static const sim_type types[] = {
        [ACL_FLOAT] = {"FLOAT", 4, SIM_F32},
        [ACL_FLOAT16] = {"FLOAT16", 2, SIM_F16},
        [ACL_BF16] = {"BF16", 2, SIM_BF16},
        [ACL_DOUBLE] = {"DOUBLE", 8, SIM_F64},
        [ACL_BOOL] = {"BOOL", 1, SIM_BOOL},
        [ACL_INT8] = {"INT8", 1, SIM_SMALL},
        [ACL_UINT8] = {"UINT8", 1, SIM_SMALL},
        [ACL_INT16] = {"INT16", 2, SIM_SMALL},
        [ACL_INT32] = {"INT32", 4, SIM_I32},
        [ACL_INT64] = {"INT64", 8, SIM_I64},
        [ACL_UINT16] = {"UINT16", 2, SIM_UNSIGNED},
        [ACL_UINT32] = {"UINT32", 4, SIM_UNSIGNED},
        [ACL_UINT64] = {"UINT64", 8, SIM_UNSIGNED},
        [ACL_COMPLEX32] = {NULL, 4, 0},
        [ACL_COMPLEX64] = {NULL, 8, 0},
        [ACL_COMPLEX128] = {NULL, 16, 0},
    };
    static const sim_type none;
    int at = (int)type;
    return at >= 0 && at < (int)(sizeof types / sizeof *types) ? &types[at] : &none;
}

size_t aclDataTypeSize(aclDataType type)
{
    return type_of(type)->size;
}

const char *sim_type_name(aclDataType type)
{
    return type_of(type)->name ? type_of(type)->name : "another type";
}

int sim_type_bit(aclDataType type)
{
    return type_of(type)->bit;
}
