// SPDX-License-Identifier: Apache-2.0
#include "io/events/hparams.hpp"

#include <chrono>

#include "core/text.hpp"

namespace millrace::io {
namespace {

// Fields of HParamsPluginData, SessionStartInfo, SessionEndInfo and google.protobuf.Value.
constexpr int kSessionStart = 3;
constexpr int kSessionEnd = 4;
constexpr int kStartValues = 1;
constexpr int kStartTime = 5;
constexpr int kEndStatus = 1;
constexpr int kEndTime = 2;
constexpr int kNumber = 2;
constexpr int kText = 3;
constexpr int kFlag = 4;

WireMessage value_of(const HParam& value) {
  if (const auto* const number = std::get_if<double>(&value))
    return WireMessage().real(kNumber, *number);
  if (const auto* const flag = std::get_if<bool>(&value))
    return WireMessage().integer(kFlag, *flag ? 1 : 0);
  return WireMessage().bytes(kText, printable(std::get<std::string>(value)));
}

/// A summary whose content is only in its metadata, with an empty tensor of floats as its value.
WireMessage summary_of(std::string_view tag, int field, const WireMessage& content) {
  constexpr std::uint64_t kFloat = 1;
  const WireMessage dimension = WireMessage().integer(1, 0);
  const WireMessage tensor =
      WireMessage().integer(1, kFloat).message(2, WireMessage().message(2, dimension));
  const WireMessage data = WireMessage().integer(1, 0).message(field, content);
  const WireMessage plugin = WireMessage().bytes(1, "hparams").bytes(2, data.str());
  const WireMessage metadata = WireMessage().message(1, plugin);
  return WireMessage().message(1,
                               WireMessage().bytes(1, tag).message(8, tensor).message(9, metadata));
}

}  // namespace

void begin_session(EventFile& file, const HParams& hparams) {
  WireMessage session;
  for (const auto& [name, value] : hparams)
    session.message(kStartValues,
                    WireMessage().bytes(1, printable(name)).message(2, value_of(value)));
  session.real(kStartTime, seconds_now());
  file.add(0, summary_of("_hparams_/session_start_info", kSessionStart, session));
}

void end_session(EventFile& file, std::int64_t step) {
  constexpr std::uint64_t kSuccess = 1;
  const WireMessage session =
      WireMessage().integer(kEndStatus, kSuccess).real(kEndTime, seconds_now());
  file.add(step, summary_of("_hparams_/session_end_info", kSessionEnd, session));
}

}  // namespace millrace::io
