/* SPDX-License-Identifier: Apache-2.0 */
/* rotation.c: see rotation.h. */
#include "core/rotation.h"

#include <string.h>

#include "core/format.h"

/* Bit i: the sign of element i, 1 for -1. It is bit 23 of draw i of the 32-bit Mersenne Twister MT19937 seeded with
   0x9E3779B9 by its standard initialisation; test_rotation.c makes it anew. */
static const uint32_t minus[ATTN_ROW_MAX / 32] = {
    /* clang-format off */
    0x9a8ca6f2u, 0x7f7fca4eu, 0x59bbc293u, 0x9480abc7u, 0xb55b747eu, 0x54503bbeu, 0xcdf467b7u, 0x05dfbc5fu,
    0xb291e3ccu, 0x57563834u, 0xe46ae225u, 0x67fc4ca6u, 0xcfc78691u, 0x32d9dff1u, 0x365fdb89u, 0x75625346u,
    0x668ae4e3u, 0xd9cf73a9u, 0xeb0082b6u, 0x0ca36fb4u, 0xe29e7333u, 0xa50d373fu, 0x0f3cfcebu, 0x1d541dfeu,
    0xb2e4cf05u, 0x1e32d587u, 0x237771acu, 0xc78728fdu, 0x4bee5a90u, 0x56a40da0u, 0xbb9454f0u, 0xf6680674u,
    0x520e101du, 0x438ecb7au, 0x8bb66affu, 0xf4369334u, 0x959df221u, 0xf330885du, 0x03d72d45u, 0x451d9723u,
    0x365b9116u, 0x77d49ed3u, 0xb267f6f6u, 0x2608a158u, 0xb64d15c2u, 0xe7bbfabdu, 0x6fc22d6fu, 0x1e54fafbu,
    0x212840edu, 0x4cd25145u, 0x8035c628u, 0xf6b9df9fu, 0x973e9d68u, 0x6c6468d8u, 0x01b5e0ebu, 0xa3b6e789u,
    0x43124650u, 0x6a29e0bbu, 0x4ab459b3u, 0x70d1695du, 0xa164f126u, 0xbbdf180du, 0x9ad52dbau, 0x19ba0fe4u,
    0x9f446a3bu, 0x5e4c4284u, 0x92e6360fu, 0x80c61b62u, 0x0ef6d494u, 0x36ff6590u, 0x26b569ebu, 0x799f13dbu,
    0x1ccba77cu, 0x5475d306u, 0x866784bdu, 0x4c13f08au, 0xa7c770d1u, 0x9d5abce9u, 0xc482e9adu, 0x15985859u,
    0xe5f6c259u, 0x407f6261u, 0xbd8b4c3fu, 0x5fcdab64u, 0x16348a65u, 0x75960cfdu, 0x0a565ca0u, 0x94a04e74u,
    0x7c7f0d35u, 0xda6bd06eu, 0x63e11ce1u, 0x06ca8504u, 0xd572039au, 0x7dc5d7f0u, 0x1b3b83ddu, 0x5920651bu,
    0xd477b3e9u, 0xc1b31415u, 0x14ace942u, 0xc3560bd9u, 0x87f8db86u, 0x9c2f9819u, 0x55243bb1u, 0x118e711fu,
    0x21f0cee5u, 0x3ad4b73eu, 0xdb636c37u, 0xc73b0c13u, 0xeb1fb461u, 0x7317c783u, 0xcf6950c9u, 0xaf748f14u,
    0x70538aa3u, 0xf7184746u, 0xc3f2dffcu, 0xb50e72beu, 0xb9b74889u, 0x5759acefu, 0xde77abfeu, 0xc0a2494eu,
    0x99914d7eu, 0x5fe1bca2u, 0xbdc2b1a0u, 0x28150ca7u, 0x24ae8d8eu, 0x4ea50ee8u, 0xfe9511c2u, 0xcd99e844u,
    0x53da9b92u, 0x005adad1u, 0x321770f3u, 0x20e37970u, 0x58ce3477u, 0x8a0e40a6u, 0x203eeeacu, 0xeae63af6u,
    0xa86c233du, 0x50c3404cu, 0x0876232du, 0xd67b4e08u, 0x54693f1du, 0x89c1aca3u, 0xa94c1a13u, 0xdf4fea79u,
    0xb6b3d2a9u, 0x5b50ac1eu, 0xc3aac233u, 0x3a212310u, 0x54841f0fu, 0xc96de225u, 0x85b188eau, 0xe97326cau,
    0xb9af118du, 0xadeb9e99u, 0x5d5772d6u, 0xd6b97914u, 0x13caae8du, 0xb2ebec4au, 0xf535d6d7u, 0x0f996afcu,
    0x0a578bf3u, 0x245abb45u, 0xae58445fu, 0xbcfcdb5cu, 0x323448d6u, 0x0852eb8du, 0x94fdcb03u, 0xfb806641u,
    0xa61d941fu, 0xe754d5e9u, 0xc53581bcu, 0xeadb5579u, 0x19c28b43u, 0xb55e77b1u, 0xd4ccbce3u, 0xee293f7du,
    0xf86845b7u, 0xc6560322u, 0xf07840dfu, 0x4e508c5eu, 0xdceb0ef8u, 0xb6df7d8eu, 0xb4bc8941u, 0x2ce36406u,
    0xb3e4e9cfu, 0xa760029eu, 0x58b5f5adu, 0x14cd323bu, 0x42d17ed9u, 0x275aa078u, 0x691a2be8u, 0x3d69bfbeu,
    0x222fc93cu, 0xb874780fu, 0xbe461d5bu, 0x753e08b9u, 0x05fda14au, 0x14e6097eu, 0x45ce1c94u, 0xcc96b184u,
    0xa05a4537u, 0x4b8c1537u, 0x3781f51cu, 0x382ca209u, 0x0497ed79u, 0x0cb490d6u, 0x34a2cf38u, 0x027f18b4u,
    0xa64624cfu, 0x696d753eu, 0xd831e7a7u, 0x5952fe1cu, 0xcef060c1u, 0xcbe3e51au, 0x612c5c20u, 0x4bf769d0u,
    0x6bd858ddu, 0xbf60c89eu, 0x93dd1981u, 0xce9851b9u, 0x3d5cff9bu, 0x5d8ddf4eu, 0xf19f7a0du, 0xff33f07fu,
    0x2e28274au, 0xf4c83db5u, 0xc998d76du, 0x3bc2d2b6u, 0x03cdae94u, 0xa91e8d86u, 0xb149c76fu, 0xdb202f37u,
    0x8749b416u, 0xebcc092au, 0x539883efu, 0x283e437eu, 0xc888f69du, 0xfe5a24f0u, 0xdf97141du, 0x828e8af0u,
    0x17f798b3u, 0x326122a5u, 0x9274c443u, 0xfe66b59eu, 0x3cb22e7au, 0xc453bfbfu, 0x60190300u, 0x3c4ca058u,
    0x79bde8a5u, 0xecf204beu, 0xdab9e5e6u, 0xc2744d91u, 0x16ab62b7u, 0x66006795u, 0x5efe6e33u, 0x2e3aed5du,
    /* clang-format on */
};

uint32_t attn_rotation_sign(int64_t index) {
  return (minus[index / 32] >> (index % 32) & 1u) << 31;
}

/* The largest power of two that is at most n. */
static int64_t power_below(int64_t n) {
  int64_t power = 1;
  while (power <= n / 2) {
    power *= 2;
  }
  return power;
}

uint32_t attn_rotation_signs(int64_t index) {
  return minus[index / 32] >> (index % 32);
}

int64_t attn_rotation_block(int64_t size, int64_t begin) {
  return power_below(size - begin);
}

float attn_rotation_factor(int64_t size, int64_t n) {
  float factor = 1.0f;
  for (int64_t ratio = power_below(size) / n; ratio >= 4; ratio /= 4) {
    factor *= 2.0f;
  }
  return factor;
}

static void apply_signs(float *row, int64_t begin, int64_t n) {
  for (int64_t i = begin; i < begin + n; i++) {
    uint32_t bits;
    memcpy(&bits, &row[i], sizeof bits);
    bits ^= attn_rotation_sign(i);
    memcpy(&row[i], &bits, sizeof bits);
  }
}

/* The steps 1 and 2 of four elements at a time: the same sums as one step after the other. */
static int64_t first_steps(float *row, int64_t n) {
  if (n < 4) {
    return 1;
  }
  for (int64_t i = 0; i < n; i += 4) {
    float a = row[i] + row[i + 1];
    float b = row[i] - row[i + 1];
    float c = row[i + 2] + row[i + 3];
    float d = row[i + 2] - row[i + 3];
    row[i] = a + c;
    row[i + 1] = b + d;
    row[i + 2] = a - c;
    row[i + 3] = b - d;
  }
  return 4;
}

/* (a, b) becomes (a + b, a - b); they do not overlap. */
static void add_subtract(float *restrict a, float *restrict b, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float x = a[i];
    float y = b[i];
    a[i] = x + y;
    b[i] = x - y;
  }
}

static void butterflies(float *row, int64_t n) {
  for (int64_t h = first_steps(row, n); h < n; h *= 2) {
    for (int64_t i = 0; i < n; i += 2 * h) {
      add_subtract(row + i, row + i + h, h);
    }
  }
}

static void multiply(float *row, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i++) {
    row[i] *= factor;
  }
}

void attn_rotation_apply(float *row, int64_t size) {
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    apply_signs(row, begin, n);
    butterflies(row + begin, n);
    multiply(row + begin, n, attn_rotation_factor(size, n));
    begin += n;
  }
}

void attn_rotation_query(float *row, int64_t size) {
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    apply_signs(row, begin, n);
    butterflies(row + begin, n);
    multiply(row + begin, n, 1.0f / ((float)n * attn_rotation_factor(size, n)));
    begin += n;
  }
}

void attn_rotation_undo(float *row, int64_t size) {
  for (int64_t begin = 0; begin < size;) {
    int64_t n = attn_rotation_block(size, begin);
    /* scaled first: the sums of large rows would overflow */
    multiply(row + begin, n, 1.0f / ((float)n * attn_rotation_factor(size, n)));
    butterflies(row + begin, n);
    apply_signs(row, begin, n);
    begin += n;
  }
}
