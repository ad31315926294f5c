// kvref-wire/1 for C++17 and POSIX, in one header without libraries: copy it into your project.
//
// The suite writes one flat JSON object a line to stdin and reads one from stdout. Tensors are files that
// the message names; they are mapped, and their strides are honoured. `serve` does the talking:
//
//     kvref::serve(hello, {{"paged_attention", [](kvref::Call& call) { ... }}});
//
// It reads `call.input("q")` and `call.real("scale", 1)`, writes to `call.output("out")`, and may throw
// `Refused` (the input breaks a rule of the spec), `Unsupported` (outside what the kernel can do), or any
// other exception (an error). Nothing but `serve` may write to stdout; stderr is free.
//
// A manager keeps its state between calls. Give `serve` a class for it, and a function for each operation:
//
//     kvref::manager<Pool>({{"free", [](Pool& pool, kvref::Operation& op) { pool.free(op.integers("blocks")); }}})
//
// Codes, and scales that are codes, are uint8: `tensor.byte(at)` and `tensor.set_byte(at, code)`. `format` and
// `dtype` are text: `call.text("format")`.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvref {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A message: strings without their quotes, integers and booleans as they are written.
using Message = std::map<std::string, std::string>;

// Reads one flat JSON object. Nested values, floats and null do not occur on this wire.
class Parser {
 public:
  explicit Parser(const std::string& line) : line_(line) {}

  Message object() {
    Message message;
    expect('{');
    if (peek() == '}') return message;
    while (true) {
      const std::string key = string();
      expect(':');
      message[key] = peek() == '"' ? string() : word();
      if (peek() == '}') return message;
      expect(',');
    }
  }

 private:
  char next() {
    if (at_ == line_.size()) throw std::runtime_error("a line ends too early");
    return line_[at_++];
  }

  char peek() {
    char c = next();
    while (c == ' ' || c == '\t' || c == '\r') c = next();
    --at_;
    return c;
  }

  void expect(char wanted) {
    if (peek() != wanted) throw std::runtime_error(std::string("a line lacks ") + wanted);
    ++at_;
  }

  std::string word() {
    std::string found;
    for (char c = peek(); c != ',' && c != '}' && c != ' '; c = line_[at_]) {
      found += next();
      if (at_ == line_.size()) throw std::runtime_error("a line ends too early");
    }
    return found;
  }

  std::string string() {
    std::string found;
    expect('"');
    for (char c = next(); c != '"'; c = next()) {
      if (c != '\\') {
        found += c;
        continue;
      }
      c = next();
      const char* place = std::strchr("n\nt\tr\rb\bf\f", c);
      if (c == 'u') {
        append_utf8(found, code_point());
      } else {
        found += place != nullptr ? place[1] : c;
      }
    }
    return found;
  }

  uint32_t hex4() {
    if (line_.size() - at_ < 4) throw std::runtime_error("a line ends too early");
    const std::string digits = line_.substr(at_, 4);
    at_ += 4;
    return static_cast<uint32_t>(std::strtoul(digits.c_str(), nullptr, 16));
  }

  uint32_t code_point() {
    const uint32_t high = hex4();
    if (high < 0xD800 || high > 0xDBFF || line_.compare(at_, 2, "\\u") != 0) return high;
    at_ += 2;
    return 0x10000 + ((high - 0xD800) << 10) + (hex4() - 0xDC00);
  }

  static void append_utf8(std::string& text, uint32_t code) {
    const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += static_cast<char>(0xC0 | (code >> 6)), tail(0);
    } else if (code < 0x10000) {
      text += static_cast<char>(0xE0 | (code >> 12)), tail(6), tail(0);
    } else {
      text += static_cast<char>(0xF0 | (code >> 18)), tail(12), tail(6), tail(0);
    }
  }

  const std::string& line_;
  size_t at_ = 0;
};

// Returns text as a JSON string.
inline std::string quoted(const std::string& text) {
  std::string found = "\"";
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      found += '\\', found += static_cast<char>(c);
    } else if (c < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", c);
      found += escape;
    } else {
      found += static_cast<char>(c);
    }
  }
  return found + '"';
}

// Splits "q,k_cache" or "8,128" at its commas.
inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// A tensor in a mapped file. Positions are elements from element [0, 0, …], strides included.
struct Tensor {
  enum class Kind { float32, float16, bfloat16, int32, int64, uint8 };
  Kind kind;
  std::vector<int64_t> shape, strides;
  char* data = nullptr;

  template <class... Index>
  int64_t at(Index... index) const {
    const int64_t indices[] = {static_cast<int64_t>(index)...};
    int64_t position = 0;
    for (size_t axis = 0; axis < sizeof...(index); ++axis) position += indices[axis] * strides[axis];
    return position;
  }

  float get(int64_t position) const {
    if (kind == Kind::float32) return load<float>(position);
    if (kind == Kind::float16) return from_half(load<uint16_t>(position));
    if (kind != Kind::bfloat16) throw std::runtime_error("a tensor holds integers, expected real numbers");
    const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(position)) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  // Rounds to nearest, ties to even; a NaN stays a NaN.
  void set(int64_t position, float value) {
    if (kind == Kind::float32) return store(position, value);
    if (kind == Kind::float16) return store(position, to_half(value));
    if (kind != Kind::bfloat16) throw std::runtime_error("a tensor holds integers, expected real numbers");
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    bits = nan ? bits | 0x400000 : bits + 0x7FFF + ((bits >> 16) & 1);
    store(position, static_cast<uint16_t>(bits >> 16));
  }

  int64_t integer(int64_t position) const {
    if (kind == Kind::uint8) return load<uint8_t>(position);
    return kind == Kind::int64 ? load<int64_t>(position) : load<int32_t>(position);
  }

  uint8_t byte(int64_t position) const {
    expect_bytes();
    return load<uint8_t>(position);
  }

  void set_byte(int64_t position, uint8_t code) {
    expect_bytes();
    store(position, code);
  }

 private:
  void expect_bytes() const {
    if (kind != Kind::uint8) throw std::runtime_error("a tensor holds other than uint8, expected codes");
  }

  static float from_half(uint16_t half) {
    const int exponent = (half >> 10) & 0x1F, mantissa = half & 0x3FF;
    float value = std::ldexp(static_cast<float>(exponent > 0 ? 0x400 | mantissa : mantissa),
                             exponent > 0 ? exponent - 25 : -24);
    if (exponent == 0x1F) value = mantissa > 0 ? NAN : INFINITY;
    return std::copysign(value, half & 0x8000 ? -1.0f : 1.0f);
  }

  static uint16_t to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000;
    bits &= 0x7FFFFFFF;
    uint32_t half = 0x7E00;   // a NaN
    if (bits < 0x38800000) {  // below 2^-14: a count of 2^-24
      half = static_cast<uint32_t>(std::lrint(std::ldexp(std::fabs(value), 24)));
    } else if (bits <= 0x7F800000) {  // to nearest, ties to even; past the largest lies infinity
      half = ((bits + 0xFFF + ((bits >> 13) & 1)) >> 13) - (112 << 10);
      if (half > 0x7C00) half = 0x7C00;
    }
    return static_cast<uint16_t>(sign | half);
  }

  template <class T>
  T load(int64_t position) const {
    T value;
    std::memcpy(&value, data + position * static_cast<int64_t>(sizeof(T)), sizeof value);
    return value;
  }

  template <class T>
  void store(int64_t position, T value) {
    std::memcpy(data + position * static_cast<int64_t>(sizeof(T)), &value, sizeof value);
  }
};

// One call: its tensors, mapped while it lasts, and its parameters.
class Call {
 public:
  explicit Call(Message message) : message_(std::move(message)) {
    for (const char* list : {"inputs", "outputs", "params"})
      for (const std::string& name : split(message_[list])) names_.insert(name);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (const auto& [base, size] : mapped_) munmap(base, size);
  }

  bool has(const std::string& name) const { return names_.count(name) > 0; }

  // Refuses to guess: an argument the handler does not know changes what is asked for.
  void allow(const std::set<std::string>& known) const {
    for (const std::string& name : names_)
      if (known.count(name) == 0) throw Unsupported("argument " + name);
  }

  Tensor input(const std::string& name) { return tensor(name); }
  Tensor output(const std::string& name) { return tensor(name); }

  double real(const std::string& name, double otherwise) const {
    return has(name) ? std::strtod(message_.at(name).c_str(), nullptr) : otherwise;
  }
  int64_t integer(const std::string& name, int64_t otherwise) const {
    return has(name) ? std::strtoll(message_.at(name).c_str(), nullptr, 10) : otherwise;
  }
  std::string text(const std::string& name, const std::string& otherwise = "") const {
    return has(name) ? message_.at(name) : otherwise;
  }
  bool flag(const std::string& name, bool otherwise) const {
    return has(name) ? message_.at(name) == "true" : otherwise;
  }

 private:
  Tensor tensor(const std::string& name) {
    static const std::map<std::string, std::pair<Tensor::Kind, int64_t>> kinds = {
        {"float32", {Tensor::Kind::float32, 4}},
        {"float16", {Tensor::Kind::float16, 2}},
        {"bfloat16", {Tensor::Kind::bfloat16, 2}},
        {"int32", {Tensor::Kind::int32, 4}},
        {"int64", {Tensor::Kind::int64, 8}},
        {"uint8", {Tensor::Kind::uint8, 1}},
    };
    if (!has(name)) throw std::runtime_error("the call has no " + name);
    const auto kind = kinds.find(message_[name + ".dtype"]);
    if (kind == kinds.end()) throw Unsupported(name + " of " + message_[name + ".dtype"]);
    Tensor found{kind->second.first, {}, {}};
    for (const std::string& extent : split(message_[name + ".shape"]))
      found.shape.push_back(std::stoll(extent));
    found.strides.assign(found.shape.size(), 1);
    for (size_t axis = found.shape.size(); axis-- > 1;)
      found.strides[axis - 1] = found.strides[axis] * found.shape[axis];
    if (message_.count(name + ".strides") > 0) {
      const std::vector<std::string> given = split(message_[name + ".strides"]);
      for (size_t axis = 0; axis < given.size(); ++axis) found.strides[axis] = std::stoll(given[axis]);
    }
    const std::string offset = message_.count(name + ".offset") > 0 ? message_[name + ".offset"] : "0";
    found.data = map(message_[name]) + std::stoll(offset);
    return found;
  }

  char* map(const std::string& path) {
    const int file = open(path.c_str(), O_RDWR);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) throw std::runtime_error("cannot open " + path);
    const auto size = static_cast<size_t>(status.st_size);
    void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (base == MAP_FAILED) throw std::runtime_error("cannot map " + path);
    mapped_.emplace_back(base, size);
    return static_cast<char*>(base);
  }

  Message message_;
  std::set<std::string> names_;
  std::vector<std::pair<void*, size_t>> mapped_;
};

using Handlers = std::map<std::string, std::function<void(Call&)>>;

// One operation of a manager, or its opening: what it is given, and what it gives.
class Operation {
 public:
  explicit Operation(Message message) : message_(std::move(message)) {
    for (const std::string& name : split(message_["params"])) names_.insert(name);
  }

  bool has(const std::string& name) const { return names_.count(name) > 0; }

  // Refuses to guess, as Call::allow does.
  void allow(const std::set<std::string>& known) const {
    for (const std::string& name : names_)
      if (known.count(name) == 0) throw Unsupported("argument " + name);
  }

  int64_t integer(const std::string& name) const { return std::stoll(at(name)); }
  std::string text(const std::string& name) const { return at(name); }
  std::vector<std::string> texts(const std::string& name) const { return split(at(name)); }
  std::vector<int64_t> integers(const std::string& name) const {
    std::vector<int64_t> found;
    for (const std::string& part : texts(name)) found.push_back(std::stoll(part));
    return found;
  }

  void give(const std::string& name, int64_t value) { put(name, std::to_string(value)); }
  void give(const std::string& name, const std::string& value) { put(name, quoted(value)); }
  void give(const std::string& name, const std::vector<int64_t>& values) {
    std::string list;
    for (const int64_t value : values) list += (list.empty() ? "" : ",") + std::to_string(value);
    put(name, quoted(list));
  }
  void give(const std::string& name, const std::vector<std::string>& values) {
    std::string list;
    for (const std::string& value : values) list += (list.empty() ? "" : ",") + value;
    put(name, quoted(list));
  }

  const std::string& given() const { return given_; }

 private:
  const std::string& at(const std::string& name) const {
    if (!has(name)) throw std::runtime_error("the operation has no " + name);
    return message_.at(name);
  }
  void put(const std::string& name, const std::string& value) { given_ += "," + quoted(name) + ":" + value; }

  Message message_;
  std::set<std::string> names_;
  std::string given_;
};

// A manager: how one is opened, and what can be done to it.
struct Manager {
  std::function<std::shared_ptr<void>(const Operation&)> open;
  std::map<std::string, std::function<void(void*, Operation&)>> operations;
};

// Returns the manager whose state is a State, made from the arguments of its opening.
template <class State>
Manager manager(const std::map<std::string, std::function<void(State&, Operation&)>>& operations) {
  Manager made{[](const Operation& with) { return std::make_shared<State>(with); }, {}};
  for (const auto& [name, act] : operations)
    made.operations[name] = [act = act](void* state, Operation& op) { act(*static_cast<State*>(state), op); };
  return made;
}

using Managers = std::map<std::string, Manager>;

// The managers that are open, by the suite's name for each.
class Sessions {
 public:
  explicit Sessions(const Managers& managers) : managers_(managers) {}

  // Answers open, apply or close, and returns what an operation gives, as fields of the reply.
  std::string answer(const Message& request) {
    const std::string op = request.at("op"), name = request.at("session");
    if (op == "close") return open_.erase(name), "";
    const std::string verb = request.at("verb");
    const size_t dot = verb.find('.');
    const auto manager = managers_.find(verb.substr(0, dot));
    if (manager == managers_.end()) throw Unsupported("manager " + verb);
    Operation operation(request);
    if (op == "open") {
      open_[name] = manager->second.open(operation);
      return "";
    }
    const auto act = manager->second.operations.find(dot == std::string::npos ? "" : verb.substr(dot + 1));
    if (act == manager->second.operations.end()) throw Unsupported("operation " + verb);
    const auto state = open_.find(name);
    if (state == open_.end()) throw std::runtime_error("session " + name + " is not open");
    act->second(state->second.get(), operation);
    return operation.given();
  }

 private:
  const Managers& managers_;
  std::map<std::string, std::shared_ptr<void>> open_;
};

// Returns what is offered: verbs, managers, and operations of managers.
inline std::string offered(const Handlers& handlers, const Managers& managers) {
  std::string names;
  for (const auto& handler : handlers) names += "," + handler.first;
  for (const auto& [manager, record] : managers) {
    names += "," + manager;
    for (const auto& operation : record.operations) names += "," + manager + "." + operation.first;
  }
  return names.substr(names.empty() ? 0 : 1);
}

// Answers requests until bye. `hello` has name, version, and claims as JSON text.
inline int serve(const Message& hello, const Handlers& handlers, const Managers& managers = {}) {
  Sessions sessions(managers);
  for (std::string line; std::getline(std::cin, line);) {
    const Message request = Parser(line).object();
    const std::string op = request.at("op");
    std::string outcome = "\"ok\":true";
    try {
      if (op == "hello") {
        outcome += ",\"wire\":\"kvref-wire/1\",\"verbs\":" + quoted(offered(handlers, managers));
        for (const auto& [key, value] : hello) outcome += "," + quoted(key) + ":" + quoted(value);
      } else if (op == "call") {
        const auto handler = handlers.find(request.at("verb"));
        if (handler == handlers.end()) throw Unsupported("verb " + request.at("verb"));
        Call call(request);
        handler->second(call);
      } else if (op == "open" || op == "apply" || op == "close") {
        outcome += sessions.answer(request);
      } else if (op != "bye") {
        throw Unsupported("op " + op);
      }
    } catch (const Refused& error) {
      outcome = "\"refused\":" + quoted(error.what());
    } catch (const Unsupported& error) {
      outcome = "\"unsupported\":" + quoted(error.what());
    } catch (const std::exception& error) {
      outcome = "\"error\":" + quoted(error.what());
    }
    std::cout << "{\"id\":" << quoted(request.at("id")) << "," << outcome << "}" << std::endl;  // flushes
    if (op == "bye") break;
  }
  return 0;
}

}  // namespace kvref
