// A writer of histories in plain C++17, and a toy engine that logs what it does with three requests.
//
//     g++ -std=c++17 -O2 -o log_history log_history.cpp
//     ./log_history history.jsonl && kvref sanitize history.jsonl
//     ./log_history history.jsonl early && kvref sanitize history.jsonl    # with a fault
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

// One line an event. Everything is a number or a list of numbers, except names, which are escaped.
class History {
 public:
  History(const char* path, long num_blocks, long block_size) : file_(std::fopen(path, "w")) {
    if (!file_) throw std::runtime_error(std::string("cannot write ") + path);
    line("open", R"("schema":"kvref-history/1","num_blocks":)" + std::to_string(num_blocks) +
                     R"(,"block_size":)" + std::to_string(block_size));
  }
  History(const History&) = delete;
  History& operator=(const History&) = delete;
  ~History() { std::fclose(file_); }

  void request(long id, const std::vector<long>& tokens, const std::string& salt = "") {
    line("request", field("request", id) + "," + list("tokens", tokens) +
                        (salt.empty() ? "" : ",\"salt\":" + quoted(salt)));
  }
  void allocate(long id, const std::vector<long>& blocks) {
    line("allocate", field("request", id) + "," + list("blocks", blocks));
  }
  void hit(long id, long num_tokens, const std::vector<long>& blocks) {
    line("hit", field("request", id) + "," + field("count", num_tokens) + "," + list("blocks", blocks));
  }
  void compute(const std::vector<long>& ids, const std::vector<long>& starts, const std::vector<long>& counts) {
    line("compute", list("requests", ids) + "," + list("starts", starts) + "," + list("counts", counts));
  }
  void decode(const std::vector<long>& ids, const std::vector<long>& tokens) {
    line("decode", list("requests", ids) + "," + list("tokens", tokens));
  }
  void publish(const std::vector<long>& blocks) { line("publish", list("blocks", blocks)); }
  void free(long id, const std::vector<long>& blocks) {
    line("free", field("request", id) + "," + list("blocks", blocks));
  }
  void finish(long id) { line("finish", field("request", id)); }
  void close(long num_free) { line("close", field("num_free", num_free)); }

 private:
  void line(const char* event, const std::string& fields) {
    std::fprintf(file_, "{\"event\":\"%s\",%s}\n", event, fields.c_str());
  }
  static std::string field(const char* name, long value) {
    return quoted(name) + ":" + std::to_string(value);
  }
  static std::string list(const char* name, const std::vector<long>& values) {
    std::string text = quoted(name) + ":[";
    for (size_t i = 0; i < values.size(); ++i) text += (i ? "," : "") + std::to_string(values[i]);
    return text + "]";
  }
  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (unsigned char c : text) {
      char escape[7];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      out += c < 0x20 || c == '"' || c == '\\' ? std::string(escape) : std::string(1, static_cast<char>(c));
    }
    return out + "\"";
  }

  std::FILE* file_;
};

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const bool early = argc > 2;  // free a block while a request still reads it
  History log(argv[1], 8, 4);
  const std::vector<long> prompt = {11, 12, 13, 14, 15, 16};

  log.request(1, prompt);
  log.allocate(1, {5, 2});
  log.compute({1}, {0}, {6});  // the whole prompt: positions 0 to 5
  log.publish({5});            // the full block can be found now

  log.request(2, prompt);
  log.hit(2, 4, {5});  // four tokens, one block
  log.allocate(2, {7});
  log.decode({1}, {21});
  log.compute({1, 2}, {6, 4}, {1, 2});  // one step: a token of 1, two of 2

  log.finish(1);
  log.free(1, {2, 5});
  if (early) log.free(2, {5});
  log.request(3, {31, 32, 33});
  log.allocate(3, {early ? 5 : 0});
  log.compute({3}, {0}, {3});

  log.decode({2}, {22});
  log.compute({2}, {6}, {1});  // reads block 5
  log.finish(2);
  log.free(2, early ? std::vector<long>{7} : std::vector<long>{7, 5});
  log.finish(3);
  log.free(3, {early ? 5 : 0});
  log.close(8);
}
