// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // of OpenSSL

namespace millrace {

/// Incremental SHA-256 (FIPS 180-4).
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  /// Digest of all bytes so far as 64 lower-case hexadecimal digits. The object must not be used
  /// afterwards.
  [[nodiscard]] std::string hex_digest();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

/// The digest of a text.
[[nodiscard]] std::string sha256_of(std::string_view text);

}  // namespace millrace
