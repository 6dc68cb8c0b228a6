// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "io/manifest.hpp"
#include "tests/io/checkpoint_fixtures.hpp"
#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

using Names = std::vector<std::string>;

Names names_in(const fs::path& directory) {
  Names names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string manifest_text(const fs::path& checkpoint) {
  return test::read_text(checkpoint / kManifestName);
}

void flip_bit(const fs::path& path, std::uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
  ASSERT_TRUE(file.good()) << path;
}

void expect_content(const CheckpointReader& reader, const SampleModel& model) {
  ASSERT_EQ(reader.tensors().size(), model.tensors().size());
  for (const NamedTensor& tensor : model.tensors()) {
    const TensorInfo* const info = reader.find(tensor.info.name);
    ASSERT_NE(info, nullptr) << tensor.info.name;
    EXPECT_EQ(*info, tensor.info);
    EXPECT_TRUE(std::ranges::equal(read_tensor(reader, *info), tensor.data)) << tensor.info.name;
  }
}

class CheckpointTest : public testing::Test {
 protected:
  fs::path write(std::int64_t iteration, unsigned seed = 1) {
    return write_checkpoint(folder_, sample_header(iteration), SampleModel(seed).tensors());
  }

  void damage(const char* name) { flip_bit(folder_ / name / "part-000.h5", 4000); }
  /// What is left when the rest is retired.
  Names kept(const Retention& retention) {
    retire_checkpoints(folder_, retention);
    return names_in(folder_);
  }
  static void expect_unreadable(const fs::path& path, const Names& told) {
    expect_error(ErrorKind::Checkpoint, told, [&] { const CheckpointReader reader(path); });
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_ / "checkpoints";
};

/// Malicious content.
class CheckpointLimitTest : public CheckpointTest {};

TEST_F(CheckpointTest, RoundTripKeepsHeaderAndEveryByte) {
  const SampleModel model(1);
  CheckpointHeader header = sample_header(12);
  header.network =
      R"({"classes":2,"image":[32,32,3],"class_names":["cat","dog"],"preparation":{"mean":[1.5,2,3],"deviation":[1,1,1]}})";
  const fs::path path = write_checkpoint(folder_, header, model.tensors());
  EXPECT_EQ(path, folder_ / "ckpt-12");
  EXPECT_EQ(names_in(folder_), (Names{"ckpt-12"}));
  EXPECT_EQ(names_in(path), (Names{"manifest.json", "part-000.h5"}));
  const CheckpointReader reader(path);
  EXPECT_EQ(reader.header(), header);
  expect_content(reader, model);
  EXPECT_EQ(digest(reader), digest(model.tensors()));
  EXPECT_TRUE(std::is_sorted(reader.tensors().begin(), reader.tensors().end(),
                             [](const auto& a, const auto& b) { return a.name < b.name; }));
  EXPECT_EQ(verify(path), Names{});
}

TEST_F(CheckpointTest, UnknownTensorsAndWrongBuffersAreErrors) {
  const CheckpointReader reader(write(5));
  EXPECT_EQ(reader.find("nothing"), nullptr);
  std::vector<std::byte> bytes(3);
  expect_error(ErrorKind::Checkpoint, {"ckpt-5", "no tensor nothing"},
               [&] { reader.read("nothing", bytes); });
  expect_error(ErrorKind::Internal, {"fc1/bias has 20 bytes, but the buffer has 3"},
               [&] { reader.read("fc1/bias", bytes); });
}

TEST_F(CheckpointTest, MistakesOfTheWriterAreFoundBeforeAnythingIsWritten) {
  const auto expect_refused = [&](const NamedTensor& extra) {
    SampleModel model(1);
    model.mutable_tensors().push_back(extra);
    expect_error(ErrorKind::Internal, {"broken invariant"},
                 [&] { write_checkpoint(folder_, sample_header(1), model.tensors()); });
    EXPECT_FALSE(fs::exists(folder_));
  };
  const std::vector<std::byte> four(4);
  const auto role = TensorRole::Parameter;
  expect_refused({{"fc1/bias", TensorRole::Slot, DType::F32, {1}}, four});  // name taken
  expect_refused({{"x", role, DType::F32, {2}}, four});                     // too few bytes
  expect_refused({{"x", role, DType::F32, {0}}, {}});                       // no elements
  for (const char* const name : {"", "/x", "x/", "a//b", "a/../b", "a/./b", "a\nb"}) {
    expect_refused({{name, role, DType::F32, {1}}, four});
  }
}

TEST_F(CheckpointTest, TextThatIsNotUtf8IsRefusedAndNothingIsLeft) {
  CheckpointHeader header = sample_header(1);
  header.config_toml = "\xff";
  expect_error(ErrorKind::Config, {"checkpoint 1", "not UTF-8"},
               [&] { write_checkpoint(folder_, header, SampleModel(1).tensors()); });
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(CheckpointTest, UnwritableFolderIsNamed) {
  test::write_file(directory_ / "file", "x");
  expect_error(ErrorKind::Io, {"file/checkpoints"}, [&] {
    write_checkpoint(directory_ / "file" / "checkpoints", sample_header(1),
                     SampleModel(1).tensors());
  });
}

TEST_F(CheckpointTest, EveryFlippedBitOfTheManifestIsFound) {
  const std::string good = manifest_text(write(5));
  ASSERT_EQ(parse_manifest(good, "x").header, sample_header(5));
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string damaged = good;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_THROW(static_cast<void>(parse_manifest(damaged, "x")), Error) << "bit " << bit;
  }
}

TEST_F(CheckpointTest, TruncatedFilesAreFound) {
  const fs::path path = write(5);
  for (const char* const name : {"manifest.json", "part-000.h5"}) {
    const fs::path file = path / name;
    const auto good = read_bytes(file);
    std::vector<std::size_t> sizes = {0, 1, good.size() - 1};
    for (std::size_t size = 512; size < good.size(); size += 512) sizes.push_back(size);
    for (const std::size_t size : sizes) {
      fs::resize_file(file, size);
      expect_unreadable(path, {file.string()});
      write_bytes(file, good);
    }
    fs::resize_file(file, good.size() + 1);  // too long is wrong, too
    EXPECT_EQ(verify(path).size(), 1u);
    write_bytes(file, good);
  }
  EXPECT_TRUE(verify(path).empty());
}

// The tensor has its own checksum in addition to that of the file.
TEST_F(CheckpointTest, TensorOfAnotherCheckpointIsFoundByItsOwnChecksum) {
  const fs::path path = write(5, 1);
  const fs::path other = write(6, 2);
  fs::copy_file(other / "part-000.h5", path / "part-000.h5", fs::copy_options::overwrite_existing);
  Manifest manifest = parse_manifest(manifest_text(path), "x");
  manifest.parts[0].checksum = checksum_file(path / "part-000.h5");
  test::write_file(path / kManifestName, to_text(manifest));
  const CheckpointReader reader(path);
  std::vector<std::byte> bytes(20);
  expect_error(ErrorKind::Checkpoint, {"ckpt-5", "fc1/bias: damaged: checksum"},
               [&] { reader.read("fc1/bias", bytes); });
  EXPECT_EQ(verify(path).size(), reader.tensors().size());
}

// A flipped bit in a tensor's bytes: the file is named, and the tensor.
TEST_F(CheckpointTest, VerifyNamesTheTensorsOfADamagedFile) {
  const fs::path path = write(5);
  const fs::path file = path / "part-000.h5";
  const auto good = read_bytes(file);
  const CheckpointReader reader(path);
  for (const TensorInfo& info : reader.tensors()) {
    std::vector<unsigned char> bytes(static_cast<std::size_t>(info.bytes()));
    reader.read(info.name, std::as_writable_bytes(std::span(bytes)));
    auto damaged = good;
    const auto at = std::search(damaged.begin(), damaged.end(), bytes.begin(), bytes.end());
    if (at == damaged.end()) continue;  // in several chunks
    *at ^= 1;
    write_bytes(file, damaged);
    expect_unreadable(path, {file.string()});
    const Names problems = verify(path);
    ASSERT_EQ(problems.size(), 2u) << info.name;
    test::expect_in(problems[0], {"part-000.h5: damaged"});
    test::expect_in(problems[1], {info.name});
  }
}

TEST_F(CheckpointTest, VerifyLooksAtAllFiles) {
  CheckpointStaging staging(folder_, sample_header(5));
  const SampleModel model(1);
  Names parts;
  std::vector<TensorInfo> infos;
  for (const NamedTensor& tensor : model.tensors()) {
    parts.push_back(write_checkpoint_part(staging.path(), static_cast<int>(parts.size()),
                                          sample_header(5), {&tensor, 1}));
    infos.push_back(tensor.info);
  }
  const fs::path path = staging.commit(parts, infos);
  for (const char* file : {"part-000.h5", "part-002.h5"}) fs::resize_file(path / file, 100);
  const Names problems = verify(path);
  ASSERT_EQ(problems.size(), 4u);
  test::expect_in(problems[0], {"part-000.h5: "});
  test::expect_in(problems[1], {"cannot open the file: truncated file"});
  test::expect_in(problems[2], {"part-002.h5: "});
  test::expect_in(problems[3], {"part-002.h5: "});
}

// Most of a small file is structure, which the HDF5 library trusts.
TEST_F(CheckpointLimitTest, VerifySurvivesDamagedStructures) {
  const fs::path path = write(5);
  const fs::path file = path / "part-000.h5";
  const auto good = read_bytes(file);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    auto changed = good;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int c = 0; c < changes; ++c) {
      constexpr std::array<std::uint8_t, 6> kInteresting = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
      std::size_t at = random() % changed.size();
      while (good[at] == 0 && random() % 4 != 0) at = random() % changed.size();
      changed[at] ^= kInteresting[random() % kInteresting.size()];
    }
    if (changed == good) continue;
    write_bytes(file, changed);
    const Names problems = verify(path);
    ASSERT_FALSE(problems.empty()) << i;
    test::expect_in(problems[0], {"part-000.h5: damaged: checksum"});
  }
}

TEST_F(CheckpointLimitTest, UnusableValuesAreNamed) {
  const std::vector<float> good = {1.0f, 0.0f, 2.0f};
  const std::vector<float> bad = {1.0f, std::numeric_limits<float>::quiet_NaN(), -2.0f};
  const std::vector<float> negative = {1.0f, 0.0f, -2.0f};
  const auto tensor = [](const char* name, TensorRole role, const std::vector<float>& values) {
    return NamedTensor{{name, role, DType::F32, {3, 1}}, std::as_bytes(std::span(values))};
  };
  const std::vector<NamedTensor> tensors = {
      tensor("a/kernel", TensorRole::Parameter, bad),
      tensor("a/kernel/momentum", TensorRole::Slot, negative),
      tensor("b/moving_mean", TensorRole::State, negative),
      tensor("b/moving_variance", TensorRole::State, negative),
      tensor("c/moving_variance", TensorRole::State, good)};
  const fs::path path = write_checkpoint(folder_, sample_header(5), tensors);
  const Names problems = bad_values(CheckpointReader(path));
  ASSERT_EQ(problems.size(), 2u);
  test::expect_in(problems[0], {"ckpt-5: a/kernel[1, 0] is nan"});
  test::expect_in(problems[1],
                  {"b/moving_variance[2, 0] is -2, but a variance must not be negative"});
}

TEST_F(CheckpointLimitTest, PipesAreRefused) {
  for (const char* const name : {"manifest.json", "part-000.h5"}) {
    const fs::path path = write(5);
    fs::remove(path / name);
    ASSERT_EQ(::mkfifo((path / name).c_str(), 0600), 0);
    expect_unreadable(path, {name, "not a regular file"});
    EXPECT_EQ(verify(path).size(), 1u);
    fs::remove(path / name);
  }
}

TEST_F(CheckpointLimitTest, ManifestsHaveAMaximumSize) {
  const fs::path path = write(5);
  fs::resize_file(path / kManifestName, (8 << 20) + 1);
  expect_unreadable(path, {"manifest.json: 8388609 bytes exceed the limit of 8388608"});
}

// ---- parts of several processes -----------------------------------------------------------------

/// Two parts of a model as two processes would write them, for inconsistencies between them.
class PartsTest : public CheckpointTest {
 protected:
  [[nodiscard]] std::vector<TensorInfo> infos() const {
    std::vector<TensorInfo> all;
    for (const NamedTensor& tensor : model_.tensors()) all.push_back(tensor.info);
    return all;
  }
  [[nodiscard]] std::span<const NamedTensor> tensors(std::size_t first, std::size_t count) const {
    return std::span(model_.tensors()).subspan(first, count);
  }
  /// A commit fails with a message that contains these words, and leaves no files.
  void expect_refused(std::span<const NamedTensor> second, const CheckpointHeader& of_second,
                      std::span<const TensorInfo> expected, const Names& words) {
    {
      CheckpointStaging staging(folder_, sample_header(5));
      const Names parts = {
          write_checkpoint_part(staging.path(), 0, sample_header(5), tensors(0, 2)),
          write_checkpoint_part(staging.path(), 1, of_second, second)};
      expect_error(ErrorKind::Checkpoint, words, [&] { (void)staging.commit(parts, expected); });
    }
    EXPECT_TRUE(names_in(folder_).empty());
  }

  SampleModel model_{1};
};

TEST_F(PartsTest, HaveToMakeUpTheNetwork) {
  const std::vector<TensorInfo> all = infos();
  const std::size_t rest = all.size() - 2;
  const std::vector<TensorInfo> fewer(all.begin(), all.end() - 1);
  std::vector<TensorInfo> other = all;
  other.back().shape.push_back(2);
  const CheckpointHeader header = sample_header(5);
  expect_refused(tensors(2, rest - 1), header, all, {all.back().name, "is missing from all parts"});
  expect_refused(tensors(2, rest), header, fewer,
                 {"part-001.h5", all.back().name, "does not belong to the network"});
  expect_refused(tensors(1, rest + 1), header, all,
                 {"part-001.h5", all[1].name, "is in two parts"});
  expect_refused(tensors(2, rest), header, other, {all.back().name, "but the network needs"});
}

TEST_F(PartsTest, MergeIntoOneFile) {
  fs::path path;
  {
    CheckpointStaging staging(folder_, sample_header(5));
    const Names parts = {
        write_checkpoint_part(staging.path(), 0, sample_header(5), tensors(0, 2)),
        write_checkpoint_part(staging.path(), 1, sample_header(5), tensors(2, infos().size() - 2))};
    path = staging.commit(parts, infos());
  }
  const fs::path file = directory_ / "all.h5";
  for (int times = 0; times < 2; ++times) write_merged(CheckpointReader(path), file);
  EXPECT_EQ(names_in(directory_.path()), (Names{"all.h5", "checkpoints"}));
  const Hdf5Reader merged(file);
  for (const NamedTensor& tensor : model_.tensors()) {
    std::vector<std::byte> bytes(tensor.data.size());
    merged.read(dataset_path(tensor.info), tensor.info.type, tensor.info.shape, bytes);
    EXPECT_TRUE(std::ranges::equal(bytes, tensor.data)) << tensor.info.name;
  }
  expect_error(ErrorKind::Io, {"none/all.h5"},
               [&] { write_merged(CheckpointReader(path), directory_ / "none/all.h5"); });
}

TEST_F(PartsTest, HaveToBeOfOneStep) {
  const std::vector<TensorInfo> all = infos();
  expect_refused(tensors(2, all.size() - 2), sample_header(6), all,
                 {"part-001.h5", "iteration 6", "at 5"});
}

TEST_F(CheckpointTest, MissingFilesAreNamedAndExtraOnesIgnored) {
  const fs::path path = write(5);
  test::write_file(path / "notes.txt", "mine");
  EXPECT_NO_THROW(CheckpointReader{path});
  fs::remove(path / "part-000.h5");
  expect_unreadable(path, {"part-000.h5: is missing"});
  fs::remove(path / kManifestName);
  expect_unreadable(path, {"ckpt-5: not a checkpoint: manifest.json is missing"});
}

TEST_F(CheckpointTest, NewerFormatIsRefused) {
  const fs::path path = write(5);
  std::string text = manifest_text(path);
  const std::string version = "\"format_version\": 1";
  const std::string seal_begin = ",\n \"crc32c\": \"";
  text.replace(text.find(version), version.size(), "\"format_version\": 2");
  text = text.substr(0, text.rfind(seal_begin)) + "\n}\n";
  test::write_file(path / kManifestName, seal_manifest(text));
  expect_unreadable(path, {"manifest.json", "format_version 2", "newer millrace", "reads up to 1"});
}

TEST_F(CheckpointTest, RenamedCheckpointIsRefused) {
  const fs::path path = write(5);
  fs::rename(path, folder_ / "ckpt-6");
  expect_unreadable(folder_ / "ckpt-6", {"ckpt-6: contains iteration 5"});
  fs::rename(folder_ / "ckpt-6", folder_ / "best");
  EXPECT_EQ(CheckpointReader(folder_ / "best").header().iteration, 5);
}

// A manifest with a correct seal is still untrusted.
TEST_F(CheckpointTest, InvalidValuesInAManifestAreNamed) {
  const auto good = nlohmann::ordered_json::parse(manifest_text(write(5)));
  const auto expect_refused = [&](const std::string& pointer, const nlohmann::ordered_json& value,
                                  const std::string& message) {
    auto changed = good;
    changed.erase("crc32c");
    changed[nlohmann::ordered_json::json_pointer(pointer)] = value;
    expect_error(ErrorKind::Checkpoint, {"some/path", message}, [&] {
      static_cast<void>(parse_manifest(seal_manifest(changed.dump(1) + "\n"), "some/path"));
    });
  };
  expect_refused("/format", "keras", "format is not a checkpoint format");
  expect_refused("/format_version", 0, "newer");
  expect_refused("/iteration", -1, "iteration is not a non-negative integer");
  expect_refused("/iteration", 1.5, "iteration is not a non-negative integer");
  expect_refused("/epoch", "1", "epoch is not a number");
  expect_refused("/model", 7, "model is not a string");
  expect_refused("/parts", 7, "parts is not a list");
  expect_refused("/parts/0", 7, "is not an object");
  expect_refused("/parts/0/file", "../part-000.h5", "is not of the form");
  expect_refused("/parts/0/file", "part-.h5", "is not of the form");
  expect_refused("/parts/0/bytes", 10, "is smaller than the tensors");
  expect_refused("/parts/0/crc32c", "0A1B2C3D", "is not a checksum");
  expect_refused("/parts/1", good["parts"][0], "part-000.h5 is listed twice");
  expect_refused("/parts/0/tensors/1", good["parts"][0]["tensors"][0], "is listed twice");
  expect_refused("/parts/0/tensors/0/name", "a/../b", "has an empty, . or .. component");
  expect_refused("/parts/0/tensors/0/role", "weights", "role \"weights\" is unknown");
  expect_refused("/parts/0/tensors/0/dtype", "float8", "dtype \"float8\" is unknown");
  expect_refused("/parts/0/tensors/0/shape", {1, 0}, "an extent that is not positive");
  expect_refused("/parts/0/tensors/0/shape", {1, -3}, "an extent that is not positive");
  expect_refused("/parts/0/tensors/0/shape", {1ull << 62, 1ull << 62}, "shape is too large");
}

TEST_F(CheckpointTest, ListsOnlyCheckpointsByIteration) {
  EXPECT_TRUE(list_checkpoints(directory_.path()).empty());
  for (const int iteration : {100, 9, 20}) write(iteration);
  fs::create_directories(folder_ / "ckpt-500");         // no manifest
  fs::create_directories(folder_ / ".ckpt-501.tmp.1");  // a killed writer's
  fs::copy(folder_ / "ckpt-9", folder_ / "ckpt-009");   // not the canonical name
  fs::copy(folder_ / "ckpt-9", folder_ / "ckpt-9x");
  fs::copy(folder_ / "ckpt-9", folder_ / "ckpt-9.replaced");
  fs::copy(folder_ / "ckpt-9", folder_ / "backup");
  const std::vector<fs::path> expected = {folder_ / "ckpt-9", folder_ / "ckpt-20",
                                          folder_ / "ckpt-100"};
  EXPECT_EQ(list_checkpoints(directory_.path()), expected);
  EXPECT_EQ(list_checkpoints(folder_), expected);
  EXPECT_EQ(list_checkpoints(folder_ / "backup"), std::vector<fs::path>{folder_ / "backup"});
  EXPECT_TRUE(list_checkpoints(directory_ / "nothing").empty());
}

// A kill between the two renames of a replacement leaves the older one under its second name.
TEST_F(CheckpointTest, ReplacedCheckpointCountsWhileItsSuccessorIsMissing) {
  write(9, 1);
  fs::rename(folder_ / "ckpt-9", folder_ / "ckpt-9.replaced");
  Names complaints;
  expect_content(open_newest(directory_.path(), complaints), SampleModel(1));
  EXPECT_TRUE(complaints.empty());
  EXPECT_EQ(kept({.keep = 1}), Names{"ckpt-9.replaced"});
  write(9, 2);
  expect_content(open_newest(directory_.path(), complaints), SampleModel(2));
  EXPECT_EQ(kept({.keep = 1}), Names{"ckpt-9"});
}

TEST_F(CheckpointTest, NewestDamagedOnesAreSkipped) {
  write(1, 1);
  write(2, 2);
  write(3, 3);
  damage("ckpt-3");
  fs::resize_file(folder_ / "ckpt-2" / "manifest.json", 100);
  Names complaints;
  expect_content(open_newest(directory_.path(), complaints), SampleModel(1));
  EXPECT_EQ(sound_checkpoints({folder_ / "ckpt-3", folder_ / "ckpt-1"}, complaints),
            std::vector<fs::path>{folder_ / "ckpt-1"});
  ASSERT_EQ(complaints.size(), 3u);
  for (const auto& [i, name] : {std::pair{0, "ckpt-3"}, {1, "ckpt-2"}, {2, "ckpt-3"}})
    test::expect_in(complaints[static_cast<std::size_t>(i)], {name});
  fs::remove(folder_ / "ckpt-1" / "part-000.h5");
  complaints.clear();
  expect_error(ErrorKind::Checkpoint, {"all of its checkpoints (3) are damaged", "ckpt-3"},
               [&] { static_cast<void>(open_newest(directory_.path(), complaints)); });
  EXPECT_EQ(complaints.size(), 3u);
}

TEST_F(CheckpointTest, ReadersFollowARunThatKeepsOne) {
  write(1, 1);
  std::atomic<bool> done{false};
  std::jthread training([&] {
    for (int iteration = 2; iteration <= 60; ++iteration) {
      write(iteration, 1);
      retire_checkpoints(folder_, {.keep = 1});
    }
    done = true;
  });
  std::int64_t last = 0;
  int visits = 0;
  const SampleModel expected(1);
  while (!done) {
    Names complaints;
    const std::int64_t newest = open_newest(directory_.path(), complaints).header().iteration;
    EXPECT_TRUE(complaints.empty()) << complaints.front();
    EXPECT_GE(newest, last);
    last = newest;
    CheckpointWalk walk(directory_.path());
    while (const std::optional<CheckpointReader> reader = walk.next()) {
      expect_content(*reader, expected);
      ++visits;
    }
  }
  EXPECT_GT(visits, 0);
}

TEST_F(CheckpointTest, AWalkShowsAllInOrderAndThenTheDamagedOnes) {
  for (const int iteration : {10, 2, 7}) write(iteration);
  std::vector<std::int64_t> seen;
  const auto visit_all = [&] {
    seen.clear();
    CheckpointWalk walk(directory_.path());
    while (const std::optional<CheckpointReader> reader = walk.next())
      seen.push_back(reader->header().iteration);
  };
  visit_all();
  EXPECT_EQ(seen, (std::vector<std::int64_t>{2, 7, 10}));
  damage("ckpt-7");
  expect_error(ErrorKind::Checkpoint, {"ckpt-7"}, visit_all);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{2, 10}));
}

TEST_F(CheckpointTest, NoCheckpointIsReported) {
  Names complaints;
  expect_error(ErrorKind::Checkpoint, {"contains no checkpoint"},
               [&] { static_cast<void>(open_newest(directory_.path(), complaints)); });
  expect_error(ErrorKind::Usage, {"nowhere: no such directory"},
               [&] { static_cast<void>(open_newest(directory_ / "nowhere", complaints)); });
}

enum class Then { Stays, Damaged, Gone };

/// A checkpoint before the others are retired: updates skipped just before it, the accuracy of its
/// validation or -1, and what has happened to it.
struct Saved {
  std::int64_t iteration;
  std::int64_t skipped = 0;
  double accuracy = -1.0;
  Then then = Then::Stays;
};

// A training that is about to diverge must not remove the last good checkpoint.
TEST_F(CheckpointTest, RetiringKeepsTheNewestThatVerifiesIsHealthyWasValidatedOrIsTheBest) {
  constexpr auto kDamaged = Then::Damaged;
  struct Row {
    Retention retention;
    std::vector<Saved> saved;
    Names kept;
  };
  const Retention one{.keep = 1};
  const Retention best{.keep = 1, .keep_best = true};
  for (auto [retention, saved, expected] : {
           Row{{.keep = 0}, {{1}, {2}, {10}}, {"ckpt-1", "ckpt-10", "ckpt-2"}},
           Row{{.keep = 2}, {{1}, {2}, {3}, {10}}, {"ckpt-10", "ckpt-3"}},
           Row{one, {{1}, {2}, {3, 0, -1, kDamaged}}, {"ckpt-2", "ckpt-3"}},
           Row{one, {{2, 0, -1, kDamaged}, {3, 0, -1, kDamaged}}, {"ckpt-2", "ckpt-3"}},
           // Before updates were skipped.
           Row{one, {{1}, {2}, {3, 1}, {4, 2}}, {"ckpt-2", "ckpt-4"}},
           Row{one, {{2}, {4, 2}, {5}}, {"ckpt-5"}},
           // Validated.
           Row{one,
               {{1, 0, 90}, {2}, {3, 0, 40}, {4}, {7, 0, 95, Then::Gone}},
               {"ckpt-3", "ckpt-4"}},
           Row{one, {{1, 0, 90}, {3, 0, 40, kDamaged}, {4}}, {"ckpt-1", "ckpt-3", "ckpt-4"}},
           // The later one of two with equal accuracy.
           Row{best,
               {{1, 0, 50}, {2, 0, 60}, {3, 0, 60}, {4, 0, 55}, {5, 0, 10}},
               {"ckpt-3", "ckpt-5"}},
           Row{best,
               {{3, 0, 60, kDamaged}, {4, 0, 55}, {5, 0, 10}},
               {"ckpt-3", "ckpt-4", "ckpt-5"}},
       }) {
    fs::remove_all(folder_);
    for (const auto& [iteration, skipped, accuracy, then] : saved) {
      CheckpointHeader header = sample_header(iteration);
      header.skipped_in_row = skipped;
      const fs::path path = write_checkpoint(folder_, header, SampleModel(1).tensors());
      if (accuracy >= 0.0) retention.validated[iteration] = accuracy;
      if (then == Then::Gone) fs::remove_all(path);
      if (then == Then::Damaged) flip_bit(path / "part-000.h5", 4000);
    }
    for (int times = 0; times < 2; ++times) EXPECT_EQ(kept(retention), expected);
  }
}

TEST_F(CheckpointTest, RetiringRemovesLeftoversOfDeadWritersOnly) {
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  write(1);
  const auto leftover = [](std::int64_t process) {
    return temporary_name(checkpoint_name(7), process);
  };
  const std::string living = leftover(::getppid());
  for (const std::string& name : {leftover(dead), leftover(::getpid()), living})
    fs::create_directories(folder_ / name / "inner");
  fs::create_directories(folder_ / ".ckpt-7.tmp.x");
  retire_checkpoints(folder_, {.keep = 0});
  Names expected = {living, ".ckpt-7.tmp.x", "ckpt-1"};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_in(folder_), expected);
}

TEST(DigestTest, EveryBitOfEveryTensorCountsAndTheirOrderDoesNot) {
  SampleModel model(1);
  const std::string before = digest(model.tensors());
  EXPECT_EQ(before.size(), 64u);
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    for (const std::size_t byte : {std::size_t{0}, model.bytes(t).size() - 1}) {
      model.bytes(t)[byte] ^= std::byte{0x10};
      EXPECT_NE(digest(model.tensors()), before) << model.tensors()[t].info.name;
      model.bytes(t)[byte] ^= std::byte{0x10};
    }
  }
  std::reverse(model.mutable_tensors().begin(), model.mutable_tensors().end());
  EXPECT_EQ(digest(model.tensors()), before);
}

// Two tensors may share a name in memory; then the role decides their order.
TEST(DigestTest, NameRoleTypeAndShapeCount) {
  const std::vector<std::byte> data(8);
  const auto of = [&](const TensorInfo& info) {
    const NamedTensor tensor{info, data};
    return digest({&tensor, 1});
  };
  const TensorInfo base{"a", TensorRole::Parameter, DType::F32, {2}};
  for (const TensorInfo& other : {TensorInfo{"b", base.role, base.type, {2}},
                                  TensorInfo{"a", TensorRole::Slot, base.type, {2}},
                                  TensorInfo{"a", base.role, DType::I32, {2}},
                                  TensorInfo{"a", base.role, base.type, {2, 1}}}) {
    EXPECT_NE(of(other), of(base));
  }
  const std::vector<std::byte> ones(8, std::byte{1});
  const NamedTensor a{base, ones};
  const NamedTensor b{{"a", TensorRole::Slot, base.type, {2}}, data};
  EXPECT_EQ(digest(std::vector<NamedTensor>{a, b}), digest(std::vector<NamedTensor>{b, a}));
}

TEST_F(CheckpointTest, DescribesItselfForPeopleAndPrograms) {
  const CheckpointReader reader(write(5));
  test::expect_in(
      describe(reader),
      {"ckpt-5", "resnet-8", "iteration 5", "b1/0/conv1/kernel", "[16, 3, 3, 3]", "bfloat16",
       "parameter  3 tensors, 458 elements", "slot       2 tensors", "state      3 tensors"});
  const auto json = nlohmann::json::parse(describe_json(reader));
  EXPECT_EQ(json["iteration"], 5);
  EXPECT_EQ(json["epoch"], 1.0 / 3.0);
  EXPECT_EQ(json["tensors"].size(), 8u);
  EXPECT_EQ(json["tensors"][0]["name"], "b0/norm/gamma");
  EXPECT_EQ(json["tensors"][0]["bytes"], 32);
  EXPECT_EQ(json["totals"]["parameter"]["elements"], 432 + 16 + 10);
}

// Written by the first release of the format; every later one reads it.
TEST(CheckpointFormatTest, VersionOneCanBeRead) {
  const fs::path path = fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/checkpoint-v1/ckpt-3";
  const CheckpointReader reader(path);
  CheckpointHeader header = sample_header(3);
  header.scaling_state.clear();  // added later
  header.stand_ins = 0;
  EXPECT_EQ(reader.header(), header);
  expect_content(reader, SampleModel(3));
  EXPECT_EQ(digest(reader), digest(SampleModel(3).tensors()));
  EXPECT_EQ(digest(reader), "b9208b7390c2fbddc556acd0f9ad98b16be0538a53d3dfc54bf2b3e1e44ff1ec");
}

}  // namespace
}  // namespace millrace::io
