// SPDX-License-Identifier: Apache-2.0
#include "device/environment.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <cstdlib>

#ifdef MILLRACE_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

#include "core/instruction_level.hpp"
#include "device/compat.hpp"

namespace millrace::device {
namespace {

void initialise_kokkos(int threads, int gpu) {
  const bool chosen = gpu >= 0 && !kHostAccessible;
#if KOKKOS_VERSION >= 30700
  Kokkos::InitializationSettings settings;
  settings.set_num_threads(threads).set_disable_warnings(true);
  if (chosen) settings.set_device_id(gpu);
  Kokkos::initialize(settings);
#else
  Kokkos::InitArguments arguments;
  arguments.num_threads = threads;
  arguments.disable_warnings = true;
  if (chosen) arguments.device_id = gpu;
  Kokkos::initialize(arguments);
#endif
}

#ifdef MILLRACE_ONEDNN
bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

dnnl::cpu_isa library_set(InstructionLevel level) {
  switch (level) {
    case InstructionLevel::Sse42:
      return dnnl::cpu_isa::sse41;
    case InstructionLevel::Avx2:
      return dnnl::cpu_isa::avx2;
    case InstructionLevel::Avx512:
      break;
  }
  return dnnl::cpu_isa::avx512_core;
}

std::string instruction_set() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:
      return fmt::format("isa {:#x}", static_cast<unsigned>(isa));  // newer than 2.6
  }
}

std::string library_name() {
  const dnnl_version_t& version = *dnnl::version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}

std::string vendor_library() { return fmt::format("{}; {}", instruction_set(), library_name()); }
#else
std::string vendor_library() { return "own kernels only"; }
#endif

}  // namespace

Environment::Environment(int threads, int gpu) {
  cap_vendor_library();
  initialise_kokkos(threads, gpu);
}

Environment::~Environment() { Kokkos::finalize(); }

void cap_vendor_library() {
  [[maybe_unused]] const std::optional<InstructionLevel> cap = level_cap();
#ifdef MILLRACE_ONEDNN
  if (cap && !is_set("ONEDNN_MAX_CPU_ISA") && !is_set("DNNL_MAX_CPU_ISA"))
    (void)dnnl::set_max_cpu_isa(library_set(*cap));  // refused once the library is in use
#endif
}

bool computes_on_cores() { return kHostAccessible; }

int available_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
  return CPU_COUNT(&mask);
}

std::vector<int> core_numbers() {
  std::vector<int> numbers;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return numbers;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) numbers.push_back(cpu);
  return numbers;
}

std::string describe_kernels() {
  cap_vendor_library();
  const std::string own = fmt::format("own loops {}", describe_instruction_level());
#ifdef MILLRACE_ONEDNN
  return fmt::format("{}; {} up to {}", own, library_name(), instruction_set());
#else
  return kHostAccessible ? own + "; no oneDNN: convolutions are plain loops, some 70 times slower"
                         : own;
#endif
}

std::string describe_environment() {
  cap_vendor_library();
  return fmt::format("{}, {} threads; {}; Kokkos {}.{}.{}", ExecutionSpace::name(),
                     ExecutionSpace().concurrency(), vendor_library(), KOKKOS_VERSION / 10000,
                     KOKKOS_VERSION / 100 % 100, KOKKOS_VERSION % 100);
}

}  // namespace millrace::device
