// A harness: a small paged attention, and the glue that lets the suite check it.
//
//     g++ -std=c++17 -O2 -o harness paged_attention.cpp
//     kvref check --exec ./harness
//
// The kernel is above `main`, as yours would be; the glue is the handlers. float32 and bfloat16; grouped
// queries, causal or not, sliding window, soft cap, sinks, lse; caches in any strides.
// Arithmetic, as claimed: float32 throughout, the maximum found before any exponential, one rounding last.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kvref_wire.hpp"

using kvref::Call;
using kvref::Tensor;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Variant {
  float scale;
  bool causal;
  int64_t window;  // positions, the query's own included; 0 for no window
  float softcap;   // 0 for none
};

struct Context {  // where position j of one request lies, in elements, for kv head 0
  std::function<int64_t(int64_t)> key, value;
};

// Attends from one query head of one token, at position t of a context of n tokens, to its attended set.
// Returns the lse, and fills `out` [v_head_dim] with the weighted mean of the values.
float attend(const Tensor& q, int64_t query, const Tensor& keys, const Tensor& values, int64_t head,
             const Context& context, int64_t t, int64_t n, const Variant& variant, float sink,
             std::vector<float>& out) {
  const int64_t first = variant.window > 0 ? std::max<int64_t>(0, t - variant.window + 1) : 0;
  const int64_t last = variant.causal ? std::min(t, n - 1) : n - 1;
  std::fill(out.begin(), out.end(), 0.0f);
  std::vector<float> logits;
  float largest = -kInfinity;
  for (int64_t j = first; j <= last; ++j) {
    const int64_t key = context.key(j) + head * keys.strides[keys.strides.size() - 2];
    float dot = 0.0f;
    for (int64_t d = 0; d < q.shape[2]; ++d)
      dot += q.get(query + d * q.strides[2]) * keys.get(key + d * keys.strides.back());
    float logit = dot * variant.scale;
    if (variant.softcap > 0) logit = variant.softcap * std::tanh(logit / variant.softcap);
    logits.push_back(logit);
    largest = std::max(largest, logit);
  }
  if (logits.empty()) return -kInfinity;  // nothing attended to: out 0, the identity of merge
  float total = 0.0f;
  for (int64_t j = first; j <= last; ++j) {
    const float weight = std::exp(logits[j - first] - largest);
    const int64_t value = context.value(j) + head * values.strides[values.strides.size() - 2];
    total += weight;
    for (size_t d = 0; d < out.size(); ++d)
      out[d] += weight * values.get(value + static_cast<int64_t>(d) * values.strides.back());
  }
  const float share = total + std::exp(sink - largest);  // a sink takes weight and returns nothing
  for (float& x : out) x /= share;
  return largest + std::log(total);  // without the sink
}

using ContextOf = std::function<Context(int64_t request)>;

// Attends for every query token and head of a ragged batch.
void attend_batch(Call& call, const Tensor& keys, const Tensor& values, const ContextOf& context_of) {
  const Tensor q = call.input("q"), loc = call.input("query_start_loc"), lens = call.input("seq_lens");
  Tensor out = call.output("out");
  const bool wants_lse = call.flag("return_lse", false);
  Tensor lse = wants_lse ? call.output("lse") : Tensor{};
  const Variant variant{static_cast<float>(call.real("scale", 1.0)), call.flag("causal", true),
                        call.integer("window", 0), static_cast<float>(call.real("softcap", 0.0))};
  const Tensor sinks = call.has("sinks") ? call.input("sinks") : Tensor{};
  const int64_t num_q_heads = q.shape[1], group = num_q_heads / keys.shape[keys.shape.size() - 2];
  std::vector<float> mean(out.shape[2]);
  for (int64_t request = 0; request < lens.shape[0]; ++request) {
    const Context context = context_of(request);
    const int64_t n = lens.integer(lens.at(request)), end = loc.integer(loc.at(request + 1));
    for (int64_t token = loc.integer(loc.at(request)); token < end; ++token) {
      for (int64_t head = 0; head < num_q_heads; ++head) {
        const float sink = call.has("sinks") ? sinks.get(sinks.at(head)) : -kInfinity;
        const float found = attend(q, q.at(token, head), keys, values, head / group, context,
                                   n - (end - token), n, variant, sink, mean);
        for (size_t d = 0; d < mean.size(); ++d) out.set(out.at(token, head, d), mean[d]);
        if (wants_lse) lse.set(lse.at(token, head), found);
      }
    }
  }
}

// Refuses a batch whose block tables name a block that the cache does not have.
void check_tables(const Tensor& tables, const Tensor& lens, const Tensor& k_cache) {
  for (int64_t request = 0; request < lens.shape[0]; ++request) {
    const int64_t needed = (lens.integer(lens.at(request)) + k_cache.shape[1] - 1) / k_cache.shape[1];
    for (int64_t entry = 0; entry < needed; ++entry) {
      const int64_t block = entry < tables.shape[1] ? tables.integer(tables.at(request, entry)) : -1;
      if (block < 0 || block >= k_cache.shape[0])
        throw kvref::Refused("block_tables[" + std::to_string(request) + ", " + std::to_string(entry) +
                             "] = " + std::to_string(block) + ", but k_cache has " +
                             std::to_string(k_cache.shape[0]) + " blocks (KV-ATTN-014 table-in-range)");
    }
  }
}

void paged_attention(Call& call) {
  const Tensor k_cache = call.input("k_cache"), v_cache = call.input("v_cache");
  const Tensor tables = call.input("block_tables");
  check_tables(tables, call.input("seq_lens"), k_cache);
  const auto slot = [&tables](const Tensor& cache, int64_t request, int64_t j) {
    return cache.at(tables.integer(tables.at(request, j / cache.shape[1])), j % cache.shape[1]);
  };
  attend_batch(call, k_cache, v_cache, [&](int64_t request) {
    return Context{[&, request](int64_t j) { return slot(k_cache, request, j); },
                   [&, request](int64_t j) { return slot(v_cache, request, j); }};
  });
}

void attention(Call& call) {
  const Tensor k = call.input("k"), v = call.input("v"), lens = call.input("seq_lens");
  std::vector<int64_t> starts{0};
  for (int64_t request = 0; request < lens.shape[0]; ++request)
    starts.push_back(starts.back() + lens.integer(lens.at(request)));
  attend_batch(call, k, v, [&](int64_t request) {
    return Context{[&, request](int64_t j) { return k.at(starts[request] + j); },
                   [&, request](int64_t j) { return v.at(starts[request] + j); }};
  });
}

// Writes each token's key and value into its slot; a negative slot is skipped. All or nothing.
void write_kv(Call& call) {
  const Tensor slots = call.input("slot_mapping");
  Tensor k_cache = call.input("k_cache"), v_cache = call.input("v_cache");
  const int64_t block_size = k_cache.shape[1], num_slots = k_cache.shape[0] * block_size;
  for (int64_t token = 0; token < slots.shape[0]; ++token) {
    const int64_t slot = slots.integer(slots.at(token));
    if (slot >= num_slots)
      throw kvref::Refused("slot_mapping[" + std::to_string(token) + "] = " + std::to_string(slot) +
                           ", but the cache has " + std::to_string(num_slots) +
                           " slots (KV-ATTN-050 write-slot)");
  }
  for (auto [name, cache] : {std::pair<const char*, Tensor*>{"k", &k_cache}, {"v", &v_cache}}) {
    const Tensor rows = call.input(name);
    for (int64_t token = 0; token < slots.shape[0]; ++token) {
      const int64_t slot = slots.integer(slots.at(token));
      if (slot < 0) continue;
      for (int64_t head = 0; head < rows.shape[1]; ++head)
        for (int64_t d = 0; d < rows.shape[2]; ++d)
          cache->set(cache->at(slot / block_size, slot % block_size, head, d),
                     rows.get(rows.at(token, head, d)));
    }
  }
}

void append_and_attend(Call& call) {
  check_tables(call.input("block_tables"), call.input("seq_lens"), call.input("k_cache"));
  write_kv(call);
  paged_attention(call);
}

// Combines attention over two disjoint sets of slots; an empty set (lse −inf) changes nothing.
void merge_attention_states(Call& call) {
  const Tensor out_a = call.input("out_a"), lse_a = call.input("lse_a");
  const Tensor out_b = call.input("out_b"), lse_b = call.input("lse_b");
  Tensor out = call.output("out"), lse = call.output("lse");
  for (int64_t token = 0; token < out.shape[0]; ++token) {
    for (int64_t head = 0; head < out.shape[1]; ++head) {
      const float a = lse_a.get(lse_a.at(token, head)), b = lse_b.get(lse_b.at(token, head));
      const float largest = std::max(a, b);
      const bool empty = largest == -kInfinity;
      const float weight_a = empty ? 0.0f : std::exp(a - largest);
      const float weight_b = empty ? 0.0f : std::exp(b - largest);
      const float total = weight_a + weight_b;
      lse.set(lse.at(token, head), empty ? largest : largest + std::log(total));
      for (int64_t d = 0; d < out.shape[2]; ++d) {
        float sum = 0.0f;  // a part without weight may hold anything
        if (weight_a > 0) sum += weight_a / total * out_a.get(out_a.at(token, head, d));
        if (weight_b > 0) sum += weight_b / total * out_b.get(out_b.at(token, head, d));
        out.set(out.at(token, head, d), sum);
      }
    }
  }
}

// Runs a handler after checking that it knows every argument of the call.
kvref::Handlers::mapped_type knowing(const std::string& arguments, void (*handler)(Call&)) {
  const std::vector<std::string> names = kvref::split(arguments);
  return [known = std::set<std::string>(names.begin(), names.end()), handler](Call& call) {
    call.allow(known);
    handler(call);
  };
}

}  // namespace

int main() {
  const std::string batch =
      "q,query_start_loc,seq_lens,scale,causal,window,softcap,sinks,return_lse,out,lse,";
  const std::string claims = R"({
    "arithmetic": {"probabilities": "float32", "merges": 0, "block": null},
    "dtypes": ["float32", "bfloat16"],
    "head_dims": [64, 80, 96, 128, 192, 256],
    "block_sizes": [1, 8, 16, 32, 64, 128, 256],
    "features": ["prefill", "lse", "non_causal", "window", "softcap", "sinks", "value_width", "strided"]
  })";
  return kvref::serve(
      {{"name", "C++ example harness"}, {"version", "1"}, {"claims", claims}, {"env.compiler", __VERSION__}},
      {
          {"attention", knowing(batch + "k,v", attention)},
          {"paged_attention", knowing(batch + "k_cache,v_cache,block_tables", paged_attention)},
          {"append_and_attend",
           knowing(batch + "k,v,k_cache,v_cache,block_tables,slot_mapping", append_and_attend)},
          {"write_kv", knowing("k,v,k_cache,v_cache,slot_mapping", write_kv)},
          {"merge_attention_states", knowing("out_a,lse_a,out_b,lse_b,out,lse", merge_attention_states)},
      });
}
