// A kernel that writes keys and values into a cache of blocks, and the glue that lets the suite check it.
//
//     g++ -std=c++17 -O2 -I ../../conformance/harness -o write_kv write_kv.cpp
//     kvref check --exec ./write_kv
#include "kvref_wire.hpp"

// The kernel: rows [num_tokens, width] into a cache [num_slots, width]; a negative slot is skipped.
static void write_rows(const float* rows, float* cache, const int64_t* slots, int64_t num_tokens, int64_t width) {
  for (int64_t token = 0; token < num_tokens; ++token)
    if (slots[token] >= 0)
      std::memcpy(cache + slots[token] * width, rows + token * width, static_cast<size_t>(width) * sizeof(float));
}

// The glue: find the tensors of the call and hand their memory to the kernel.
static void write_kv(kvref::Call& call) {
  const kvref::Tensor slot_mapping = call.input("slot_mapping");
  std::vector<int64_t> slots;
  for (int64_t token = 0; token < slot_mapping.shape[0]; ++token)
    slots.push_back(slot_mapping.integer(slot_mapping.at(token)));
  for (const auto& [name, cache_name] : {std::pair("k", "k_cache"), std::pair("v", "v_cache")}) {
    const kvref::Tensor rows = call.input(name), cache = call.input(cache_name);
    write_rows(reinterpret_cast<const float*>(rows.data), reinterpret_cast<float*>(cache.data), slots.data(),
               rows.shape[0], rows.shape[1] * rows.shape[2]);
  }
}

int main() {
  const std::string claims = R"({"dtypes": ["float32"], "head_dims": [64, 128], "block_sizes": [16]})";
  return kvref::serve({{"name", "my C++ kernel"}, {"version", "1"}, {"claims", claims}}, {{"write_kv", write_kv}});
}
