// SPDX-License-Identifier: Apache-2.0
#include "cli/launcher_place.hpp"

#include "support.hpp"

namespace millrace::cli {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of these tests

TEST(LauncherPlaceTest, AFolderGoesWithItsObject) {
  const TemporaryDirectory base;
  fs::path path;
  {
    const HeldFolder folder(base.path());
    path = folder.path();
    EXPECT_TRUE(fs::is_empty(path));
    std::ofstream(path / "segment") << "shared";
  }
  EXPECT_TRUE(fs::is_empty(base.path()));
}

TEST(LauncherPlaceTest, OnlyWhatNobodyHoldsIsAbandoned) {
  const TemporaryDirectory base;
  const HeldFolder held(base.path());
  for (const char* const name : {"millrace-mpi-killed", "millrace-mpi-new", "other"}) {
    fs::create_directory(base / name);
    std::ofstream(base / name / "segment") << "shared";
  }
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const fs::path& path : {held.path(), base / "millrace-mpi-killed", base / "other"})
    fs::last_write_time(path, long_ago);
  HeldFolder::remove_abandoned(base.path());
  EXPECT_FALSE(fs::exists(base / "millrace-mpi-killed"));
  EXPECT_TRUE(fs::exists(base / "millrace-mpi-new")) << "it may be about to be held";
  EXPECT_TRUE(fs::exists(base / "other"));
  EXPECT_TRUE(fs::exists(held.path()));
}

TEST(LauncherPlaceTest, APlaceWithoutRoomIsNamed) {
  const TemporaryDirectory base;
  expect_refused(ErrorKind::Io, {"none: cannot write MPI's temporary files", "TMPDIR"},
                 [&] { const HeldFolder folder(base / "none"); });
}

}  // namespace
}  // namespace millrace::cli
