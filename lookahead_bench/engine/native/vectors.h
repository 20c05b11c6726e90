// Sixteen numbers at a time in the compiler's own vectors, which it splits where registers are shorter.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

inline Floats spread(float value) { return value - Floats{}; }

inline float widen(uint16_t value) {
  uint32_t bits = uint32_t(value) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline Floats load(const float* at) {
  Floats out;
  std::memcpy(&out, at, 64);
  return out;
}

// Sixteen bfloat16 as float32.
inline Floats load(const uint16_t* at) {
  Halves halves;
  std::memcpy(&halves, at, 32);
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

inline void store(float* at, Floats values) { std::memcpy(at, &values, 64); }

// Rounded to bfloat16, to nearest, ties to even.
inline void store(uint16_t* at, Floats values) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)at, (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
  Words bits = (Words)values;
  Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  Words quiet = (bits >> 16) | 0x40u;
  Words is_nan = (Words)(values != values);
  Halves out = __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Halves);
  std::memcpy(at, &out, 32);
#endif
}

// e^x for x <= 0, 0 below -87; off by two units in the last place at most.
inline Floats exponential(Floats x) {
  const Floats round = spread(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer
  const Words below = (Words)(x < spread(-87.0f));
  const Floats biased = x * spread(1.44269504f) + round;
  const Floats n = biased - round;
  // x - n ln 2, in two parts since one float does not hold ln 2 well enough.
  const Floats r = (x - n * spread(0.693359375f)) - n * spread(-2.12194440e-4f);
  Floats y = spread(1.9875691500e-4f);
  y = y * r + spread(1.3981999507e-3f);
  y = y * r + spread(8.3334519073e-3f);
  y = y * r + spread(4.1665795894e-2f);
  y = y * r + spread(1.6666665459e-1f);
  y = y * r + spread(5.0000001201e-1f);
  y = y * r * r + r + spread(1.0f);
  const Words power = ((Words)biased << 23) + 0x3f800000u;  // the low bits of `biased` are n
  return (Floats)((Words)(y * (Floats)power) & ~below);
}

inline float largest(Floats v) {
  float out = v[0];
  for (int lane = 1; lane < LANES; ++lane) out = v[lane] > out ? v[lane] : out;
  return out;
}

inline float total(Floats v) {
  for (int step = LANES / 2; step > 0; step /= 2)
    for (int lane = 0; lane < step; ++lane) v[lane] += v[lane + step];
  return v[0];
}

}  // namespace
