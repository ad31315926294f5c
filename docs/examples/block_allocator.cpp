// A block allocator, and the glue that lets the suite check it.
//
//     g++ -std=c++17 -O2 -I ../../conformance/harness -o block_allocator block_allocator.cpp
//     kvref check --exec ./block_allocator
#include "kvref_wire.hpp"

// The allocator: how many hold each block, and the blocks that nobody holds.
class Pool {
 public:
  explicit Pool(int64_t num_blocks) : holders_(static_cast<size_t>(num_blocks), 0) {
    for (int64_t block = num_blocks; block-- > 0;) free_.push_back(block);
  }

  std::vector<int64_t> allocate(int64_t count) {
    if (count < 0) throw kvref::Refused("a number of blocks is negative");
    if (count > num_free()) throw kvref::Refused("out of blocks");
    const std::vector<int64_t> blocks(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
    for (const int64_t block : blocks) holders_[static_cast<size_t>(block)] = 1;
    return blocks;
  }

  // Looks at the whole list before it changes anything: a refusal leaves everything as it was.
  void free(const std::vector<int64_t>& blocks) {
    std::map<int64_t, int64_t> times;
    for (const int64_t block : blocks)
      if (!is_mine(block) || ++times[block] > holders_[static_cast<size_t>(block)])
        throw kvref::Refused("a block is freed that nobody holds");
    for (const int64_t block : blocks)
      if (--holders_[static_cast<size_t>(block)] == 0) free_.push_back(block);
  }

  void touch(const std::vector<int64_t>& blocks) {
    for (const int64_t block : blocks)
      if (!is_mine(block) || holders_[static_cast<size_t>(block)] == 0)
        throw kvref::Refused("a block is touched that nobody holds");
    for (const int64_t block : blocks) ++holders_[static_cast<size_t>(block)];
  }

  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

 private:
  bool is_mine(int64_t block) const { return block >= 0 && block < static_cast<int64_t>(holders_.size()); }

  std::vector<int64_t> holders_, free_;
};

// The glue: what opens a pool, and one line for each operation that is offered.
struct Open : Pool {
  explicit Open(const kvref::Operation& with) : Pool(with.integer("num_blocks")) {}
};

int main() {
  const kvref::Manager allocator = kvref::manager<Open>({
      {"allocate", [](Open& pool, kvref::Operation& op) { op.give("blocks", pool.allocate(op.integer("num_blocks"))); }},
      {"free", [](Open& pool, kvref::Operation& op) { pool.free(op.integers("blocks")); }},
      {"touch", [](Open& pool, kvref::Operation& op) { pool.touch(op.integers("blocks")); }},
      {"num_free", [](Open& pool, kvref::Operation& op) { op.give("num_free_blocks", pool.num_free()); }},
  });
  return kvref::serve({{"name", "my C++ allocator"}, {"version", "1"}}, {}, {{"block_allocator", allocator}});
}
