// A codec of FP8 E4M3 under given scales, and the glue that lets the suite check it.
//
//     g++ -std=c++17 -O2 -I ../../conformance/harness -o quantize_kv quantize_kv.cpp
//     kvref check --exec ./quantize_kv
#include "kvref_wire.hpp"

// The codec: sign, 4 bits of exponent with bias 7, 3 of mantissa; 0x7F is NaN, 0x7E the largest number, 448.
static uint8_t encode(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = (bits >> 24) & 0x80;
  const float size = std::fabs(x);
  bits &= 0x7FFFFFFF;
  uint32_t code = 0x7F;
  if (size < 0x1p-6f)  // a count of 2^-9, ties to even; 8 of them are the smallest normal number, code 8
    code = static_cast<uint32_t>(std::lrint(size * 512));
  else if (size < 448)  // cut to 3 bits of mantissa, ties to even
    code = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3);
  else if (!std::isnan(x))
    code = 0x7E;
  return static_cast<uint8_t>(sign | code);
}

static float decode(uint8_t code) {
  const int exponent = (code >> 3) & 0xF, mantissa = code & 7;
  float size = exponent > 0 ? std::ldexp(8.0f + mantissa, exponent - 10) : std::ldexp(1.0f * mantissa, -9);
  if ((code & 0x7F) == 0x7F) size = NAN;
  return code & 0x80 ? -size : size;
}

// The glue: one scale for all heads or one for each, and the same walk for both verbs.
static kvref::Tensor scales_of(kvref::Call& call, const std::set<std::string>& known) {
  call.allow(known);
  if (call.text("format") != "fp8_e4m3") throw kvref::Unsupported("format " + call.text("format"));
  return call.input("scales");
}

template <class Visit>
static void walk(const kvref::Tensor& numbers, const kvref::Tensor& scales, Visit visit) {
  for (int64_t token = 0; token < numbers.shape[0]; ++token)
    for (int64_t head = 0; head < numbers.shape[1]; ++head)
      for (int64_t channel = 0; channel < numbers.shape[2]; ++channel)
        visit(token, head, channel, scales.get(scales.at(scales.shape[0] == 1 ? 0 : head)));
}

static void quantize_kv(kvref::Call& call) {
  const kvref::Tensor scales = scales_of(call, {"x", "format", "scales", "codes"}), x = call.input("x");
  kvref::Tensor codes = call.output("codes");
  walk(x, scales, [&](int64_t token, int64_t head, int64_t channel, float scale) {
    codes.set_byte(codes.at(token, head, channel), encode(x.get(x.at(token, head, channel)) / scale));
  });
}

static void dequantize_kv(kvref::Call& call) {
  const kvref::Tensor scales = scales_of(call, {"codes", "format", "dtype", "scales", "out"});
  if (call.text("dtype") != "float32") throw kvref::Unsupported("dtype " + call.text("dtype"));
  const kvref::Tensor codes = call.input("codes");
  kvref::Tensor out = call.output("out");
  walk(codes, scales, [&](int64_t token, int64_t head, int64_t channel, float scale) {
    out.set(out.at(token, head, channel), decode(codes.byte(codes.at(token, head, channel))) * scale);
  });
}

int main() {
  const std::string claims = R"({"dtypes": ["float32"], "formats": ["fp8_e4m3"], "head_dims": [64, 128]})";
  return kvref::serve({{"name", "my C++ codec"}, {"version", "1"}, {"claims", claims}},
                      {{"quantize_kv", quantize_kv}, {"dequantize_kv", dequantize_kv}});
}
