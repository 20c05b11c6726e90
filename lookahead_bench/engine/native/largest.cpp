// The few largest of each row of logits, and where they are: what greedy choice and top-k drafting read.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 256;  // columns that are passed over together where none is large enough
constexpr float NONE = -std::numeric_limits<float>::infinity();

inline float number(float value) { return value; }
inline float number(uint16_t value) { return widen(value); }

struct Found {
  float value;
  int64_t column;
};

// The k largest of `row` in falling order, the first column first among equals; NaN counts as the least.
template <class E>
void largest(const E* row, int64_t columns, int64_t k, std::vector<Found>& found) {
  found.clear();
  const auto offer = [&](int64_t column) {
    const float value = number(row[column]) == number(row[column]) ? number(row[column]) : NONE;
    if (int64_t(found.size()) == k) {
      if (!(value > found.back().value)) return;
      found.pop_back();
    }
    auto at = found.end();
    while (at != found.begin() && value > (at - 1)->value) --at;
    found.insert(at, {value, column});
  };
  int64_t column = 0;
  for (; column < k; ++column) offer(column);
  for (; column + BLOCK <= columns; column += BLOCK) {
    Floats most = spread(NONE);
    for (int64_t lane = 0; lane < BLOCK; lane += LANES) {
      const Floats now = load(row + column + lane);
      most = now > most ? now : most;
    }
    if (largest(most) > found.back().value)
      for (int64_t offset = 0; offset < BLOCK; ++offset) offer(column + offset);
  }
  for (; column < columns; ++column) offer(column);
}

template <class E>
void largest(const at::Tensor& logits, int64_t k, at::Tensor& out) {
  const E* from = (const E*)logits.const_data_ptr();
  int64_t* to = out.data_ptr<int64_t>();
  at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
    std::vector<Found> found;
    for (int64_t row = begin; row < end; ++row) {
      largest(from + row * logits.stride(0), logits.size(1), k, found);
      for (int64_t i = 0; i < k; ++i) to[row * k + i] = found[i].column;
    }
  });
}

// logits [rows, columns] -> int64 [rows, k]
at::Tensor largest(const at::Tensor& logits, int64_t k) {
  TORCH_CHECK(logits.dim() == 2 && logits.stride(1) == 1, "logits must be rows of columns that lie side by side");
  TORCH_CHECK(k >= 1 && k <= logits.size(1), "k must be 1 to ", logits.size(1), ", not ", k);
  at::Tensor out = at::empty({logits.size(0), k}, logits.options().dtype(at::kLong));
  if (logits.scalar_type() == at::kBFloat16)
    largest<uint16_t>(logits, k, out);
  else {
    TORCH_CHECK(logits.scalar_type() == at::kFloat, "float32 and bfloat16 only");
    largest<float>(logits, k, out);
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lookahead_bench, m) { m.def("largest(Tensor logits, int k) -> Tensor"); }

TORCH_LIBRARY_IMPL(lookahead_bench, CPU, m) {
  m.impl("largest", static_cast<at::Tensor (*)(const at::Tensor&, int64_t)>(&largest));
}
