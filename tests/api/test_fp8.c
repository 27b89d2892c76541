/* SPDX-License-Identifier: Apache-2.0 */
/* core/fp8.h against the formats' definitions: all 256 codes both ways, every value halfway between two neighbouring
   codes and the floats next to it, subnormals, saturation, infinities, NaN; then all exponents with random mantissas
   against a search of the table. */
#include <math.h>
#include <string.h>

#include "core/fp8.h"
#include "harness.h"

typedef struct format {
  const char *name;
  int exponent_bits;
  int mantissa_bits;
  uint8_t largest; /* code of the largest finite value */
  double most;
  double step; /* smallest subnormal */
  uint8_t (*encode)(float);
  float (*decode)(uint8_t);
} format;

static const format formats[] = {
    {"e4m3", 4, 3, 0x7E, 448.0, 0x1p-9, attn_fp8_e4m3_encode, attn_fp8_e4m3_decode},
    {"e5m2", 5, 2, 0x7B, 57344.0, 0x1p-16, attn_fp8_e5m2_encode, attn_fp8_e5m2_decode},
};

/* The value of a finite, non-negative code, by the definition of a binary format. */
static double value_of(const format *f, int code) {
  int bias = (1 << (f->exponent_bits - 1)) - 1;
  int exponent = code >> f->mantissa_bits;
  int mantissa = code & ((1 << f->mantissa_bits) - 1);
  if (exponent == 0) {
    return ldexp(mantissa, 1 - bias - f->mantissa_bits);
  }
  return ldexp((1 << f->mantissa_bits) + mantissa, exponent - bias - f->mantissa_bits);
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* x and -x have this code, the sign apart. */
static void expect_code(const format *f, float x, int code) {
  int plus = f->encode(x);
  int minus = f->encode(-x);
  CHECK(plus == code && minus == (code | 0x80), "%s: +-%a is stored as %02X and %02X, right is %02X", f->name,
        (double)x, plus, minus, code);
}

static void every_code(void **state) {
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    const format *f = &formats[i];
    CHECK(value_of(f, f->largest) == f->most && value_of(f, 1) == f->step, "%s: the definition's own ends", f->name);
    for (int code = 0; code <= f->largest; code++) {
      float x = (float)value_of(f, code);
      CHECK(bits_of(f->decode((uint8_t)code)) == bits_of(x), "%s: %02X is read as %a", f->name, code,
            (double)f->decode((uint8_t)code));
      CHECK(bits_of(f->decode((uint8_t)(code | 0x80))) == (bits_of(x) | 0x80000000u), "%s: %02X", f->name, code | 0x80);
      expect_code(f, x, code);
    }
    for (int code = f->largest + 1; code < 0x80; code++) {
      float plus = f->decode((uint8_t)code);
      float minus = f->decode((uint8_t)(code | 0x80));
      if (code == 0x7C) { /* e5m2 */
        CHECK(plus == INFINITY && minus == -INFINITY, "%s: 7C and FC are infinities", f->name);
        continue;
      }
      CHECK(isnan(plus) && (bits_of(plus) & 0x00400000u) != 0, "%s: %02X is a quiet NaN", f->name, code);
      CHECK(isnan(minus) && (bits_of(minus) & 0x80400000u) == 0x80400000u, "%s: %02X", f->name, code | 0x80);
      assert_int_equal(f->encode(plus), 0x7F);
      assert_int_equal(f->encode(minus), 0x7F);
    }
  }
  assert_int_equal(formats[0].largest + 1, 0x7F); /* e4m3 has one NaN, e5m2 an infinity and three NaN */
}

static void every_tie(void **state) {
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    const format *f = &formats[i];
    for (int code = 0; code < f->largest; code++) {
      double low = value_of(f, code);
      double high = value_of(f, code + 1);
      float middle = (float)((low + high) / 2);
      CHECK((double)middle == (low + high) / 2, "the middle is a float");
      expect_code(f, middle, code % 2 == 0 ? code : code + 1);
      expect_code(f, nextafterf(middle, 0.0f), code);
      expect_code(f, nextafterf(middle, INFINITY), code + 1);
      expect_code(f, nextafterf((float)low, INFINITY), code);
      expect_code(f, nextafterf((float)high, 0.0f), code + 1);
    }
  }
}

static void saturation(void **state) {
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    const format *f = &formats[i];
    float most = (float)f->most;
    float half_a_step = (float)((value_of(f, f->largest) - value_of(f, f->largest - 1)) / 2);
    expect_code(f, nextafterf(most, INFINITY), f->largest);
    expect_code(f, most + half_a_step, f->largest); /* where the code after it would begin */
    expect_code(f, nextafterf(most + half_a_step, INFINITY), f->largest);
    expect_code(f, 2 * most, f->largest);
    expect_code(f, 0x1.fffffep127f, f->largest);
    expect_code(f, INFINITY, f->largest);
    for (uint32_t payload = 1; payload < 0x800000u; payload <<= 1) {
      assert_int_equal(f->encode(float_of(0x7F800000u | payload)), 0x7F);
      assert_int_equal(f->encode(float_of(0xFF800000u | payload)), 0x7F);
    }
  }
}

static void next_to_zero(void **state) {
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    const format *f = &formats[i];
    expect_code(f, 0.0f, 0);
    expect_code(f, 0x1p-149f, 0);
    expect_code(f, 0x1.fffffcp-127f, 0); /* the largest subnormal float */
    expect_code(f, 0x1p-126f, 0);
    expect_code(f, (float)(f->step / 2), 0); /* a tie: to the even code */
    expect_code(f, nextafterf((float)(f->step / 2), 1.0f), 1);
    expect_code(f, (float)(f->step * 1.5), 2);
  }
}

/* The nearest code by trying all; of two equally near ones the even. */
static int nearest(const format *f, double magnitude) {
  int best = 0;
  magnitude = fmin(magnitude, f->most); /* the differences below are exact then */
  for (int code = 1; code <= f->largest; code++) {
    double better = fabs(value_of(f, best) - magnitude);
    double here = fabs(value_of(f, code) - magnitude);
    if (here < better || (here == better && code % 2 == 0)) {
      best = code;
    }
  }
  return best;
}

static void every_exponent(void **state) {
  uint32_t random = 9;
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
      for (int n = 0; n < 64; n++) {
        float x = float_of(exponent << 23 | random_bits(&random) >> 9);
        expect_code(&formats[i], x, nearest(&formats[i], (double)x));
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_code),   cmocka_unit_test(every_tie),      cmocka_unit_test(saturation),
      cmocka_unit_test(next_to_zero), cmocka_unit_test(every_exponent),
  };
  return cmocka_run_group_tests_name("fp8", tests, NULL, NULL);
}
