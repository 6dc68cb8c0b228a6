// SPDX-License-Identifier: Apache-2.0
//
// The files in tests/io/fixtures were written by PyTorch 2.15 and h5py 3.
#include "tools/weights/tensor_file.hpp"

#include "io/checkpoint.hpp"
#include "io/hdf5.hpp"
#include "tests/io/checkpoint_fixtures.hpp"
#include "tests/io/fixtures.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/torch_archive.hpp"
#include "tools/weights/pickle.hpp"

namespace millrace::io {
namespace {

using Floats = std::vector<float>;
using Extents = std::vector<std::int64_t>;
using Contents = std::map<std::string, std::pair<Extents, Floats>>;

fs::path fixture(const char* name) {
  return fs::path(MILLRACE_SOURCE_DIR) / "tests/io/fixtures" / name;
}
std::string bytes_of(const char* name) { return test::read_text(fixture(name)); }

Contents contents(const TensorFile& file) {
  Contents all;
  for (const auto& [name, tensor] : file.tensors()) all[name] = {tensor.shape, tensor.to_floats()};
  return all;
}

// ---- what is read

// In the format of today, and in that from before PyTorch 1.6.
TEST(TensorFileTest, ReadsTheTensorsOfACheckpointOfPyTorch) {
  for (const char* name : {"checkpoint.pth", "legacy.pth"}) {
    SCOPED_TRACE(name);
    const TensorFile file = read_tensor_file(fixture(name));
    EXPECT_EQ(contents(file), (Contents{{"a.weight", {{2, 3}, {0, 1, 2, 3, 4, 5}}},
                                        {"a.num_batches_tracked", {{}, {7}}},
                                        {"turned", {{3, 2}, {0, 3, 1, 4, 2, 5}}},
                                        {"part", {{4}, {3, 4, 5, 6}}},
                                        {"half", {{2}, {1.5, -2}}},
                                        {"brain", {{1}, {0.5}}},
                                        {"parameter", {{1}, {4}}}}));
    EXPECT_TRUE(file.notices().empty());
  }
}

TEST(TensorFileTest, SaysWhichOfTwoStateDictionariesItTook) {
  const TensorFile file = read_tensor_file(fixture("averaged.pth"));
  EXPECT_EQ(file.tensors().at("a.weight").to_floats(), (Floats{1, 2}));
  ASSERT_EQ(file.notices().size(), 1u);
  test::expect_in(file.notices()[0],
                  {"averaged.pth: the tensors of state_dict are taken, not those "
                   "of state_dict_ema: "});
}

TEST(TensorFileTest, ReadsWeightsOfKeras) {
  EXPECT_EQ(
      contents(read_tensor_file(fixture("weights.h5"))),
      (Contents{{"conv1_conv/kernel:0", {{1, 2, 2, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}},
                {"conv1_conv/bias:0", {{3}, {1, 1, 1}}},
                {"predictions/kernel:0", {{2, 2}, {0, 1, 2, 3}}}}));
}

/// A dataset of the values 1 to 4.
void write_four(Hdf5Writer& writer, const std::string& place, const Extents& shape) {
  const Floats values = {1, 2, 3, 4};
  writer.write(place, DType::F32, shape, std::as_bytes(std::span(values)));
}

// Without ":0", and with one name for the kernels of all convolutions.
TEST(TensorFileTest, ReadsWeightsOfKeras3) {
  const TemporaryDirectory directory;
  Hdf5Writer writer(directory / "new.h5");
  write_four(writer, "model_weights/stem_conv/stem_conv/kernel", {1, 1, 2, 2});
  write_four(writer, "model_weights/block1a_dwconv/block1a_dwconv/kernel", {2, 1, 2, 1});
  write_four(writer, "model_weights/stem_bn/stem_bn/gamma", {4});
  writer.close();
  EXPECT_EQ(contents(read_tensor_file(directory / "new.h5")),
            (Contents{{"stem_conv/kernel:0", {{1, 1, 2, 2}, {1, 2, 3, 4}}},
                      {"block1a_dwconv/depthwise_kernel:0", {{2, 1, 2, 1}, {1, 2, 3, 4}}},
                      {"stem_bn/gamma:0", {{4}, {1, 2, 3, 4}}}}));
}

/// Writes what save_weights of Keras 3.6 and later writes: numbers, and the names of the layers.
void write_numbered_weights(const fs::path& path) {
  Hdf5Writer writer(path);
  const auto add = [&](const std::string& group, const std::string& number, const char* layer,
                       const Extents& shape) {
    write_four(writer, group + "/vars/" + number, shape);
    writer.describe(group + "/vars", "name", Json(layer));
  };
  add("layers/conv2d", "0", "stem_conv", {1, 1, 2, 2});
  add("layers/depthwise_conv2d", "0", "block1a_dwconv", {2, 1, 2, 1});
  add("layers/functional/layers/batch_normalization_1", "2", "stem_bn", {4});
  add("layers/normalization", "0", "normalization", {4});
  add("optimizer", "2", "adam", {4});
  writer.close();
}

/// Writes an archive with one file.
void write_archive(const fs::path& path, const char* entry, std::string_view bytes) {
  zip_t* const archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, nullptr);
  zip_source_t* const source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
  const zip_int64_t at = zip_file_add(archive, entry, source, ZIP_FL_OVERWRITE);
  zip_set_file_compression(archive, static_cast<zip_uint64_t>(at), ZIP_CM_STORE, 0);
  EXPECT_EQ(zip_close(archive), 0);
}

// In a file of its own, or in the archive of Keras 3.
TEST(TensorFileTest, ReadsWeightsOfKeras3WithNumbers) {
  const TemporaryDirectory directory;
  write_numbered_weights(directory / "net.weights.h5");
  write_archive(directory / "net.keras", "model.weights.h5",
                test::read_text(directory / "net.weights.h5"));
  for (const char* name : {"net.weights.h5", "net.keras"}) {
    const TensorFile file = read_tensor_file(directory / name);
    EXPECT_EQ(contents(file),
              (Contents{{"stem_conv/kernel:0", {{1, 1, 2, 2}, {1, 2, 3, 4}}},
                        {"block1a_dwconv/depthwise_kernel:0", {{2, 1, 2, 1}, {1, 2, 3, 4}}},
                        {"stem_bn/moving_mean:0", {{4}, {1, 2, 3, 4}}},
                        {"normalization/vars/0", {{4}, {1, 2, 3, 4}}}}));
    EXPECT_TRUE(file.notices().empty());
  }
}

/// checkpoint.pth with the tensor (1.5, -2) changed to (2, -2).
std::string with_another_half() {
  std::string bytes = test::read_text(fixture("checkpoint.pth"));
  const std::string_view half("\x00\x3e\x00\xc0", 4);
  const std::size_t at = bytes.find(half);
  EXPECT_EQ(bytes.find(half, at + 1), std::string::npos);
  bytes.at(at + 1) = '\x40';
  return bytes;
}

// As after torch.serialization.set_crc32_options(False).
TEST(TensorFileTest, ReadsATensorWithoutAChecksum) {
  const TemporaryDirectory directory;
  std::string bytes = with_another_half();
  const std::string checksum = "\x36\xd5\xd5\x94";
  std::size_t count = 0;
  for (std::size_t at = bytes.find(checksum); at != std::string::npos; at = bytes.find(checksum)) {
    bytes.replace(at, checksum.size(), checksum.size(), '\0');
    ++count;
  }
  ASSERT_EQ(count, 2u) << "one behind the tensor, one in the directory of the archive";
  std::ofstream(directory / "net.pth", std::ios::binary) << bytes;
  const TensorFile file = read_tensor_file(directory / "net.pth");
  EXPECT_EQ(file.tensors().at("half").to_floats(), (Floats{2, -2}));
}

// ---- what is refused

/// Bytes of a file net.pth, and what is said of them.
struct Refused {
  std::string bytes;
  std::string message;
};

void expect_refused(const std::vector<Refused>& files) {
  const TemporaryDirectory directory;
  for (const auto& [bytes, message] : files) {
    std::ofstream(directory / "net.pth", std::ios::binary) << bytes;
    expect_error(ErrorKind::Data, {"net.pth: " + message},
                 [&] { (void)read_tensor_file(directory / "net.pth"); });
  }
}

// A file that was cut, or is damaged, is still called what it is.
TEST(TensorFileTest, SaysWhatAFileIsNot) {
  const std::string nothing =
      " bytes are neither safetensors, nor a file of torch.save, nor HDF5: fetch it ";
  std::vector<Refused> files = {
      {"", "its 0" + nothing},
      {"PK", "its 2" + nothing},
      {"<html><body>Not found", "its 21" + nothing},
      {R"({"tests": {"a": 1}})", "its 19" + nothing},
      {std::string("\x40\0\0\0\0\0\0\0{\"a\":", 13), "the header should have 64 bytes"}};
  const TemporaryDirectory directory;
  write_numbered_weights(directory / "whole.h5");
  const std::string hdf5 = test::read_text(directory / "whole.h5");
  const std::string archive = bytes_of("checkpoint.pth");
  for (const std::size_t length : {std::size_t{40}, hdf5.size() / 2, hdf5.size() - 1})
    files.push_back(
        {hdf5.substr(0, length),
         fmt::format("its {} bytes are no whole HDF5 file: fetch the file again", length)});
  for (const std::size_t length : {std::size_t{40}, archive.size() / 2, archive.size() - 1})
    files.push_back(
        {archive.substr(0, length),
         fmt::format("the end of its zip archive is missing behind {} bytes: fetch it", length)});
  expect_refused(files);
  for (const fs::path& path : {directory / "none.pth", directory.path()})
    expect_error(ErrorKind::Io, {path.string()}, [&] { (void)read_tensor_file(path); });
}

TEST(TensorFileTest, SaysWhatAFileOfPyTorchLacks) {
  const std::string whole = bytes_of("legacy.pth");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string bytes = whole;
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  const std::string version("M\xe9\x03.", 4);
  expect_refused(
      {{whole.substr(0, whole.size() - 5), "it ends too early: fetch it again"},
       {whole.substr(0, 40),
        "its facts: no pickle that can be read, at byte 11: it ends too early: fetch the file "
        "again"},
       {whole + std::string(8, '\0'), "8 bytes follow its last storage: fetch it again"},
       {changed(version, "M\xe8\x03."), "its version is not 1001: load it and save it again"},
       {changed("HalfStorage", "SoftStorage"), "elements of a SoftStorage cannot be read"},
       {changed("little_endianq\x02\x88", "little_endianq\x02\x89"), "its numbers are big-endian"},
       {bytes_of("module.pth"),
        "it is no dictionary of tensors; save model.state_dict() instead of the model"},
       // A flipped bit makes another number, which is as good as any.
       {with_another_half(),
        "checkpoint/data/2 is damaged, its bytes do not have the CRC-32 that the file records: "
        "fetch the file again"}});
}

/// An archive with one entry, as bytes.
std::string archive_of(const char* entry, std::string_view bytes) {
  const TemporaryDirectory directory;
  write_archive(directory / "net.zip", entry, bytes);
  return test::read_text(directory / "net.zip");
}

TEST(TensorFileTest, SaysWhatAnArchiveOrAFileOfHdf5Lacks) {
  const TemporaryDirectory directory;
  write_merged(CheckpointReader(write_checkpoint(directory / "checkpoints", sample_header(5),
                                                 SampleModel(1).tensors())),
               directory / "all.h5");
  Hdf5Writer writer(directory / "nameless.h5");
  write_four(writer, "layers/dense/vars/1", {4});
  writer.describe("layers/dense/vars", "name", Json(7));
  writer.close();
  expect_refused(
      {{test::read_text(directory / "all.h5"),
        "holds a checkpoint of millrace, with other names than Keras: give the run that it came "
        "from to restore, validate or --init-path, or export that with --to safetensors"},
       {test::read_text(directory / "nameless.h5"),
        "layers/dense/vars has a name that cannot be read"},
       {archive_of("model.weights.h5", "{}"),
        "its model.weights.h5 is no whole HDF5 file: fetch the file again"},
       {archive_of("model.json", "{}"),
        "a zip archive without data.pkl is no file of torch.save"}});
}

/// Writes `w`, whose rows lie `step` apart in a storage of so many elements: 0 to 5, then zeros.
fs::path write_rows(const TemporaryDirectory& directory, int rows, int columns, int step,
                    std::size_t elements, bool compressed = false) {
  Floats values(elements);
  std::iota(values.begin(), values.begin() + 6, 0.0f);
  test::write_torch_archive(
      directory / "net.pth",
      test::pickled_tensor(rows, columns, step, static_cast<std::int32_t>(elements)),
      std::as_bytes(std::span(values)), compressed);
  return directory / "net.pth";
}

// A file of some hundred bytes must not fill the memory.
TEST(TensorFileTest, RefusesATensorThatIsMuchLargerThanItsFile) {
  const TemporaryDirectory directory;
  EXPECT_EQ(contents(read_tensor_file(write_rows(directory, 2, 3, 3, 6))),
            (Contents{{"w", {{2, 3}, {0, 1, 2, 3, 4, 5}}}}));
  EXPECT_EQ(contents(read_tensor_file(write_rows(directory, 2, 3, 0, 6))),
            (Contents{{"w", {{2, 3}, {0, 1, 2, 0, 1, 2}}}}));
  const fs::path large = write_rows(directory, 100'000'000, 6, 0, 6);
  expect_error(ErrorKind::Data, {"w: with it, the tensors are over 64 MB larger than the file"},
               [&] { (void)read_tensor_file(large); });
  EXPECT_EQ(read_tensor_file(write_rows(directory, 2, 50'000, 50'000, 100'000)).tensors().size(),
            1u);
  const fs::path compressed = write_rows(directory, 2, 50'000, 50'000, 100'000, true);
  expect_error(ErrorKind::Data, {"net.pth: net/data/0 is compressed"},
               [&] { (void)read_tensor_file(compressed); });
}

// Every prefix of a file, and every file with one byte changed, is read or refused.
TEST(TensorFileTest, SurvivesDamage) {
  const TemporaryDirectory directory;
  const auto survives = [&](const std::string& bytes) {
    std::ofstream(directory / "damaged", std::ios::binary) << bytes;
    try {
      (void)read_tensor_file(directory / "damaged");
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::Data || error.kind() == ErrorKind::Io) << error.what();
    }
  };
  struct Steps {
    const char* name;
    std::size_t of_lengths;
    std::size_t of_bytes;
  };
  for (const auto& [name, of_lengths, of_bytes] :
       {Steps{"checkpoint.pth", 13, 3}, Steps{"legacy.pth", 13, 3},
        Steps{"chunked.h5", 1021, 59}}) {
    const std::string whole = test::read_text(fixture(name));
    for (std::size_t length = 0; length < whole.size(); length += of_lengths)
      survives(whole.substr(0, length));
    for (std::size_t at = 0; at < whole.size(); at += of_bytes) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
      survives(bytes);
    }
  }
}

// HDF5 1.10.8 is aborted in the first file, crashes in the second, and never ends with the third.
// Another version, or memory that lies elsewhere, may have other luck.
TEST(TensorFileLimitTest, WhatHdf5DoesNotSurviveIsRefused) {
  const TemporaryDirectory directory;
  const std::string whole = test::read_text(fixture("chunked.h5"));
  EXPECT_EQ(read_tensor_file(fixture("chunked.h5")).tensors().size(), 3u);
  using Changes = std::vector<std::pair<std::size_t, int>>;
  for (const Changes& changes : {Changes{{2073, 164}}, {{2074, 90}}, {{2120, 151}, {25497, 64}}}) {
    std::string bytes = whole;
    for (const auto& [at, value] : changes) bytes[at] = static_cast<char>(value);
    std::ofstream(directory / "bad.h5", std::ios::binary) << bytes;
    try {
      (void)read_tensor_file(directory / "bad.h5");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Data);
      EXPECT_NE(std::string(error.what()).find("bad.h5: "), std::string::npos) << error.what();
    }
  }
}

/// A literal may contain zeros.
template <std::size_t N>
Pickle parse(const char (&literal)[N]) {  // NOLINT(modernize-avoid-c-arrays)
  return parse_pickle(std::as_bytes(std::span(literal, N - 1)), "a pickle");
}

TEST(PickleTest, KnowsNumbersTextsAndContainers) {
  // [7, -2, 'ab', (True,), {'k': 1.5}]
  const Pickle pickle = parse(
      "\x80\x02](K\x07J\xfe\xff\xff\xffX\x02\0\0\0ab\x88\x85}X\x01\0\0\0kG\x3f\xf8\0\0\0\0\0\0se.");
  const auto* list = pickle.as<PickledSequence>(pickle.root);
  ASSERT_NE(list, nullptr);
  ASSERT_EQ(list->items.size(), 5u);
  EXPECT_EQ(*pickle.as<std::int64_t>(list->items[0]), 7);
  EXPECT_EQ(*pickle.as<std::int64_t>(list->items[1]), -2);
  EXPECT_EQ(*pickle.as<std::string>(list->items[2]), "ab");
  EXPECT_EQ(*pickle.as<std::int64_t>(pickle.as<PickledSequence>(list->items[3])->items[0]), 1);
  const auto* dictionary = pickle.as<PickledDictionary>(list->items[4]);
  ASSERT_EQ(dictionary->items.size(), 1u);
  EXPECT_EQ(*pickle.as<double>(dictionary->items[0].second), 1.5);
}

// What a call of os.system('exit 1') gives is nothing.
TEST(PickleTest, CallsNothing) {
  const Pickle pickle = parse(
      "\x80\x02"
      "cos\nsystem\nX\x06\0\0\0exit 1\x85R.");
  EXPECT_NE(pickle.as<PickledOther>(pickle.root), nullptr);
}

TEST(PickleTest, RefusesWhatIsNone) {
  for (const std::string bytes : {"", "K", ".", "0.", "(", "t.", "u.", "hA.", "\x01.", "}(K.u."})
    expect_error(ErrorKind::Data, {"a pickle: no pickle that can be read"},
                 [&] { (void)parse_pickle(std::as_bytes(std::span(bytes)), "a pickle"); });
}

}  // namespace
}  // namespace millrace::io
