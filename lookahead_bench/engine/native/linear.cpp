// Products of a few rows with a weight matrix, as decoding needs them: every weight is read once.
//
// Weights are packed in panels of 16 outputs, each [K][16] (float32) or [K / 2][16][2] (bfloat16), so that
// a panel is one stream through memory. A tile keeps ROWS x 16 (or x 32) sums in registers and runs over all
// of K. Each sum is taken in the order of K whatever the number of rows, the tile and the threads: a row's
// result never depends on what else is in the batch.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "vectors.h"

namespace {

constexpr int PANEL = LANES;
constexpr int AHEAD = 64;  // steps of K that are prefetched: 4 KiB of a panel
#if defined(__AVX512F__)
constexpr int MOST_ROWS_TWO = 14, MOST_ROWS_ONE = 28;  // 28 sums and what multiplies them, in 32 registers
#else
constexpr int MOST_ROWS_TWO = 3, MOST_ROWS_ONE = 6;  // a sum takes two registers of 16
#endif

struct Float32 {
  using Element = float;
  static constexpr int STEP = 1;  // elements of K per step
  using Weights = Floats;
  using Input = Floats;
  static Weights weights(const Element* at) { return load(at); }
  static Input input(const Element* at) { return spread(*at); }
  static Floats add(Floats sum, Weights w, Input x) { return sum + w * x; }
  static float single(const Element* at) { return *at; }
};

struct BFloat16 {
  using Element = uint16_t;
  static constexpr int STEP = 2;
  static float single(const Element* at) { return widen(*at); }
#if defined(__AVX512BF16__)
  using Weights = __m512bh;
  using Input = __m512bh;
  static Weights weights(const Element* at) { return (__m512bh)_mm512_loadu_si512(at); }
  static Input input(const Element* at) {
    int32_t pair;
    std::memcpy(&pair, at, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static Floats add(Floats sum, Weights w, Input x) { return (Floats)_mm512_dpbf16_ps((__m512)sum, w, x); }
#else
  struct Pair {
    Floats even, odd;
  };
  using Weights = Pair;
  using Input = Pair;
  static Weights weights(const Element* at) {
    Words pairs;
    std::memcpy(&pairs, at, 64);
    return {(Floats)(pairs << 16), (Floats)(pairs & 0xffff0000u)};
  }
  static Input input(const Element* at) { return {spread(widen(at[0])), spread(widen(at[1]))}; }
  static Floats add(Floats sum, const Weights& w, const Input& x) { return sum + w.even * x.even + w.odd * x.odd; }
#endif
};

// ROWS rows of x [ROWS, K] times PANELS panels: y [ROWS, PANELS * 16], rows `outputs` apart.
template <class T, int ROWS, int PANELS>
void tile(const typename T::Element* x, const typename T::Element* w, const typename T::Element* bias,
          typename T::Element* y, int64_t K, int64_t outputs) {
  Floats sums[ROWS][PANELS];
  for (int panel = 0; panel < PANELS; ++panel) {
    Floats first{};
    if (bias)
      for (int n = 0; n < PANEL; ++n) first[n] = T::single(bias + panel * PANEL + n);
    for (int row = 0; row < ROWS; ++row) sums[row][panel] = first;
  }
  for (int64_t k = 0; k < K; k += T::STEP) {
    typename T::Weights now[PANELS];
#pragma GCC unroll 2
    for (int panel = 0; panel < PANELS; ++panel) {
      const typename T::Element* at = w + (panel * K + k) * PANEL;
      __builtin_prefetch(at + AHEAD * T::STEP * PANEL);
      now[panel] = T::weights(at);
    }
#pragma GCC unroll 28
    for (int row = 0; row < ROWS; ++row) {
      const typename T::Input value = T::input(x + row * K + k);
#pragma GCC unroll 2
      for (int panel = 0; panel < PANELS; ++panel) sums[row][panel] = T::add(sums[row][panel], now[panel], value);
    }
  }
  for (int row = 0; row < ROWS; ++row)
    for (int panel = 0; panel < PANELS; ++panel) store(y + row * outputs + panel * PANEL, sums[row][panel]);
}

template <class T>
using Tile = void (*)(const typename T::Element*, const typename T::Element*, const typename T::Element*,
                      typename T::Element*, int64_t, int64_t);

template <class T, int PANELS, int... ROWS>
Tile<T> pick(int rows, std::integer_sequence<int, ROWS...>) {
  static constexpr Tile<T> tiles[] = {tile<T, ROWS + 1, PANELS>...};
  return tiles[rows - 1];
}

template <class T, int PANELS, int MOST>
void product(const typename T::Element* x, const typename T::Element* w, const typename T::Element* bias,
             typename T::Element* y, int64_t rows, int64_t outputs, int64_t K) {
  constexpr int WIDTH = PANELS * PANEL;
  const int64_t parts = (rows + MOST - 1) / MOST;
  at::parallel_for(0, outputs / WIDTH, 1, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const int64_t output = group * WIDTH;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = rows * part / parts, size = rows * (part + 1) / parts - row;
        pick<T, PANELS>(int(size), std::make_integer_sequence<int, MOST>())(
            x + row * K, w + output * K, bias ? bias + output : nullptr, y + row * outputs + output, K, outputs);
      }
    }
  });
}

template <class T>
void product(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias, at::Tensor& y) {
  using E = typename T::Element;
  const int64_t rows = x.size(0), K = x.size(1), outputs = packed.size(0);
  const E *px = (const E*)x.const_data_ptr(), *pw = (const E*)packed.const_data_ptr();
  const E* pb = bias.defined() ? (const E*)bias.const_data_ptr() : nullptr;
  E* py = (E*)y.data_ptr();
  // Between the two, one panel with all rows reads it once, where two panels would read it twice.
  const bool one = outputs % (2 * PANEL) || (rows > MOST_ROWS_TWO && rows <= MOST_ROWS_ONE);
  if (one)
    product<T, 1, MOST_ROWS_ONE>(px, pw, pb, py, rows, outputs, K);
  else
    product<T, 2, MOST_ROWS_TWO>(px, pw, pb, py, rows, outputs, K);
}

at::Tensor pack(const at::Tensor& weight) {
  const int64_t outputs = weight.size(0), K = weight.size(1);
  const int64_t step = weight.scalar_type() == at::kBFloat16 ? BFloat16::STEP : Float32::STEP;
  TORCH_CHECK(outputs % PANEL == 0 && K % step == 0, "a weight of ", outputs, " x ", K, " makes no whole panels");
  return weight.view({outputs / PANEL, PANEL, K / step, step}).permute({0, 2, 1, 3}).contiguous().view({outputs, K});
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& packed, const std::optional<at::Tensor>& bias) {
  const int64_t K = packed.size(1);
  const at::Tensor x = input.reshape({-1, K}).contiguous();
  TORCH_CHECK(x.scalar_type() == packed.scalar_type(), "input and weight must have one dtype");
  const at::Tensor b = bias.has_value() ? bias->to(packed.scalar_type()).contiguous() : at::Tensor();
  at::Tensor y = at::empty({x.size(0), packed.size(0)}, x.options());
  if (x.size(0) > 0) {
    if (packed.scalar_type() == at::kBFloat16)
      product<BFloat16>(x, packed, b, y);
    else {
      TORCH_CHECK(packed.scalar_type() == at::kFloat, "float32 and bfloat16 only");
      product<Float32>(x, packed, b, y);
    }
  }
  auto shape = input.sizes().vec();
  shape.back() = packed.size(0);
  return y.view(shape);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lookahead_bench, m) {
  m.def("pack(Tensor weight) -> Tensor");
  m.def("linear(Tensor input, Tensor packed, Tensor? bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(lookahead_bench, CPU, m) {
  m.impl("pack", &pack);
  m.impl("linear", &linear);
}
