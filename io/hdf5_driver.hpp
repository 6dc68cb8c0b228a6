// SPDX-License-Identifier: Apache-2.0
//
// Our files are written and read with our own file driver. HDF5's drivers fail on a full disk: if
// the final flush fails, H5Fclose leaves the file open, and the library crashes when it closes it
// again at process exit (1.10.8). Our driver records the first failure of writing and then reports
// success, so HDF5 always closes cleanly; Hdf5Writer then throws the recorded error. The driver
// takes no locks, which some network file systems refuse.
#pragma once

#include <hdf5.h>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// An open file, and the first error of writing.
struct Hdf5Stream {
  UniqueFd fd;
  int first_error = 0;
  void note(int error) noexcept {
    if (first_error == 0) first_error = error;
  }
};

/// The driver's id. Its information is a pointer to the Hdf5Stream.
[[nodiscard]] hid_t hdf5_driver();

}  // namespace millrace::io
