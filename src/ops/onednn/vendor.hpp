// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ops/vendor.hpp"

namespace millrace::ops {

/// Only in builds with oneDNN (MILLRACE_ONEDNN), which are CPU builds.
[[nodiscard]] std::unique_ptr<Vendor> make_onednn_vendor();

}  // namespace millrace::ops
