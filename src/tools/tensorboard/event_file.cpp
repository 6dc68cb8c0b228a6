// SPDX-License-Identifier: Apache-2.0
#include "tools/tensorboard/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <system_error>

#include "core/text.hpp"
#include "io/data/record_frame.hpp"

namespace millrace::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Fields of tensorflow.Event, tensorflow.Summary and Summary.Value.
constexpr int kWallTime = 1;
constexpr int kStep = 2;
constexpr int kFileVersion = 3;
constexpr int kSummary = 5;
constexpr int kSessionLog = 7;
constexpr int kValue = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;

/// Seconds since 1970, which events carry as their wall time.
double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with(kPrefix) && entry.is_regular_file(error))
      files.push_back(entry.path());
  return files;
}

/// The time in the name of an event file.
std::int64_t time_in(const fs::path& file) {
  const std::string name = file.filename().string().substr(kPrefix.size());
  return parse_number<std::int64_t>(std::string_view(name).substr(0, name.find('.'))).value_or(0);
}

/// "events.out.tfevents.<seconds>.<machine>.<process>": later than all others in the folder,
/// because TensorBoard orders them by name.
fs::path next_name(const fs::path& folder) {
  auto seconds = static_cast<std::int64_t>(seconds_now());
  for (const fs::path& file : event_files(folder)) seconds = std::max(seconds, time_in(file) + 1);
  std::array<char, 65> machine{};
  if (::gethostname(machine.data(), machine.size() - 1) != 0) machine = {'h', 'o', 's', 't'};
  return folder / fmt::format("{}{:010}.{}.{}", kPrefix, seconds, machine.data(), ::getpid());
}

/// The step of an event: 0 if there is none, as for every integer in protobuf; nothing if the bytes
/// are no message.
std::optional<std::int64_t> step_of(std::span<const std::byte> payload) {
  ByteWindow bytes(payload, "event");
  WireReader event(bytes, 0, payload.size());
  for (WireField field; event.next(field);)
    if (field.is(kStep, WireType::Varint)) return static_cast<std::int64_t>(field.value);
  return event.ok() ? std::optional<std::int64_t>(0) : std::nullopt;
}

/// How much of an event file a run keeps.
std::uint64_t kept_bytes(const fs::path& path, std::int64_t last) {
  ByteWindow file(path);
  FrameWalk walk(file);
  std::uint64_t kept = 0;
  for (Frame frame = walk.next(); frame.kind == Frame::Kind::Record; frame = walk.next()) {
    const auto whole =
        file.at(frame.begin + kFrameHeadBytes,
                static_cast<std::size_t>(frame.payload_bytes() + sizeof(std::uint32_t)));
    if (!payload_is_whole(whole)) break;
    const auto payload = whole.first(static_cast<std::size_t>(frame.payload_bytes()));
    const std::optional<std::int64_t> step = step_of(payload);
    if (!step || *step > last) break;
    kept = frame.end;
  }
  return kept;
}

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

EventFile::EventFile(const fs::path& folder, std::optional<std::int64_t> restored) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_io("create", folder, error.value());
  path_ = next_name(folder);
  file_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  write(0, kFileVersion, "brain.Event:2");
  if (!restored) return;
  constexpr std::uint64_t kStart = 1;  // drops what is displayed from this step on
  write(*restored + 1, kSessionLog, WireMessage().integer(1, kStart).str());
}

void EventFile::write(std::int64_t step, int field, std::string_view content) {
  const WireMessage event = WireMessage()
                                .real(kWallTime, seconds_now())
                                .integer(kStep, static_cast<std::uint64_t>(step))
                                .bytes(field, content);
  std::vector<std::byte> record;
  append_frame(std::as_bytes(std::span(event.str())), record);
  if (const int error = write_at(file_.get(), record, written_); error != 0)
    fail_io("write", path_, error);
  written_ += record.size();
}

void EventFile::add(std::int64_t step, std::span<const Scalar> scalars) {
  WireMessage summary;
  for (const Scalar& scalar : scalars)
    summary.message(kValue, WireMessage()
                                .bytes(kTag, printable(scalar.tag))
                                .narrow(kSimpleValue, static_cast<float>(scalar.value)));
  add(step, summary);
}

void EventFile::add(std::int64_t step, const WireMessage& summary) {
  write(step, kSummary, summary.str());
}

void EventFile::sync() const {
  if (const int error = sync_descriptor(file_.get()); error != 0) fail_io("sync", path_, error);
}

void cut_event_files(const fs::path& folder, std::int64_t last) {
  for (const fs::path& file : event_files(folder)) {
    const std::uint64_t kept = kept_bytes(file, last);
    std::error_code error;
    if (fs::file_size(file, error) != kept && !error) fs::resize_file(file, kept, error);
    if (error) fail_io("cut", file, error.value());
  }
}

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
