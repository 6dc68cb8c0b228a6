// SPDX-License-Identifier: Apache-2.0
#include "tools/weights/safetensors.hpp"

#include <ctime>

#include "tests/io/allocation_counter.hpp"
#include "tests/tools/weights/safetensors_file.hpp"

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

template <class T>
std::vector<float> as_floats(const std::string& type, const std::vector<T>& values) {
  return SafeTensor{
      type, {static_cast<std::int64_t>(values.size())}, std::as_bytes(std::span(values))}
      .to_floats();
}

using Metadata = std::map<std::string, std::string>;

TEST(SafeTensorsTest, ReadsTensors) {
  const auto bytes =
      file_of(R"({"__metadata__":{"source":"here"},)" + tensor("b", "[2,1]", "[8,16]") + "," +
                  tensor("a", "[8]", "[0,8]", "U8") + "," + tensor("none", "[3,0]", "[8,8]") + "," +
                  tensor("scalar", "[]", "[16,20]") + "}   ",
              20);
  const SafeTensors content = parse_safetensors(bytes, "x");
  ASSERT_EQ(content.size(), 4u);
  EXPECT_EQ(parse_safetensors_metadata(bytes, "x"), (Metadata{{"source", "here"}}));
  EXPECT_EQ(content.at("a").to_floats(), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(content.at("b").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(content.at("none").elements(), 0);
  EXPECT_EQ(content.at("scalar").elements(), 1);
  const auto none = file_of(R"({"__metadata__":null,)" + tensor("a", "[1]", "[0,4]") + "}", 4);
  EXPECT_EQ(parse_safetensors(none, "x").size(), 1u);
  EXPECT_TRUE(parse_safetensors_metadata(none, "x").empty());
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

struct Hostile {
  std::string what;
  std::string header;
  std::size_t data_bytes;
  std::string message;
};

class HostileSafeTensorsTest : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSafeTensorsTest, IsRefusedByName) {
  const Hostile& hostile = GetParam();
  const auto bytes = file_of(hostile.header, hostile.data_bytes);
  expect_error(ErrorKind::Data, {"some/file", hostile.message},
               [&] { static_cast<void>(parse_safetensors(bytes, "some/file")); });
}

INSTANTIATE_TEST_SUITE_P(
    Headers, HostileSafeTensorsTest,
    testing::Values(
        Hostile{"Overlap",
                "{" + tensor("a", "[2]", "[0,8]") + "," + tensor("b", "[2]", "[4,12]") + "}", 12,
                "b: its data begins at 4, expected 8: tensors overlap"},
        Hostile{"Twice",
                "{" + tensor("a", "[2]", "[0,8]") + "," + tensor("b", "[2]", "[0,8]") + "}", 8,
                "tensors overlap"},
        Hostile{"Gap", "{" + tensor("a", "[1]", "[0,4]") + "," + tensor("b", "[1]", "[8,12]") + "}",
                12, "b: its data begins at 8, expected 4: a gap"},
        Hostile{"GapAtBegin", "{" + tensor("a", "[1]", "[4,8]") + "}", 8, "a gap"},
        Hostile{"Rest", "{" + tensor("a", "[1]", "[0,4]") + "}", 5, "1 bytes at the end"},
        Hostile{"Beyond", "{" + tensor("a", "[2]", "[0,8]") + "}", 7, "are not within the 7 bytes"},
        Hostile{"Backwards", "{" + tensor("a", "[1]", "[4,0]") + "}", 4, "are not within"},
        Hostile{"NegativeOffset", "{" + tensor("a", "[1]", "[-4,0]") + "}", 4,
                "a: -4 is not a size"},
        Hostile{"NegativeExtent", "{" + tensor("a", "[-1,-1]", "[0,4]") + "}", 4,
                "-1 is not a size"},
        Hostile{"Overflow", "{" + tensor("a", "[4294967296,4294967296]", "[0,0]") + "}", 0,
                "do not match shape [4294967296, 4294967296]"},
        Hostile{"OverflowOfBytes", "{" + tensor("a", "[4611686018427387905]", "[0,4]") + "}", 4,
                "do not match shape"},
        Hostile{"TooLargeNumber", "{" + tensor("a", "[18446744073709551615]", "[0,4]") + "}", 4,
                "is not a size"},
        Hostile{"Fraction", "{" + tensor("a", "[1.0]", "[0,4]") + "}", 4, "1.0 is not a size"},
        Hostile{"WrongSize", "{" + tensor("a", "[2]", "[0,4]") + "}", 4,
                "a: 4 bytes do not match shape [2] of F32"},
        Hostile{"UnknownType", "{" + tensor("a", "[1]", "[0,4]", "F99") + "}", 4,
                "dtype \"F99\" is unknown"},
        Hostile{"DuplicateName",
                "{" + tensor("a", "[1]", "[0,4]") + "," + tensor("a", "[1]", "[4,8]") + "}", 8,
                "\"a\" is in the header twice"},
        Hostile{"DuplicateKey",
                R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
                "\"dtype\" is in the header twice"},
        Hostile{"ThreeOffsets", "{" + tensor("a", "[1]", "[0,4,8]") + "}", 4, "are not within"},
        Hostile{"NoType", R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "a: dtype is missing"},
        Hostile{"NoObject", R"({"a":3})", 0, "a: dtype is missing"},
        Hostile{"ShapeNoList", "{" + tensor("a", "4", "[0,4]") + "}", 4, "a: shape is not a list"},
        Hostile{"List", "[]", 0, "not a JSON object"},
        Hostile{"NoJson", "{\"a\"", 0, "not valid JSON"}, Hostile{"Empty", "", 0, "not valid JSON"},
        Hostile{"NotUtf8", "{\"\xff\":1}", 0, "not valid JSON"},
        Hostile{"LineBreakInName", "{" + tensor("a\\nb", "[1]", "[0,4]") + "}", 4,
                "\"a\\nb\" contains control characters"},
        Hostile{"MetadataOfNumbers", R"({"__metadata__":{"a":1}})", 0, "a value is not a string"},
        Hostile{"LongName", "{" + tensor(std::string(1025, 'x'), "[1]", "[0,4]") + "}", 4,
                "xxx... has 1025 bytes; the limit is 1024"},
        Hostile{"ManyExtents", "{" + tensor("a", "[" + repeated("1,", 32) + "1]", "[0,4]") + "}", 4,
                "a: shape has 33 numbers; the limit is 32"},
        Hostile{"Deep", std::string(100'000, '['), 0, "nested more than 100 deep"}),
    [](const auto& hostile) { return hostile.param.what; });

TEST(SafeTensorsTest, LengthOfTheHeaderIsNotTrusted) {
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, std::numeric_limits<std::uint64_t>::max()}) {
    std::vector<std::byte> bytes(10);
    std::memcpy(bytes.data(), &length, sizeof length);
    expect_error(ErrorKind::Data, {"the header should have " + std::to_string(length) + " bytes"},
                 [&] { static_cast<void>(parse_safetensors(bytes, "x")); });
  }
  expect_error(ErrorKind::Data, {"x: 7 bytes are too few"},
               [] { static_cast<void>(parse_safetensors(std::vector<std::byte>(7), "x")); });
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
      static_cast<void>(parse_safetensors(bytes, "x"));
      least = std::min(least, static_cast<double>(std::clock() - start));
    }
    return least;
  };
  const auto many = many_tensors(30'000);
  EXPECT_EQ(parse_safetensors(many, "x").size(), 30'000u);
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
    expect_error(ErrorKind::Data, {"x: the header "},
                 [&] { static_cast<void>(parse_safetensors(bytes, "x")); });
    EXPECT_LT(peak.bytes(), std::int64_t{64} << 20) << header.substr(0, 20);
  }
  const auto many = many_tensors(30'000);
  const AllocationPeak peak;
  static_cast<void>(parse_safetensors(many, "x"));
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
  const auto failure = [&]() -> std::string {
    try {
      SafeTensorsFile file(path);
      return "none";
    } catch (const Error& found) {
      return found.what();
    }
  };
  test::expect_in(failure(), {"the header is not valid JSON"});
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  const std::uint64_t length = header.size();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << std::flush;
  test::expect_in(failure(), {"belong to no tensor"});
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
  const fs::path path = directory / "x.safetensors";
  write_safetensors(path, {{"z.floats", {"F32", {2, 2}, std::as_bytes(std::span(floats))}},
                           {"empty", {"F32", {0}, {}}}});
  SafeTensorsFile first(path);
  const SafeTensorsFile file = std::move(first);
  EXPECT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.at("z.floats").to_floats(), floats);
  EXPECT_EQ(file.at("z.floats").shape, (std::vector<std::int64_t>{2, 2}));
  expect_error(ErrorKind::Data, {"x.safetensors", "no tensor z.float;", "did you mean z.floats?"},
               [&] { static_cast<void>(file.at("z.float")); });
}

TEST(SafeTensorsTest, ReadsRealFiles) {
  const auto folder = real_data("models/resnet_cifar10");
  if (!folder) GTEST_SKIP() << "the trained CIFAR-10 networks are not at hand";
  const SafeTensorsFile weights(*folder / "resnet20-12fca82f.safetensors");
  EXPECT_EQ(weights.at("conv1.weight").shape, (std::vector<std::int64_t>{16, 3, 3, 3}));
  EXPECT_EQ(weights.at("linear.bias").elements(), 10);
  const SafeTensorsFile reference(*folder / "resnet20_reference.safetensors");
  EXPECT_EQ(reference.at("labels_test_all").type, "I64");
  // The two precisions of the same logits agree.
  const auto narrow = reference.at("logits_f32_test_all").to_floats();
  const auto wide = reference.at("logits_f64_test_first64").to_floats();
  ASSERT_EQ(narrow.size(), 100'000u);
  for (std::size_t i = 0; i < wide.size(); ++i) ASSERT_NEAR(narrow[i], wide[i], 2e-4f);
}

}  // namespace
}  // namespace millrace::io
