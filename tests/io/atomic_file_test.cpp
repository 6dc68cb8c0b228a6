// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <thread>

#include "core/crc32c.hpp"
#include "tests/io/allocation_counter.hpp"
#include "tests/io/fixtures.hpp"

namespace millrace::io {
namespace {

std::string text_in(const fs::path& path) {
  const auto bytes = read_bytes(path);
  return {bytes.begin(), bytes.end()};
}

std::size_t entries_in(const fs::path& directory) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

struct AtomicFileTest : testing::Test {
  const TemporaryDirectory directory;
};

TEST_F(AtomicFileTest, ReplacesTheContentByPiecesInOrderAndLeavesNothingElse) {
  const fs::path path = directory / "config.toml";
  write_file_atomically(path, "first, and longer");
  write_file_atomically(path, "second");
  EXPECT_EQ(text_in(path), "second");
  const std::string a = "head";
  const std::string b = "body";
  const std::vector<std::span<const std::byte>> pieces = {
      std::as_bytes(std::span(a)), {}, std::as_bytes(std::span(b))};
  write_file_atomically(path, pieces);
  EXPECT_EQ(text_in(path), "headbody");
  EXPECT_EQ(entries_in(directory.path()), 1u);
}

TEST_F(AtomicFileTest, FailureNamesPathAndReasonAndKeepsTheOldFile) {
  expect_error(ErrorKind::Io, {"missing/x", "No such file or directory"},
               [&] { write_file_atomically(directory / "missing" / "x", "text"); });
  fs::create_directories(directory / "taken" / "inner");
  expect_error(ErrorKind::Io, {"cannot write", "taken: not a regular file"},
               [&] { write_file_atomically(directory / "taken", "text"); });
  EXPECT_EQ(entries_in(directory.path()), 1u);
}

TEST_F(AtomicFileTest, ReadFileHasALimit) {
  const fs::path path = directory / "x";
  write_file_atomically(path, "0123456789");
  EXPECT_EQ(read_file(path, 10).size(), 10u);
  expect_error(ErrorKind::Io, {path.string(), "10 bytes", "exceed the limit of 9"},
               [&] { static_cast<void>(read_file(path, 9)); });
  expect_error(ErrorKind::Io, {"cannot open", "No such file"},
               [&] { static_cast<void>(read_file(directory / "y", 9)); });
  expect_error(ErrorKind::Io, {"not a regular file"},
               [&] { static_cast<void>(read_file(directory.path(), 9)); });
}

// A rename would replace the device or the link, not what it stands for.
TEST_F(AtomicFileTest, LinksAreFollowedAndDevicesRefused) {
  const fs::path file = directory / "inner" / "file";
  fs::create_directory(file.parent_path());
  write_file_atomically(file, "old");
  fs::create_symlink("inner/file", directory / "link");
  write_file_atomically(directory / "link", "new");
  EXPECT_TRUE(fs::is_symlink(directory / "link"));
  EXPECT_EQ(text_in(file), "new");
  EXPECT_EQ(entries_in(file.parent_path()), 1u);
  const fs::path pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_symlink("/dev/null", directory / "null");
  for (const auto& [special, said] :
       {std::pair{pipe, pipe.string()}, std::pair{directory / "null", std::string("/dev/null")}})
    expect_error(ErrorKind::Io, {said + ": not a regular file"},
                 [&, path = special] { write_file_atomically(path, "text"); });
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// All readers open files with this function, also devices; a pipe without a writer is not waited
// for.
TEST(OpenFileLimitTest, OnlyRegularFilesAreRead) {
  const TemporaryDirectory directory;
  const fs::path pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {pipe, fs::path("/dev/zero"), directory.path()})
    for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
             [&] { (void)open_file(path, O_RDONLY); }, [&] { (void)read_file(path, 10); },
             [&] { (void)checksum_file(path); }, [&] { const LineReader reader(path); }})
      expect_error(ErrorKind::Io, {path.string(), "not a regular file"}, use);
}

TEST(LineReaderTest, GivesWholeLinesAndWhereTheyBegin) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "x";
  write_file_atomically(path, "one\n\nthree\nfo");
  LineReader lines(path);
  EXPECT_EQ(lines.next(), "one");
  EXPECT_EQ(lines.next(), "");
  EXPECT_EQ(lines.next(), "three");
  EXPECT_EQ(lines.offset(), 5u);
  EXPECT_FALSE(lines.next());
  EXPECT_EQ(lines.rest(), "fo");
  EXPECT_EQ(lines.offset(), 11u);
  EXPECT_EQ(lines.lines(), 3);
}

// Lines across the borders of the pieces read, a line as long as lines may be, and an endless one.
TEST(LineReaderTest, ManyLinesTakeOneLinesMemory) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "x";
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i) + ",0.5\n";
  const std::string longest(LineReader::kMaxLineBytes, 'x');
  write_file_atomically(path, text + longest + "\nlast\n");
  write_file_atomically(directory / "endless", "a\n" + std::string(8 << 20, 'x') + "\n");
  text.clear();
  text.shrink_to_fit();
  const AllocationPeak peak;
  LineReader lines(path);
  for (int i = 0; i < 200'000; ++i) ASSERT_EQ(lines.next(), std::to_string(i) + ",0.5");
  EXPECT_EQ(lines.next(), longest);
  EXPECT_EQ(lines.next(), "last");
  EXPECT_FALSE(lines.next());
  EXPECT_EQ(lines.rest(), "");
  LineReader endless(directory / "endless");
  EXPECT_EQ(endless.next(), "a");
  EXPECT_FALSE(endless.next());
  EXPECT_EQ(endless.offset(), 2u);
  EXPECT_GT(endless.rest().size(), LineReader::kMaxLineBytes);
  EXPECT_LT(peak.bytes(), 1 << 20);
}

TEST_F(AtomicFileTest, ChecksumIsThatOfTheWholeFile) {
  const fs::path path = directory / "x";
  std::vector<std::uint8_t> bytes(3'000'001);  // more than one piece
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i >> 7);
  write_bytes(path, bytes);
  const FileChecksum checksum = checksum_file(path);
  EXPECT_EQ(checksum.bytes, bytes.size());
  EXPECT_EQ(checksum.crc32c, crc32c(std::as_bytes(std::span(bytes))));
}

TEST_F(AtomicFileTest, DescriptorIsClosedExactlyOnce) {
  UniqueFd file = open_file(directory / "x", O_RDWR | O_CREAT);
  const int number = file.get();
  {
    const UniqueFd moved = std::move(file);
    EXPECT_EQ(moved.get(), number);
    EXPECT_NE(::fcntl(number, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  UniqueFd again = open_file(directory / "x", O_RDONLY);
  EXPECT_EQ(again.close(), 0);
  EXPECT_FALSE(again.valid());
  EXPECT_EQ(again.close(), 0);
}

/// The only file in `directory`.
fs::path only_entry(const fs::path& directory) {
  EXPECT_EQ(entries_in(directory), 1u);
  return fs::directory_iterator(directory)->path();
}

// Containers that share a volume may have processes with equal ids, simulated here by this process
// twice.
TEST_F(AtomicFileTest, TwoWithEqualProcessIdsDoNotInterfere) {
  const fs::path path = directory / "x";
  StagedFile first(path);
  first.write(std::as_bytes(std::span(std::string_view("first"))), 0);
  StagedFile second(path);
  second.write(std::as_bytes(std::span(std::string_view("2nd"))), 0);
  first.commit();
  EXPECT_EQ(text_in(path), "first");
  second.commit();
  EXPECT_EQ(text_in(path), "2nd");
  EXPECT_EQ(entries_in(directory.path()), 1u);
}

TEST_F(AtomicFileTest, LeftoversAreFilesWithoutAWriter) {
  const fs::path path = directory / "x";
  fs::path temporary;
  {
    const StagedFile living(path);
    temporary = only_entry(directory.path());
    remove_leftovers(path);
    EXPECT_TRUE(fs::exists(temporary));
  }
  const auto leave = [&](const std::string& name) {
    std::ofstream(directory / name) << "left";
    return directory / name;
  };
  const std::string dead = temporary.filename().string();
  leave(dead);
  // The mark of another machine: the second of the three numbers is the machine's.
  std::string foreign = dead;
  char& digit = foreign.at(foreign.size() - 10);
  digit = digit == '0' ? '1' : '0';
  leave(foreign);
  const std::vector<std::string> others = {"x.tmp.2024", "x.tmp.notes.txt", "y" + dead.substr(1),
                                           dead + ".txt"};
  for (const std::string& name : others) leave(name);
  remove_leftovers(path);
  EXPECT_FALSE(fs::exists(temporary));
  EXPECT_TRUE(fs::exists(directory / foreign));
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(directory / name)) << name;
  fs::last_write_time(directory / foreign,
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  remove_leftovers(path);
  EXPECT_FALSE(fs::exists(directory / foreign));
}

TEST_F(AtomicFileTest, WriteAtReportsErrno) {
  write_file_atomically(directory / "x", "abc");
  const UniqueFd file = open_file(directory / "x", O_RDONLY);
  const std::string text = "z";
  EXPECT_EQ(write_at(file.get(), std::as_bytes(std::span(text)), 0), EBADF);
}

// ---- run lock -----------------------------------------------------------------------------------

struct RunLockTest : testing::Test {
  const TemporaryDirectory directory;
};

TEST_F(RunLockTest, HolderIsNamedAndItsLockTakenOverWhenItWasKilled) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunLock lock(directory.path());
    static_cast<void>(!::write(ready[1], "x", 1));
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  for (const std::string& on : {std::string(host), std::string("elsewhere")}) {
    if (on != host) std::ofstream(directory / ".lock") << child << "\n1\n" << on << '\n';
    expect_error(ErrorKind::Usage,
                 {directory.path().string(),
                  "is in use by process " + std::to_string(child) + " on " + on + "; wait"},
                 [&] { const RunLock lock(directory.path()); });
  }
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_NO_THROW(RunLock(directory.path()));
  ::close(ready[0]);
  ::close(ready[1]);
}

// The holder has ended, but its files are not closed yet.
TEST_F(RunLockTest, WaitsForAHolderThatIsEnding) {
  std::optional<RunLock> first(directory.path());
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  std::ofstream(directory / ".lock") << gone << '\n';
  std::jthread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    first.reset();
  });
  EXPECT_NO_THROW(RunLock(directory.path()));
}

// A restart may be quicker than the end of the process before it.
TEST_F(RunLockTest, WaitsForAHolderThatLeavesSoon) {
  std::optional<RunLock> first(directory.path());
  std::jthread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    first.reset();
  });
  EXPECT_NO_THROW(RunLock(directory.path()));
}

// As on another host, after a file server has given it the lock.
TEST_F(RunLockTest, WhoeverTookItOverIsNamed) {
  const RunLock lock(directory.path());
  const std::string text = lock_text(directory.path());
  EXPECT_TRUE(text.starts_with(std::to_string(::getpid()) + '\n'));
  EXPECT_NO_THROW(require_lock(directory.path(), text));
  std::ofstream(directory / ".lock") << "12\n1\nelsewhere\n";
  expect_error(ErrorKind::Io, {directory.path().string(), "process 12 on elsewhere has it now"},
               [&] { require_lock(directory.path(), text); });
  std::filesystem::remove(directory / ".lock");
  EXPECT_NO_THROW(require_lock(directory.path(), text));
}

TEST_F(RunLockTest, MissingDirectoryIsAnIoError) {
  expect_error(ErrorKind::Io, {"none/.lock", "No such file"},
               [&] { const RunLock lock(directory / "none"); });
}

}  // namespace
}  // namespace millrace::io
