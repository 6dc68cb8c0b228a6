// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5_in_child.hpp"

#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <thread>

#include "io/hdf5.hpp"
#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

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
                    End{"was still busy after 1 s", [] {
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
    const std::string read = hdf5_in_child(
        directory / "first.h5", ErrorKind::Data,
        [&] {
          std::string bytes(data.size(), 'x');
          Hdf5Reader(directory / "first.h5")
              .read("/t7", DType::F32, shape, std::as_writable_bytes(std::span(bytes)));
          return bytes;
        },
        ChildLimits{.seconds = 1, .bytes = std::uint64_t{1} << 30});
    EXPECT_EQ(read, std::string(data.size(), '\0'));
  }
  done = true;
  writer.join();
}

}  // namespace
}  // namespace millrace::io
