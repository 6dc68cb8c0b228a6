// SPDX-License-Identifier: Apache-2.0
//
// Writing uses our own file driver. HDF5's drivers fail on a full disk: if the final flush fails,
// H5Fclose leaves the file open, and the library crashes when it closes it again at process exit
// (1.10.8). Our driver records the first failure and then reports success, so HDF5 always closes
// cleanly; Hdf5Writer then throws the recorded error.
#pragma once

#include <hdf5.h>

#include "io/atomic_file.hpp"

namespace millrace::io {

/// The file that is written, and the first error.
struct Hdf5Output {
  UniqueFd fd;
  int first_error = 0;
  void note(int error) noexcept {
    if (first_error == 0) first_error = error;
  }
};

/// The driver's id. Its information is a pointer to the output.
[[nodiscard]] hid_t hdf5_driver();

}  // namespace millrace::io
