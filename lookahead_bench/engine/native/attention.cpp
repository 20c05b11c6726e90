// Attention of a few queries, a chain or a tree of them, to a long paged context.
//
// The cache of one layer is [blocks][kv heads][keys, then values], each of block_size tokens. Keys lie in
// panels of 16 tokens, [size][16] (float32) or [size / 2][16][2] (bfloat16), so that scores come sixteen at a
// time without sums across lanes; values lie token by token. All heads that share keys, of all queries of a
// tile, are rows of one product, so that keys and values are read once for all of them.
//
// The context is cut at every CHUNK tokens; each chunk's softmax is taken by itself and the chunks are joined
// in order. What a row adds up, and in which order, depends on its own positions alone: not on the threads,
// nor on what else is in the batch, nor on how many queries there are.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

constexpr int CHUNK = 128;     // tokens; a multiple of two panels
constexpr int TILE_ROWS = 56;  // heads of queries that one tile holds
constexpr int64_t ALONE = 1 << 11;  // rows times tokens below which waking other threads costs more
constexpr float NONE = -std::numeric_limits<float>::infinity();
#if defined(__AVX512F__)
constexpr int MOST_TWO = 14, MOST_FOUR = 7;  // rows with two or four sums each: 28 sums in 32 registers
#else
constexpr int MOST_TWO = 3, MOST_FOUR = 1;  // a sum takes two registers of 16
#endif

// What a product reads: `weights` are 16 columns of a step, `input` is a row's factor for that step.
struct Float32 {
  using Element = float;
  static constexpr int STEP = 1;
  using Weights = Floats;
  using Input = Floats;
  static Weights weights(const Element* at) { return load(at); }
  static Input input(const Element* at) { return spread(*at); }
  static Floats add(Floats sum, Weights w, Input x) { return sum + w * x; }
};

struct BFloat16 {
  using Element = uint16_t;
  static constexpr int STEP = 2;
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

// y [ROWS, VECTORS * 16] (+)= x [ROWS, steps] * w; rows and steps are the given numbers of elements apart.
template <class T, class X, int ROWS, int VECTORS>
void tile(const X* x, int64_t x_row, const typename T::Element* w, int64_t w_step, int64_t w_vector, int64_t steps,
          float* y, int64_t y_row, bool onto) {
  Floats sums[ROWS][VECTORS];
  for (int row = 0; row < ROWS; ++row)
    for (int v = 0; v < VECTORS; ++v) sums[row][v] = onto ? load(y + row * y_row + v * LANES) : Floats{};
  for (int64_t step = 0; step < steps; ++step) {
    const typename T::Element* at = w + step * w_step;
    if constexpr (std::is_same_v<X, typename T::Element>) {
      typename T::Weights now[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        __builtin_prefetch(at + v * w_vector + 32 * w_step);
        now[v] = T::weights(at + v * w_vector);
      }
#pragma GCC unroll 14
      for (int row = 0; row < ROWS; ++row) {
        const typename T::Input value = T::input(x + row * x_row + step * T::STEP);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) sums[row][v] = T::add(sums[row][v], now[v], value);
      }
    } else {  // values in bfloat16, their weights in float32
      Floats now[VECTORS];
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) now[v] = load(at + v * w_vector);
#pragma GCC unroll 14
      for (int row = 0; row < ROWS; ++row) {
        const Floats value = spread(x[row * x_row + step]);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) sums[row][v] = sums[row][v] + now[v] * value;
      }
    }
  }
  for (int row = 0; row < ROWS; ++row)
    for (int v = 0; v < VECTORS; ++v) store(y + row * y_row + v * LANES, sums[row][v]);
}

template <class T, class X>
using Tile = void (*)(const X*, int64_t, const typename T::Element*, int64_t, int64_t, int64_t, float*, int64_t, bool);

template <class T, class X, int VECTORS, int... ROWS>
Tile<T, X> pick(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr Tile<T, X> tiles[] = {tile<T, X, ROWS + 1, VECTORS>...};
  return tiles[rows - 1];
}

// The same for any number of rows, in even parts of at most MOST.
template <class T, class X, int VECTORS, int MOST>
void product(const X* x, int64_t x_row, const typename T::Element* w, int64_t w_step, int64_t w_vector, int64_t steps,
             float* y, int64_t y_row, int64_t rows, bool onto) {
  const int64_t parts = (rows + MOST - 1) / MOST;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t row = rows * part / parts, size = rows * (part + 1) / parts - row;
    pick<T, X, VECTORS>(size, std::make_integer_sequence<int, MOST>())(
        x + row * x_row, x_row, w, w_step, w_vector, steps, y + row * y_row, y_row, onto);
  }
}

// One layer's cache.
template <class E>
struct Cache {
  E* data;
  int64_t kv_heads, block_size, size;
  static constexpr int64_t STEP = sizeof(E) == 2 ? 2 : 1;

  E* head(int64_t block, int64_t kv_head) const { return data + (block * kv_heads + kv_head) * block_size * 2 * size; }
  // Where dimension 0 of a token's key is; the next STEP - 1 follow it, then every 16 * STEP elements.
  E* key(int64_t block, int64_t kv_head, int64_t offset) const {
    return head(block, kv_head) + offset / LANES * LANES * size + offset % LANES * STEP;
  }
  E* value(int64_t block, int64_t kv_head, int64_t offset) const {
    return head(block, kv_head) + (block_size + offset) * size;
  }
  void write(int64_t block, int64_t kv_head, int64_t offset, const E* k, const E* v) const {
    E* to = key(block, kv_head, offset);
    for (int64_t d = 0; d < size; d += STEP) std::memcpy(to + d * LANES, k + d, STEP * sizeof(E));
    std::memcpy(value(block, kv_head, offset), v, size * sizeof(E));
  }
  void read(int64_t block, int64_t kv_head, int64_t offset, E* k, E* v) const {
    const E* from = key(block, kv_head, offset);
    for (int64_t d = 0; d < size; d += STEP) std::memcpy(k + d, from + d * LANES, STEP * sizeof(E));
    std::memcpy(v, value(block, kv_head, offset), size * sizeof(E));
  }
};

// One request: `queries` tokens from `start` of the batch on, behind `context` tokens of the cache.
struct Request {
  int64_t start, queries, context;
  const int32_t* blocks;
  const uint16_t* masks;  // [queries][mask_panels], bit i: whether token i of the panel is seen; null: causal
  int64_t mask_panels;

  int64_t first_masked() const { return context / LANES * LANES; }
};

// Some queries of a request, and the heads of theirs that share keys: `queries * shared` rows.
struct Group {
  const Request* request;
  int64_t kv_head, query, queries;

  // Nothing beyond the tile's last query is seen by any causal row.
  int64_t end() const { return request->context + (request->masks ? request->queries : query + queries); }
  int64_t chunks() const { return (end() + CHUNK - 1) / CHUNK; }
};

template <class E>
struct Layer {
  const E *query, *key, *value;
  int64_t query_token, key_token, value_token;  // elements from a token to the next
  E* output;
  int64_t output_token;
  Cache<E> cache;
  int64_t shared;  // heads that share keys
  float scale;
};

// What rows attended to so far: per row the largest score, the sum of weights, and the weighted values.
struct Partial {
  float *most, *sum, *out;

  static int64_t floats(int64_t rows, int64_t size) { return rows * (2 + size); }
  static Partial at(float* memory, int64_t rows) { return {memory, memory + rows, memory + 2 * rows}; }
};

struct Scratch {
  std::vector<float> scores, partials;
  std::vector<char> rows;
};

Scratch& scratch() {
  static thread_local Scratch own;
  return own;
}

inline Words visible(uint32_t bits) {
  constexpr Words LANE = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  return (Words)(((bits - Words{}) & LANE) != 0u);
}

// One chunk of the context for the rows of a group.
template <class E>
void attend(const Layer<E>& layer, const Group& group, int64_t chunk, Partial to) {
  using T = std::conditional_t<sizeof(E) == 2, BFloat16, Float32>;
  const Request& request = *group.request;
  const Cache<E>& cache = layer.cache;
  const int64_t size = cache.size, shared = layer.shared, rows = group.queries * shared;
  const int64_t begin = chunk * CHUNK, end = std::min(begin + CHUNK, group.end());
  const int64_t panels = (end - begin + LANES - 1) / LANES;

  Scratch& own = scratch();
  own.rows.resize(TILE_ROWS * size * sizeof(E));
  own.scores.resize(TILE_ROWS * CHUNK);
  E* q = (E*)own.rows.data();
  float* scores = own.scores.data();
  for (int64_t i = 0; i < group.queries; ++i)
    std::memcpy(q + i * shared * size,
                layer.query + (request.start + group.query + i) * layer.query_token + group.kv_head * shared * size,
                shared * size * sizeof(E));

  // Two panels at a time; blocks hold pairs of panels, so a second one that has no tokens can be read.
  for (int64_t panel = 0; panel < panels; panel += 2) {
    const int64_t position = begin + panel * LANES;
    const E* keys = cache.key(request.blocks[position / cache.block_size], group.kv_head, position % cache.block_size);
    product<T, E, 2, MOST_TWO>(q, size, keys, LANES * T::STEP, LANES * size, size / T::STEP, scores + panel * LANES,
                               CHUNK, rows, false);
  }

  const Floats scale = spread(layer.scale);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query = group.query + row / shared;
    float* s = scores + row * CHUNK;
    const int64_t seen = request.masks ? request.first_masked() : request.context + query + 1;
    for (int64_t panel = std::max<int64_t>(0, seen - begin) / LANES; panel < panels; ++panel) {
      const int64_t position = begin + panel * LANES;
      uint32_t bits;
      if (request.masks)
        bits = request.masks[query * request.mask_panels + (position - request.first_masked()) / LANES];
      else
        bits = position < seen ? (1u << std::min<int64_t>(LANES, seen - position)) - 1 : 0;
      const Words shown = visible(bits);
      store(s + panel * LANES, (Floats)(((Words)load(s + panel * LANES) & shown) | ((Words)spread(NONE) & ~shown)));
    }
    Floats most = load(s);
    for (int64_t panel = 1; panel < panels; ++panel) {
      const Floats now = load(s + panel * LANES);
      most = now > most ? now : most;
    }
    to.most[row] = largest(most) * layer.scale;
    Floats sum{};
    if (to.most[row] == NONE) {
      std::memset(s, 0, panels * LANES * sizeof(float));
    } else {
      const Floats highest = spread(to.most[row]);
      for (int64_t panel = 0; panel < panels; ++panel) {
        const Floats weight = exponential(load(s + panel * LANES) * scale - highest);
        store(s + panel * LANES, weight);
        sum += weight;
      }
    }
    to.sum[row] = total(sum);
  }

  for (int64_t position = begin, next; position < end; position = next) {
    next = std::min(end, (position / cache.block_size + 1) * cache.block_size);
    const E* values =
        cache.value(request.blocks[position / cache.block_size], group.kv_head, position % cache.block_size);
    const float* weights = scores + position - begin;
    const int64_t tokens = next - position;
    const bool onto = position > begin;
    int64_t d = 0;
    if (rows <= MOST_FOUR)
      for (; d + 4 * LANES <= size; d += 4 * LANES)
        product<T, float, 4, MOST_FOUR>(weights, CHUNK, values + d, size, LANES, tokens, to.out + d, size, rows, onto);
    for (; d + 2 * LANES <= size; d += 2 * LANES)
      product<T, float, 2, MOST_TWO>(weights, CHUNK, values + d, size, LANES, tokens, to.out + d, size, rows, onto);
    for (; d < size; d += LANES)
      product<T, float, 1, MOST_TWO>(weights, CHUNK, values + d, size, LANES, tokens, to.out + d, size, rows, onto);
  }
}

// The next chunk joined to those before it. The first chunk has something for every row: token 0.
void join(Partial sum, Partial next, int64_t rows, int64_t size) {
  for (int64_t row = 0; row < rows; ++row) {
    if (next.most[row] == NONE) continue;
    const float most = std::max(sum.most[row], next.most[row]);
    const Floats before = exponential(spread(sum.most[row] - most)), now = exponential(spread(next.most[row] - most));
    sum.most[row] = most;
    sum.sum[row] = sum.sum[row] * before[0] + next.sum[row] * now[0];
    float* to = sum.out + row * size;
    const float* from = next.out + row * size;
    for (int64_t d = 0; d < size; d += LANES) store(to + d, load(to + d) * before + load(from + d) * now);
  }
}

template <class E>
void finish(const Layer<E>& layer, const Group& group, Partial sum) {
  const int64_t size = layer.cache.size, shared = layer.shared;
  for (int64_t row = 0; row < group.queries * shared; ++row) {
    E* to = layer.output + (group.request->start + group.query + row / shared) * layer.output_token +
            (group.kv_head * shared + row % shared) * size;
    const Floats whole = spread(sum.sum[row]);
    for (int64_t d = 0; d < size; d += LANES) store(to + d, load(sum.out + row * size + d) / whole);
  }
}

// Calls work(item) for every item, each thread taking the next.
template <class Work>
void share(int64_t items, bool alone, const Work& work) {
  std::atomic<int64_t> next{0};
  const auto take = [&](int64_t, int64_t) {
    for (int64_t item = next++; item < items; item = next++) work(item);
  };
  if (alone || items == 1)
    take(0, 1);
  else
    at::parallel_for(0, at::get_num_threads(), 1, take);
}

template <class E>
void attend(const Layer<E>& layer, const std::vector<Request>& requests) {
  const int64_t size = layer.cache.size, kv_heads = layer.cache.kv_heads;
  const int64_t most_queries = std::max<int64_t>(1, TILE_ROWS / layer.shared);
  std::vector<Group> groups;
  int64_t work = 0;
  for (const Request& request : requests) {
    const int64_t tiles = (request.queries + most_queries - 1) / most_queries;
    for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head)
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t query = request.queries * tile / tiles;
        groups.push_back({&request, kv_head, query, request.queries * (tile + 1) / tiles - query});
        work += groups.back().queries * layer.shared * groups.back().end();
      }
  }
  const bool alone = work < ALONE;
  const int64_t most_floats = Partial::floats(most_queries * layer.shared, size);

  if (alone || int64_t(groups.size()) >= 4 * at::get_num_threads()) {
    share(groups.size(), alone, [&](int64_t item) {
      const Group& group = groups[item];
      const int64_t rows = group.queries * layer.shared;
      scratch().partials.resize(2 * most_floats);
      const Partial sum = Partial::at(scratch().partials.data(), rows);
      const Partial next = Partial::at(scratch().partials.data() + most_floats, rows);
      attend(layer, group, 0, sum);
      for (int64_t chunk = 1; chunk < group.chunks(); ++chunk) {
        attend(layer, group, chunk, next);
        join(sum, next, rows, size);
      }
      finish(layer, group, sum);
    });
    return;
  }

  // Too few groups for the threads: chunks are items of their own, and whoever ends a group's last joins them.
  std::vector<std::pair<int64_t, int64_t>> items;
  std::vector<float*> memory;
  for (size_t group = 0; group < groups.size(); ++group)
    for (int64_t chunk = 0; chunk < groups[group].chunks(); ++chunk) items.emplace_back(group, chunk);
  std::vector<float>& partials = scratch().partials;
  partials.resize(std::max<size_t>(partials.size(), items.size() * most_floats));
  float* const first = partials.data();
  std::vector<std::atomic<int64_t>> done(groups.size());
  share(items.size(), false, [&](int64_t item) {
    const auto [number, chunk] = items[item];
    const Group& group = groups[number];
    const int64_t rows = group.queries * layer.shared;
    const auto partial = [&](int64_t other) { return Partial::at(first + (item - chunk + other) * most_floats, rows); };
    attend(layer, group, chunk, partial(chunk));
    if (++done[number] < group.chunks()) return;
    for (int64_t other = 1; other < group.chunks(); ++other) join(partial(0), partial(other), rows, size);
    finish(layer, group, partial(0));
  });
}

template <class E>
Cache<E> cache_of(const at::Tensor& cache) {
  TORCH_CHECK(cache.is_contiguous() && cache.dim() == 4, "a layer's cache must be contiguous, of four dimensions");
  const int64_t block_size = cache.size(2), size = cache.size(3) / 2;
  TORCH_CHECK(block_size % (2 * LANES) == 0 && size % LANES == 0, "blocks of ", block_size, " tokens and heads of ",
              size, " are not supported");
  return {(E*)cache.data_ptr(), cache.size(1), block_size, size};
}

template <class E>
void attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& cache,
            const at::Tensor& output, const std::vector<Request>& requests, double scale) {
  const Layer<E> layer{(const E*)query.const_data_ptr(),
                       (const E*)key.const_data_ptr(),
                       (const E*)value.const_data_ptr(),
                       query.stride(0),
                       key.stride(0),
                       value.stride(0),
                       (E*)output.data_ptr(),
                       output.stride(0),
                       cache_of<E>(cache),
                       query.size(1) / key.size(1),
                       float(scale)};
  // All are written before any attends: a request may share a block that another of this pass fills.
  const int64_t size = layer.cache.size, block_size = layer.cache.block_size;
  for (const Request& request : requests)
    at::parallel_for(0, request.queries, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t position = request.context + i, token = request.start + i;
        for (int64_t head = 0; head < layer.cache.kv_heads; ++head)
          layer.cache.write(request.blocks[position / block_size], head, position % block_size,
                            layer.key + token * layer.key_token + head * size,
                            layer.value + token * layer.value_token + head * size);
      }
    });
  attend(layer, requests);
}

// query, output: [tokens, heads, size]; key, value: [tokens, kv_heads, size]; cache: [blocks, kv_heads, block_size,
// 2 * size]; requests: int64 [n, 5], of each its first token, number of tokens, context, where its masks begin (-1:
// causal) and how many panels they have; blocks: int32 [n, most]; masks: int16.
void attend_paged(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& cache,
                  const at::Tensor& output, const at::Tensor& requests, const at::Tensor& blocks,
                  const at::Tensor& masks, double scale) {
  for (const at::Tensor* x : {&query, &key, &value, &output}) {
    TORCH_CHECK(x->dim() == 3 && x->stride(2) == 1 && x->stride(1) == x->size(2), "heads must lie side by side");
    TORCH_CHECK(x->scalar_type() == cache.scalar_type(), "input and cache must have one dtype");
    TORCH_CHECK(x->size(2) * 2 == cache.size(3), "heads of the input and of the cache differ in size");
  }
  TORCH_CHECK(key.size(1) == cache.size(1) && value.size(1) == cache.size(1), "heads of the input and the cache differ");
  TORCH_CHECK(query.size(1) % key.size(1) == 0 && query.size(1) / key.size(1) <= TILE_ROWS, "too many heads share keys");
  TORCH_CHECK(requests.scalar_type() == at::kLong && requests.is_contiguous() && requests.size(1) == 5);
  TORCH_CHECK(blocks.scalar_type() == at::kInt && blocks.stride(1) == 1 && blocks.size(0) >= requests.size(0));
  TORCH_CHECK(masks.scalar_type() == at::kShort && masks.is_contiguous());
  std::vector<Request> all(requests.size(0));
  for (size_t row = 0; row < all.size(); ++row) {
    const int64_t* given = requests.const_data_ptr<int64_t>() + 5 * row;
    const uint16_t* own = given[3] < 0 ? nullptr : (const uint16_t*)masks.const_data_ptr() + given[3];
    all[row] = {given[0], given[1], given[2], blocks.const_data_ptr<int32_t>() + row * blocks.stride(0), own, given[4]};
    TORCH_CHECK(given[0] + given[1] <= query.size(0) && (given[2] + given[1] + cache.size(2) - 1) / cache.size(2) <=
                blocks.size(1), "a request exceeds the batch or its blocks");
  }
  if (cache.scalar_type() == at::kBFloat16)
    attend<uint16_t>(query, key, value, cache, output, all, scale);
  else {
    TORCH_CHECK(cache.scalar_type() == at::kFloat, "float32 and bfloat16 only");
    attend<float>(query, key, value, cache, output, all, scale);
  }
}

template <class E>
void copy_slots(const at::Tensor& cache, const int64_t* sources, const int64_t* targets, int64_t slots) {
  const Cache<E> layer = cache_of<E>(cache);
  const int64_t size = layer.size, heads = layer.kv_heads, block_size = layer.block_size;
  std::vector<E> held(slots * heads * 2 * size);
  for (const bool writing : {false, true})
    for (int64_t i = 0; i < slots; ++i)
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t slot = writing ? targets[i] : sources[i];
        E* entry = held.data() + (i * heads + head) * 2 * size;
        if (writing)
          layer.write(slot / block_size, head, slot % block_size, entry, entry + size);
        else
          layer.read(slot / block_size, head, slot % block_size, entry, entry + size);
      }
}

// Moves entries of every layer's cache between slots (int64); they may overlap.
void copy_slots(at::TensorList caches, const at::Tensor& sources, const at::Tensor& targets) {
  TORCH_CHECK(sources.scalar_type() == at::kLong && targets.scalar_type() == at::kLong && sources.is_contiguous() &&
              targets.is_contiguous() && sources.numel() == targets.numel());
  for (const at::Tensor& cache : caches) {
    const int64_t *from = sources.const_data_ptr<int64_t>(), *to = targets.const_data_ptr<int64_t>();
    if (cache.element_size() == 2)
      copy_slots<uint16_t>(cache, from, to, sources.numel());
    else
      copy_slots<float>(cache, from, to, sources.numel());
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(lookahead_bench, m) {
  m.def(
      "attend(Tensor query, Tensor key, Tensor value, Tensor(a!) cache, Tensor(b!) output, Tensor requests, "
      "Tensor blocks, Tensor masks, float scale) -> ()");
  m.def("copy_slots(Tensor(a!)[] caches, Tensor sources, Tensor targets) -> ()");
}

TORCH_LIBRARY_IMPL(lookahead_bench, CPU, m) {
  m.impl("attend", &attend_paged);
  m.impl("copy_slots", static_cast<void (*)(at::TensorList, const at::Tensor&, const at::Tensor&)>(&copy_slots));
}
