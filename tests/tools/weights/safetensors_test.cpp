// SPDX-License-Identifier: Apache-2.0
#include <ctime>

#include "tests/io/allocation_counter.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/support/expect_error.hpp"
#include "tools/weights/tensor_file.hpp"

namespace millrace::io {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::vector<std::byte> bytes(sizeof length + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i)
    bytes[sizeof length + header.size() + i] = static_cast<std::byte>(i);
  return bytes;
}

std::string tensor(const std::string& name, const std::string& shape, const std::string& offsets,
                   const std::string& type = "F32") {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}
/// The header of one tensor.
std::string a(const std::string& shape, const std::string& offsets,
              const std::string& type = "F32") {
  return "{" + tensor("a", shape, offsets, type) + "}";
}
/// That of two with one number each.
std::string two(const std::string& first, const std::string& second, const char* name = "b") {
  return "{" + tensor("a", "[1]", first) + "," + tensor(name, "[1]", second) + "}";
}

SafeTensors parsed(const std::vector<std::byte>& bytes) {
  return parse_safetensors(bytes, "x").tensors();
}

using Metadata = std::map<std::string, std::string>;

TEST(SafeTensorsTest, ReadsTensors) {
  const auto bytes =
      file_of(R"({"__metadata__":{"source":"here"},)" + tensor("b", "[2,1]", "[8,16]") + "," +
                  tensor("a", "[8]", "[0,8]", "U8") + "," + tensor("none", "[3,0]", "[8,8]") + "," +
                  tensor("scalar", "[]", "[16,20]") + "}   ",
              20);
  const TensorFile file = parse_safetensors(bytes, "x");
  const SafeTensors& content = file.tensors();
  ASSERT_EQ(content.size(), 4u);
  EXPECT_EQ(file.metadata(), (Metadata{{"source", "here"}}));
  EXPECT_EQ(content.at("a").to_floats(), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(content.at("b").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(content.at("none").elements(), 0);
  EXPECT_EQ(content.at("scalar").elements(), 1);
  const TensorFile none = parse_safetensors(
      file_of(R"({"__metadata__":null,)" + tensor("a", "[1]", "[0,4]") + "}", 4), "x");
  EXPECT_EQ(none.tensors().size(), 1u);
  EXPECT_TRUE(none.metadata().empty());
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

struct Hostile {
  std::string header;
  std::size_t data_bytes;
  std::string message;
};

TEST(SafeTensorsTest, HostileHeadersAreRefusedByName) {
  for (const auto& [header, data_bytes, message] : std::vector<Hostile>{
           {two("[0,4]", "[2,6]"), 6, "b: its data begins at 2, expected 4: tensors overlap"},
           {two("[0,4]", "[0,4]"), 4, "tensors overlap"},
           {two("[0,4]", "[8,12]"), 12, "b: its data begins at 8, expected 4: a gap"},
           {a("[1]", "[4,8]"), 8, "a gap"},
           {a("[1]", "[0,4]"), 5, "1 bytes at the end"},
           {a("[2]", "[0,8]"), 7, "are not within the 7 bytes"},
           {a("[1]", "[4,0]"), 4, "are not within"},
           {a("[1]", "[0,4,8]"), 4, "are not within"},
           {a("[1]", "[-4,0]"), 4, "a: -4 is not a size"},
           {a("[-1,-1]", "[0,4]"), 4, "-1 is not a size"},
           {a("[18446744073709551615]", "[0,4]"), 4, "is not a size"},
           {a("[1.0]", "[0,4]"), 4, "1.0 is not a size"},
           {a("[4294967296,4294967296]", "[0,0]"), 0,
            "do not match shape [4294967296, 4294967296]"},
           {a("[4611686018427387905]", "[0,4]"), 4, "do not match shape"},
           {a("[2]", "[0,4]"), 4, "a: 4 bytes do not match shape [2] of F32"},
           {a("[1]", "[0,4]", "F99"), 4, "dtype \"F99\" is unknown"},
           {two("[0,4]", "[4,8]", "a"), 8, "\"a\" is in the header twice"},
           {R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
            "\"dtype\" is in the header twice"},
           {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "a: dtype is missing"},
           {R"({"a":3})", 0, "a: dtype is missing"},
           {a("4", "[0,4]"), 4, "a: shape is not a list"},
           {a("[" + repeated("1,", 32) + "1]", "[0,4]"), 4,
            "a: shape has 33 numbers; the limit is 32"},
           {"[]", 0, "not a JSON object"},
           {"{\"a\"", 0, "not valid JSON"},
           {"", 0, "not valid JSON"},
           {"{\"\xff\":1}", 0, "not valid JSON"},
           {"{" + tensor("a\\nb", "[1]", "[0,4]") + "}", 4,
            "\"a\\nb\" contains control characters"},
           {"{" + tensor(std::string(1025, 'x'), "[1]", "[0,4]") + "}", 4,
            "xxx... has 1025 bytes; the limit is 1024"},
           {R"({"__metadata__":{"a":1}})", 0, "a value is not a string"},
           {std::string(100'000, '['), 0, "nested more than 100 deep"}}) {
    SCOPED_TRACE(header.substr(0, 100));
    const auto bytes = file_of(header, data_bytes);
    expect_error(ErrorKind::Data, {"some/file", message},
                 [&] { (void)parse_safetensors(bytes, "some/file"); });
  }
  expect_error(ErrorKind::Data, {"x: 7 bytes are too few"},
               [] { (void)parsed(std::vector<std::byte>(7)); });
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, std::numeric_limits<std::uint64_t>::max()}) {
    std::vector<std::byte> bytes(10);
    std::memcpy(bytes.data(), &length, sizeof length);
    expect_error(ErrorKind::Data, {"the header should have " + std::to_string(length) + " bytes"},
                 [&] { (void)parsed(bytes); });
  }
}

/// `count` tensors of one number each.
std::vector<std::byte> many_tensors(std::size_t count) {
  std::string header = "{";
  for (std::size_t i = 0; i < count; ++i) {
    const std::string offsets = "[" + std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]";
    header += (i == 0 ? "" : ",") +
              tensor("layer" + std::to_string(i) + ".0.conv.weight", "[1,1,1,1]", offsets);
  }
  return file_of(header + "}", 4 * count);
}

// Ten times as many tensors take ten times as long, but a hundred times if each were compared with
// all others.
TEST(SafeTensorsLimitTest, ManyTensorsTakeLinearTime) {
  const auto seconds = [](const std::vector<std::byte>& bytes) {
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) {
      const std::clock_t start = std::clock();
      (void)parsed(bytes);
      least = std::min(least, static_cast<double>(std::clock() - start));
    }
    return least;
  };
  const auto many = many_tensors(30'000);
  EXPECT_EQ(parsed(many).size(), 30'000u);
  const double few = std::max(1.0, seconds(many_tensors(3'000)));
  EXPECT_LT(seconds(many), 50 * few);
}

// Content that needs much memory, in headers of the maximum size.
TEST(SafeTensorsLimitTest, HeadersTakeLittleMemory) {
  constexpr std::size_t kBytes = (std::size_t{6} << 20) - 100;
  const auto filled = [](const std::string& begin, const std::string& piece) {
    return begin + repeated(piece, (kBytes - begin.size()) / piece.size());
  };
  std::string keys = "{";
  for (std::size_t i = 0; keys.size() < kBytes; ++i) keys += "\"" + std::to_string(i) + "\":1,";
  const std::vector<std::string> headers = {
      filled("[", "1,"), filled("[", "{},"), filled("{\"a\":[", "[1],"), filled("[", "{\"a\":1},"),
      filled("\"", "x"), filled("{\"", "x"), filled("[", "\"\","),       keys};
  for (const std::string& header : headers) {
    const auto bytes = file_of(header, 0);
    const AllocationPeak peak;
    expect_error(ErrorKind::Data, {"x: the header "}, [&] { (void)parsed(bytes); });
    EXPECT_LT(peak.bytes(), std::int64_t{64} << 20) << header.substr(0, 20);
  }
  const auto many = many_tensors(30'000);
  const AllocationPeak peak;
  (void)parsed(many);
  EXPECT_LT(peak.bytes(), std::int64_t{64} << 20);
}

// The header is checked against the file size before anything else is read.
TEST(SafeTensorsLimitTest, FilesThatDoNotFitTheirHeaderAreNotRead) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "sparse.safetensors";
  std::ofstream(path) << "";
  std::error_code error;
  fs::resize_file(path, std::uintmax_t{1} << 40, error);
  if (error) GTEST_SKIP() << "no sparse files of 1 TiB in the temporary directory";
  const auto expect_failure = [&](const char* message) {
    expect_error(ErrorKind::Data, {message}, [&] { (void)read_safetensors(path); });
  };
  expect_failure("the header is not valid JSON");
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const std::uint64_t length = header.size();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << std::flush;
  expect_failure("belong to no tensor");
}

template <class T>
std::vector<float> as_floats(const std::string& type, const std::vector<T>& values) {
  return SafeTensor{
      type, {static_cast<std::int64_t>(values.size())}, std::as_bytes(std::span(values))}
      .to_floats();
}

TEST(SafeTensorsTest, ConvertsEveryTypeToFloat) {
  using Floats = std::vector<float>;
  EXPECT_EQ(as_floats<float>("F32", {1.5f, -0.0f}), (Floats{1.5f, -0.0f}));
  EXPECT_EQ(as_floats<double>("F64", {1.0 / 3.0}), Floats{1.0f / 3.0f});
  EXPECT_EQ(as_floats<std::uint16_t>("BF16", {0x3fc0}), Floats{1.5f});
  EXPECT_EQ(as_floats<std::int64_t>("I64", {-3}), Floats{-3.0f});
  EXPECT_EQ(as_floats<std::int32_t>("I32", {-3}), Floats{-3.0f});
  EXPECT_EQ(as_floats<std::int16_t>("I16", {-3}), Floats{-3.0f});
  EXPECT_EQ(as_floats<std::int8_t>("I8", {-3}), Floats{-3.0f});
  EXPECT_EQ(as_floats<std::uint64_t>("U64", {1u << 30}), Floats{0x1p30f});
  EXPECT_EQ(as_floats<std::uint32_t>("U32", {1u << 31}), Floats{0x1p31f});
  EXPECT_EQ(as_floats<std::uint16_t>("U16", {65535}), Floats{65535.0f});
  EXPECT_EQ(as_floats<std::uint8_t>("U8", {255}), Floats{255.0f});
  EXPECT_EQ(as_floats<std::uint8_t>("BOOL", {0, 1}), (Floats{0.0f, 1.0f}));
  expect_error(ErrorKind::Data, {"F8_E4M3"},
               [] { static_cast<void>(as_floats<std::uint8_t>("F8_E4M3", {1})); });
  // IEEE 754 binary16 from its definition: one, the largest, the smallest normal, the smallest
  // subnormal, and the special ones.
  const auto halves = as_floats<std::uint16_t>(
      "F16", {0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x7c00, 0xfc00, 0x8000, 0x7e00});
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Floats(halves.begin(), halves.begin() + 8),
            (Floats{1.0f, -2.0f, 65504.0f, 0x1p-14f, 0x1p-24f, kInfinity, -kInfinity, -0.0f}));
  EXPECT_TRUE(std::signbit(halves[7]));
  EXPECT_TRUE(std::isnan(halves[8]));
}

TEST(SafeTensorsTest, FilesAreReadAndMoved) {
  const TemporaryDirectory directory;
  const std::vector<float> floats = {1, 2, 3, 4};
  std::ofstream(directory / "x.safetensors")
      << format_safetensors({{"z.floats", {"F32", {2, 2}, std::as_bytes(std::span(floats))}},
                             {"empty", {"F32", {0}, {}}}},
                            {});
  TensorFile first = read_safetensors(directory / "x.safetensors");
  const TensorFile file = std::move(first);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors().at("z.floats").to_floats(), floats);
  EXPECT_EQ(file.tensors().at("z.floats").shape, (std::vector<std::int64_t>{2, 2}));
}

}  // namespace
}  // namespace millrace::io
