// SPDX-License-Identifier: Apache-2.0
#include "device/environment.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif
#ifdef MILLRACE_ONEDNN
#include <link.h>
#include <sys/mman.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/counted.hpp"
#include "core/error.hpp"
#include "core/instruction_level.hpp"
#include "core/text.hpp"
#include "device/compat.hpp"
#include "device/fake_device.hpp"

namespace millrace::device {
namespace {

#if defined(__x86_64__)
constexpr std::uint64_t kAsZero = 0x8040;  // flush results to zero, take arguments as zero
std::uint64_t control() { return _mm_getcsr(); }
void set_control(std::uint64_t bits) { _mm_setcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kAsZero = 1 << 24;  // FZ: both
std::uint64_t control() {
  std::uint64_t bits = 0;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_control(std::uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#else
constexpr std::uint64_t kAsZero = 0;
std::uint64_t control() { return 0; }
void set_control(std::uint64_t) {}
#endif

#ifdef MILLRACE_ONEDNN
/// Takes the vendor's code out of resident memory: what is called again is read again.
int release_code(dl_phdr_info* library, std::size_t, void*) {
  if (std::string_view(library->dlpi_name).find("libdnnl") == std::string_view::npos) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = library->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & (PF_X | PF_W)) != PF_X) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): that is how the loader says where things lie
    (void)madvise(reinterpret_cast<void*>(library->dlpi_addr + part.p_vaddr), part.p_memsz,
                  MADV_DONTNEED);
  }
  return 0;
}
#endif

/// Without this check OpenMP would start fewer threads than requested, and Kokkos would end the
/// process. Errors: Config.
void require_thread_limit(int threads) {
  const char* const text = std::getenv("OMP_THREAD_LIMIT");
  const std::optional<int> limit =
      text == nullptr ? std::nullopt : parse_number<int>(std::string_view(text));
  if (limit && *limit >= 1 && *limit < threads)
    fail(ErrorKind::Config,
         "OMP_THREAD_LIMIT={} allows fewer threads than the {} that this process needs: unset it, "
         "or set `threads-per-device` {}",
         *limit, threads, *limit);
}

/// Kokkos would end the process if its variables contradict what it is told. Errors: Config.
void require_no_kokkos_settings() {
  for (const char* const name :
       {"KOKKOS_NUM_THREADS", "KOKKOS_NUMA", "KOKKOS_DEVICE_ID", "KOKKOS_NUM_DEVICES",
        "KOKKOS_RAND_DEVICES", "KOKKOS_RAND_DEVICES_N", "KOKKOS_SKIP_DEVICE"})
    if (const char* const value = std::getenv(name); value != nullptr)
      fail(ErrorKind::Config,
           "{}={}: millrace gives Kokkos its threads and devices: unset it, and use "
           "`threads-per-device` or `select-ipus`",
           name, value);
}

/// Runs `body` in each OpenMP thread of this host thread.
template <class Body>
void in_each_thread([[maybe_unused]] const Body& body) {
#if defined(_OPENMP) && MILLRACE_ON_HOST
#pragma omp parallel num_threads(kernel_threads())
  body();
#endif
}

/// Threads that are there already inherit nothing.
void prepare_thread() {
  SubnormalsAsZero::from_now_on();
#ifdef _OPENMP
  if constexpr (kFakeDevice)
    if (omp_get_thread_num() > 0) fake::belong_to_device();
#endif
}

void initialise_kokkos(int threads, int gpu) {
  const bool chosen = gpu >= 0 && !computes_on_cores();
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
/// Name of the environment variable that caps oneDNN, or "". A variable with an empty value is
/// ignored. Errors: Usage, for values that oneDNN does not know.
std::string_view library_variable() {
  constexpr auto kSets = std::to_array<std::string_view>(
      {"ALL", "DEFAULT", "SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_MIC",
       "AVX512_MIC_4OPS", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16",
       "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16", "AVX10_1_512", "AVX10_1_512_AMX",
       "AVX10_1_512_AMX_FP16"});
  for (const char* const name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    if (std::find(kSets.begin(), kSets.end(), std::string_view(value)) == kSets.end())
      fail(ErrorKind::Usage, "{}={}: not an instruction set of oneDNN; use one of {}", name, value,
           join(std::span<const std::string_view>(kSets), ", "));
    return name;
  }
  return "";
}

dnnl::cpu_isa library_set(InstructionLevel level) {
  if (level == InstructionLevel::Sse42) return dnnl::cpu_isa::sse41;
  return level == InstructionLevel::Avx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::avx512_core;
}

std::string instruction_set() {
  using enum dnnl::cpu_isa;
  constexpr auto kNames =
      std::to_array<std::pair<dnnl::cpu_isa, const char*>>({{sse41, "sse41"},
                                                            {avx, "avx"},
                                                            {avx2, "avx2"},
                                                            {avx512_core, "avx512_core"},
                                                            {avx512_core_vnni, "avx512_core_vnni"},
                                                            {avx512_core_bf16, "avx512_core_bf16"},
                                                            {avx512_core_amx, "avx512_core_amx"}});
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  for (const auto& [set, name] : kNames)
    if (set == isa) return name;
  return fmt::format("isa {:#x}", static_cast<unsigned>(isa));  // newer than 2.6
}

std::string library_name() {
  const dnnl_version_t& version = *dnnl::version();
  return fmt::format("oneDNN {}.{}.{}", version.major, version.minor, version.patch);
}

std::string vendor_library() { return fmt::format("{}; {}", instruction_set(), library_name()); }
#elif defined(MILLRACE_CUDNN)
std::string library_name() { return "cuDNN " MILLRACE_CUDNN; }
std::string vendor_library() { return library_name(); }
#else
#if MILLRACE_ON_HOST
constexpr std::string_view kWithoutLibrary = "built without oneDNN";
#elif defined(KOKKOS_ENABLE_CUDA)
constexpr std::string_view kWithoutLibrary = "built without cuDNN";
#else
constexpr std::string_view kWithoutLibrary = "no library is used on this kind of GPU";
#endif
std::string vendor_library() { return "own kernels only"; }
#endif

}  // namespace

SubnormalsAsZero::SubnormalsAsZero() : before_(control()) { from_now_on(); }
SubnormalsAsZero::~SubnormalsAsZero() { end_here(); }
void SubnormalsAsZero::end_here() const { set_control(before_); }
void SubnormalsAsZero::from_now_on() { set_control(control() | kAsZero); }

void require_threads(int threads) {
  require_no_kokkos_settings();
  require_thread_limit(threads);
}

Environment::Environment(int threads, int gpu) {
  require_threads(threads);
  cap_vendor_library();
  initialise_kokkos(threads, gpu);
  in_each_thread(prepare_thread);
}

Environment::~Environment() { Kokkos::finalize(); }

namespace {

#if defined(_OPENMP) && MILLRACE_ON_HOST
int own_threads() { return omp_get_max_threads(); }
void set_own_threads(int threads) { omp_set_num_threads(threads); }
#else
int own_threads() { return 1; }
void set_own_threads(int) {}
#endif

/// Errors: Config if this process cannot use that GPU.
void require_gpu(int gpu) {
  if (gpu < 0) return;
  if (computes_on_cores())
    fail(ErrorKind::Config, "GPU {} is asked for, but this build computes on CPU cores", gpu);
#if KOKKOS_VERSION >= 40300  // as builds for GPUs of NVIDIA have
  const int used = Kokkos::is_initialized() ? Kokkos::device_id() : gpu;
  if (gpu >= Kokkos::num_devices() || gpu != used)
    fail(ErrorKind::Config, "GPU {} is asked for, but this process uses number {} of {}", gpu, used,
         Kokkos::num_devices());
#endif
}

}  // namespace

void join_environment(int threads, int gpu) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  require_gpu(gpu);
  cap_vendor_library();
  if (!Kokkos::is_initialized()) {
    require_threads(threads);
    const int before = own_threads();
    initialise_kokkos(threads, gpu);  // sets those of this thread, too
    set_own_threads(before);
    // Cores need nothing back, objects may live until the process ends, and a fork may end first.
    if (!computes_on_cores())
      (void)std::atexit([] {
        if (Kokkos::is_initialized()) Kokkos::finalize();
      });
  }
  if (computes_on_cores() && threads != kernel_threads())
    fail(ErrorKind::Config, "{} asked for, but Kokkos has {} in this process: ask for as many",
         counted(threads, "thread"), kernel_threads());
}

Turn::Turn() : threads_before_(own_threads()) {
  static std::recursive_mutex mutex;
#ifdef _OPENMP
  if (omp_in_parallel() != 0)
    fail(ErrorKind::Config, "called in a parallel region of OpenMP: call it outside");
#endif
  if constexpr (!kOnCores) lock_ = std::unique_lock(mutex);
  set_own_threads(kernel_threads());
  in_each_thread(prepare_thread);
}

Turn::~Turn() {
  in_each_thread([&] { subnormals_.end_here(); });
  set_own_threads(threads_before_);
}

#if defined(__x86_64__) && MILLRACE_ON_HOST
bool has_tiles() noexcept {
  constexpr unsigned kTiles = (1U << 22U) | (1U << 24U);  // AMX, for which clang 14 has no words
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTiles) == kTiles;
}
bool has_slow_bfloat16() noexcept {
  return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512bf16") && !has_tiles();
}
#else
bool has_tiles() noexcept { return false; }
bool has_slow_bfloat16() noexcept { return false; }
#endif

void cap_vendor_library() {
  [[maybe_unused]] std::optional<InstructionLevel> cap = level_cap();
#ifdef MILLRACE_ONEDNN
  if (!cap && has_slow_bfloat16()) cap = InstructionLevel::Avx512;  // without 16-bit products
  if (library_variable().empty() && cap)
    (void)dnnl::set_max_cpu_isa(library_set(*cap));  // fails if the library is already in use
#endif
}

namespace {
/// The threads of kernels before there is an Environment.
int& expected_threads() {
  static int threads = 1;
  return threads;
}
}  // namespace

void expect_threads(int threads) {
  cap_vendor_library();
  if (Kokkos::is_initialized()) return;
  expected_threads() = threads;
  set_own_threads(threads);
}

int kernel_threads() {
  return Kokkos::is_initialized() ? ExecutionSpace().concurrency() : expected_threads();
}

void release_unused() {
#ifdef MILLRACE_ONEDNN
  const int capacity = dnnl::get_primitive_cache_capacity();
  dnnl::set_primitive_cache_capacity(0);
  dnnl::set_primitive_cache_capacity(capacity);
  (void)dl_iterate_phdr(release_code, nullptr);
#endif
#ifdef __GLIBC__
  (void)malloc_trim(0);
#endif
}

std::string_view vendor_cap() {
#ifdef MILLRACE_ONEDNN
  if (!library_variable().empty()) return library_variable();
#endif
  return level_cap() ? "MILLRACE_MAX_ISA" : "";
}

bool computes_on_cores() { return MILLRACE_ON_HOST == 1; }
bool has_own_memory() { return !kHostReadable; }

std::vector<int> core_numbers() {
  std::vector<int> numbers;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return numbers;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) numbers.push_back(cpu);
  return numbers;
}

std::string describe_arithmetic() {
  cap_vendor_library();
  const std::string own = computes_on_cores()
                              ? fmt::format("own loops {}", describe_instruction_level())
                              : "own kernels";
#if defined(MILLRACE_ONEDNN)
  return fmt::format("{}; {} up to {}", own, library_name(), instruction_set());
#elif defined(MILLRACE_CUDNN)
  return fmt::format("{}; {}", own, library_name());
#else
  return own;
#endif
}

std::string describe_kernels() {
  std::string text = describe_arithmetic();
  if (!vendor_cap().empty()) text += fmt::format("; capped by {}", vendor_cap());
  if (kFakeDevice) text += "; on the fake device, which is for tests and slow";
#if !defined(MILLRACE_ONEDNN) && !defined(MILLRACE_CUDNN)
  text += fmt::format("; {}: convolutions run on our own kernels and are several times slower",
                      kWithoutLibrary);
#endif
#if defined(KOKKOS_ENABLE_CUDA) && !defined(MILLRACE_NCCL)
  text += "; built without NCCL: messages between GPUs go through MPI";
#endif
  return text;
}

std::string describe_environment() {
  cap_vendor_library();
  return fmt::format("{}{}, {}; {}; Kokkos {}.{}.{}{}", kFakeDevice ? "fake device of " : "",
                     ExecutionSpace::name(), counted(kernel_threads(), "thread"), vendor_library(),
                     KOKKOS_VERSION / 10000, KOKKOS_VERSION / 100 % 100, KOKKOS_VERSION % 100,
                     kHasFloat64 ? "" : "; sums in pairs of floats");
}

}  // namespace millrace::device
