// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.hpp"

#include <hdf5.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <thread>

#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

std::vector<std::byte> pattern(std::size_t size, unsigned seed = 1) {
  std::vector<std::byte> bytes(size);
  std::uint32_t x = seed;
  for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
  return bytes;
}

std::vector<std::byte> read_back(const fs::path& path, const std::string& name, DType type,
                                 const std::vector<std::int64_t>& shape, std::size_t size) {
  std::vector<std::byte> bytes(size);
  Hdf5Reader(path).read(name, type, shape, bytes);
  return bytes;
}

/// The view of any other HDF5 reader.
std::vector<std::byte> read_by_library(const fs::path& path, const std::string& name,
                                       std::size_t size) {
  std::vector<std::byte> bytes(size);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t dataset = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  const hid_t type = H5Dget_type(dataset);
  EXPECT_GE(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), 0);
  H5Tclose(type);
  H5Dclose(dataset);
  H5Fclose(file);
  return bytes;
}

void write_one(const fs::path& path, const std::string& name, DType type,
               const std::vector<std::int64_t>& shape, std::span<const std::byte> data) {
  Hdf5Writer file(path);
  file.write(name, type, shape, data);
  file.close();
}

struct Case {
  DType type;
  std::vector<std::int64_t> shape;
};

class Hdf5RoundTripTest : public testing::TestWithParam<Case> {};

TEST_P(Hdf5RoundTripTest, GivesTheSameBytes) {
  const auto& [type, shape] = GetParam();
  const TemporaryDirectory directory;
  const fs::path path = directory / "x.h5";
  const auto elements =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const auto data = pattern(static_cast<std::size_t>(elements * size_of(type)));
  write_one(path, "/parameters/b1/0/conv1/kernel", type, shape, data);
  EXPECT_EQ(read_back(path, "/parameters/b1/0/conv1/kernel", type, shape, data.size()), data);
  EXPECT_EQ(read_by_library(path, "/parameters/b1/0/conv1/kernel", data.size()), data);
}

// The last ones are larger than a chunk, with extents that do not divide evenly; one is a single
// wide row.
INSTANTIATE_TEST_SUITE_P(Shapes, Hdf5RoundTripTest,
                         testing::Values(Case{DType::F32, {16, 3, 3, 3}}, Case{DType::F32, {}},
                                         Case{DType::BF16, {7}}, Case{DType::F16, {5, 3}},
                                         Case{DType::U8, {1}}, Case{DType::I32, {2, 2}},
                                         Case{DType::F32, {1500, 1, 1, 1031}},
                                         Case{DType::BF16, {1, 3'000'017}}));

struct Hdf5Test : testing::Test {
  const TemporaryDirectory directory;
};

TEST_F(Hdf5Test, ManyTensorsInNestedGroups) {
  const fs::path path = directory / "x.h5";
  Hdf5Writer writer(path);
  for (unsigned i = 0; i < 300; ++i) {
    writer.write("/slots/b" + std::to_string(i / 10) + "/" + std::to_string(i), DType::F32, {{25}},
                 pattern(100, i));
  }
  writer.close();
  const Hdf5Reader reader(path);
  std::vector<std::byte> bytes(100);
  for (unsigned i = 0; i < 300; ++i) {
    reader.read("/slots/b" + std::to_string(i / 10) + "/" + std::to_string(i), DType::F32, {{25}},
                bytes);
    ASSERT_EQ(bytes, pattern(100, i)) << i;
  }
}

TEST_F(Hdf5Test, EqualContentGivesEqualFiles) {
  const auto data = pattern(400);
  write_one(directory / "a.h5", "/parameters/a/b", DType::F32, {100}, data);
  ::sleep(1);  // timestamps would have a resolution of one second
  write_one(directory / "b.h5", "/parameters/a/b", DType::F32, {100}, data);
  EXPECT_EQ(read_bytes(directory / "a.h5"), read_bytes(directory / "b.h5"));
}

TEST_F(Hdf5Test, FilesAreInTheOldestFormat) {
  write_one(directory / "a.h5", "/x", DType::F32, {100}, pattern(400));
  const auto bytes = read_bytes(directory / "a.h5");
  ASSERT_GT(bytes.size(), 8u);
  EXPECT_EQ(bytes[8], 0) << "version of the superblock";
}

std::string text_attribute(hid_t file, const char* object, const char* attribute) {
  const hid_t opened = H5Aopen_by_name(file, object, attribute, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t type = H5Aget_type(opened);
  char text[16] = {};
  char* any_length = text;
  const bool varies = H5Tis_variable_str(type) > 0;
  EXPECT_GE(H5Aread(opened, type, varies ? static_cast<void*>(&any_length) : text), 0);
  std::string value(any_length);
  if (varies) H5free_memory(any_length);
  H5Tclose(type);
  H5Aclose(opened);
  return value;
}

// For other readers, to which a bfloat16 is a number of 16 bits.
TEST_F(Hdf5Test, DescriptionsDoNotDisturbTensors) {
  const fs::path path = directory / "x.h5";
  Hdf5Writer writer(path);
  writer.describe("/", "model", "resnet-8");
  writer.describe("/", "classes", 10);
  writer.describe("/", "mean", Json::list({1.5, 2, 3}));
  writer.describe("/", "nothing", "");
  writer.write_texts("/class_names", std::vector<std::string>{"cat", "a longer name", ""});
  const std::vector<std::byte> data = pattern(3 * 4 * 4);
  writer.write("/a/kernel", DType::F32, {{3, 4}}, data);
  writer.describe("/a/kernel", "layout", "OI");
  writer.write("/b", DType::BF16, {{10}}, pattern(20));
  writer.close();
  EXPECT_EQ(read_back(path, "/a/kernel", DType::F32, {3, 4}, data.size()), data);

  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_EQ(H5Aexists_by_name(file, "/", "nothing", H5P_DEFAULT), 0);
  double mean[3] = {};
  const hid_t numbers = H5Aopen_by_name(file, "/", "mean", H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_GE(H5Aread(numbers, H5T_NATIVE_DOUBLE, mean), 0);
  EXPECT_EQ(mean[0], 1.5);
  EXPECT_EQ(mean[2], 3.0);
  H5Aclose(numbers);
  EXPECT_EQ(text_attribute(file, "/a/kernel", "layout"), "OI");
  EXPECT_EQ(text_attribute(file, "/b", "dtype"), "bfloat16");
  const hid_t names = H5Dopen2(file, "/class_names", H5P_DEFAULT);
  const hid_t name = H5Dget_type(names);
  std::string all(3 * 13, 'x');
  EXPECT_EQ(H5Tget_size(name), 13u);
  EXPECT_GE(H5Dread(names, name, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()), 0);
  EXPECT_EQ(all, std::string("cat\0\0\0\0\0\0\0\0\0\0a longer name", 26) + std::string(13, '\0'));
  H5Tclose(name);
  H5Dclose(names);
  H5Fclose(file);
}

TEST_F(Hdf5Test, WrongExpectationsAreNamed) {
  const fs::path path = directory / "x.h5";
  Hdf5Writer writer(path);
  writer.write("/a/f", DType::F32, {{4, 5}}, pattern(80));
  writer.close();
  const Hdf5Reader reader(path);
  std::vector<std::byte> bytes(80);
  std::vector<std::byte> half(40);
  const auto read = [&](const std::string& name, DType type, const std::vector<std::int64_t>& shape,
                        std::span<std::byte> out) {
    return [&reader, name, type, shape, out] { reader.read(name, type, shape, out); };
  };
  expect_error(ErrorKind::Checkpoint, {path.string(), "cannot open /a/g: object 'g' doesn't exist"},
               read("/a/g", DType::F32, {4, 5}, bytes));
  expect_error(ErrorKind::Checkpoint, {"cannot open /b/f"},
               read("/b/f", DType::F32, {4, 5}, bytes));
  expect_error(ErrorKind::Checkpoint, {"/a/f", "shape [4, 5], expected [5, 4]"},
               read("/a/f", DType::F32, {5, 4}, bytes));
  expect_error(ErrorKind::Checkpoint, {"/a/f", "is not stored as int32"},
               read("/a/f", DType::I32, {4, 5}, bytes));
  expect_error(ErrorKind::Checkpoint, {"/a/f", "is not stored as bfloat16"},
               read("/a/f", DType::BF16, {4, 5}, half));
  expect_error(ErrorKind::Checkpoint, {"cannot open /a: not a dataset"},
               read("/a", DType::F32, {4, 5}, bytes));
  expect_error(ErrorKind::Internal, {"broken invariant"}, read("/a/f", DType::F32, {4, 5}, half));
}

TEST_F(Hdf5Test, WhatIsNotHdf5IsRefused) {
  const fs::path path = directory / "x.h5";
  write_bytes(path, std::vector<std::uint8_t>(5000, 7));
  expect_error(ErrorKind::Checkpoint, {path.string(), "cannot open the file", "signature"},
               [&] { const Hdf5Reader reader(path); });
  expect_error(ErrorKind::Checkpoint, {"cannot open", "No such file"},
               [&] { const Hdf5Reader reader(directory / "none.h5"); });
}

TEST_F(Hdf5Test, ExistingFilesAreNotOverwritten) {
  const fs::path path = directory / "x.h5";
  write_bytes(path, std::vector<std::uint8_t>(10, 7));
  expect_error(ErrorKind::Io, {path.string(), "File exists"},
               [&] { const Hdf5Writer writer(path); });
  EXPECT_EQ(read_bytes(path).size(), 10u);
}

// Runs in a child process. Returns 0 if the writer failed as expected, HDF5 was usable again
// without the limit, and the library shut down cleanly.
int write_with_limit(const fs::path& directory, rlim_t limit) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit value{};
  ::getrlimit(RLIMIT_FSIZE, &value);
  value.rlim_cur = limit;
  ::setrlimit(RLIMIT_FSIZE, &value);
  const auto data = pattern(400'000);
  try {
    Hdf5Writer writer(directory / "full.h5");
    for (int i = 0; i < 3; ++i) {
      writer.write("/a/" + std::to_string(i), DType::F32, {{100'000}}, data);
    }
    writer.close();
    return 1;
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.kind() != ErrorKind::Io) return 2;
    if (text.find("full.h5: File too large") == std::string::npos) return 3;
  }
  value.rlim_cur = value.rlim_max;
  ::setrlimit(RLIMIT_FSIZE, &value);
  write_one(directory / "again.h5", "/a", DType::F32, {100'000}, data);
  if (read_back(directory / "again.h5", "/a", DType::F32, {100'000}, data.size()) != data) return 4;
  return H5close() >= 0 ? 0 : 5;
}

TEST_F(Hdf5Test, FullDiskIsReportedAndTheLibraryStaysUsable) {
  for (const rlim_t limit : std::initializer_list<rlim_t>{0, 1, 100, 1000, 2048, 5000, 400'000,
                                                          405'000, 800'000, 1'200'000}) {
    const TemporaryDirectory full;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(write_with_limit(full.path(), limit));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "limit " << limit << ": signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "limit " << limit;
  }
}

TEST_F(Hdf5Test, UnfinishedWriterLeavesNothingOpen) {
  {
    Hdf5Writer writer(directory / "x.h5");
    writer.write("/a", DType::F32, {{10}}, pattern(40));
  }
  EXPECT_EQ(H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL), 0);
}

// ---- hdf5 in child ------------------------------------------------------------------------------

constexpr ChildLimits kLimits{.seconds = 1, .bytes = std::uint64_t{64} << 20};

TEST(Hdf5InChildTest, HandsOverWhatWasRead) {
  const std::string large(20'000'000, 'x');
  for (const std::string& text : {std::string(), std::string("a\0b", 3), large})
    EXPECT_EQ(hdf5_in_child("some.h5", ErrorKind::Data, [&] { return text; }), text);
}

TEST(Hdf5InChildTest, HandsOverErrors) {
  for (const ErrorKind kind : {ErrorKind::Data, ErrorKind::Io, ErrorKind::Internal})
    expect_error(kind, {"what went wrong"}, [&] {
      (void)hdf5_in_child("some.h5", ErrorKind::Checkpoint,
                          [&]() -> std::string { fail(kind, "what went wrong"); });
    });
}

struct End {
  const char* said;
  void (*happen)();
};

class Hdf5InChildEndTest : public testing::TestWithParam<End> {};

TEST_P(Hdf5InChildEndTest, IsOneErrorThatNamesTheFile) {
  for (const ErrorKind kind : {ErrorKind::Data, ErrorKind::Checkpoint})
    expect_error(kind, {"some.h5: cannot be read: the HDF5 library ", GetParam().said}, [&] {
      (void)hdf5_in_child(
          "some.h5", kind,
          [] {
            GetParam().happen();
            return std::string();
          },
          kLimits);
    });
  EXPECT_EQ(::waitpid(-1, nullptr, 0), -1);
  EXPECT_EQ(errno, ECHILD);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Hdf5InChildEndTest,
    testing::Values(End{"crashed (Segmentation fault)", [] { ::raise(SIGSEGV); }},
                    End{"crashed (Aborted)", [] { std::abort(); }},
                    End{"gave up", [] { ::_exit(0); }},
                    // A sanitizer ends the process instead.
                    End{"", [] { const std::vector<char> much(std::size_t{1} << 32, 'x'); }},
                    End{"was still busy after 1 s", [] { ::raise(SIGXCPU); }},
                    End{"was still busy after 10 s", [] { ::raise(SIGALRM); }},
                    // By either clock: that of a busy machine may be the first.
                    End{"was still busy after 1", [] {
                          for (volatile bool busy = true; busy;) continue;
                        }}));

// As programs do that let the system take away their children.
TEST(Hdf5InChildTest, NeedsNoStatus) {
  auto* const before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(hdf5_in_child("some.h5", ErrorKind::Data, [] { return std::string("x"); }), "x");
  expect_error(ErrorKind::Data, {"some.h5: cannot be read: the HDF5 library gave up"}, [] {
    (void)hdf5_in_child("some.h5", ErrorKind::Data, []() -> std::string { std::abort(); });
  });
  std::signal(SIGCHLD, before);
}

// A child that is forked while another thread is inside the library would wait for it for ever.
TEST(Hdf5InChildTest, OtherThreadsMayUseTheLibrary) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data(4096);
  const std::vector<std::int64_t> shape = {1024};
  const auto write = [&](const std::string& name) {
    Hdf5Writer file(directory / name);
    for (int i = 0; i < 20; ++i) file.write("/t" + std::to_string(i), DType::F32, shape, data);
    file.close();
  };
  write("first.h5");
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; !done; ++i) write("other-" + std::to_string(i) + ".h5");
  });
  for (int i = 0; i < 100; ++i) {
    const std::string read = hdf5_in_child(directory / "first.h5", ErrorKind::Data, [&] {
      std::string bytes(data.size(), 'x');
      Hdf5Reader(directory / "first.h5")
          .read("/t7", DType::F32, shape, std::as_writable_bytes(std::span(bytes)));
      return bytes;
    });
    EXPECT_EQ(read, std::string(data.size(), '\0'));
  }
  done = true;
  writer.join();
}

}  // namespace
}  // namespace millrace::io
