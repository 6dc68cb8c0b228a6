// SPDX-License-Identifier: Apache-2.0
//
// Where the library runs: in threads of a program, with its Kokkos and on its communicators. Each
// test has a process of its own, because Kokkos and MPI start once.
#include "train/runtime.hpp"

#include <mpi.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <csignal>
#include <thread>

#include "core/random.hpp"
#include "device/compat.hpp"
#include "device/environment.hpp"
#include "io/data/dataset.hpp"
#include "tests/support/expect_error.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/variable.hpp"
#include "train/training.hpp"

namespace millrace::training {
namespace {

constexpr Shape kImage = {.h = 8, .w = 8, .c = 3};

/// Noise, brighter for one of two classes. `bad` is the image that cannot be read.
class Noise final : public io::Dataset {
 public:
  explicit Noise(std::int64_t bad = -1) : bad_(bad) {}
  [[nodiscard]] std::string name() const override { return "noise"; }
  [[nodiscard]] std::int64_t size() const override { return 128; }
  [[nodiscard]] Shape image_shape() const override { return kImage; }
  [[nodiscard]] std::int64_t classes() const override { return 2; }
  [[nodiscard]] std::int32_t label(std::int64_t index) const override {
    return index % 2 == 0 ? 0 : 1;
  }
  io::Sample read(std::int64_t index, const io::ReadKey&, std::span<std::uint8_t> image,
                  PixelScaling&) const override {
    if (index == bad_) fail(ErrorKind::Data, "noise: image {} is bad", index);
    const RandomStream stream(1, RandomPurpose::SyntheticData, static_cast<std::uint64_t>(index));
    for (std::size_t p = 0; p < image.size(); ++p)
      image[p] = static_cast<std::uint8_t>(stream.block(0, p)[0] % 150 + (index % 2 == 0 ? 0 : 90));
    return io::Sample::Own;
  }

 private:
  std::int64_t bad_;
};

models::Graph network() {
  models::GraphBuilder b("three-layers", kImage, 2);
  b.begin_layer("first");
  models::ValueId x =
      b.conv("conv", b.input(), {.out_channels = 16, .kernel = {3, 3}, .pad = models::same(1)});
  x = b.activation("relu", b.batch_norm("norm", x, {}), {Activation::Relu});
  b.begin_layer("second");
  x = b.conv("conv", x, {.out_channels = 16, .kernel = {3, 3}, .pad = models::same(1)});
  x = b.activation("relu", b.batch_norm("norm", x, {}), {Activation::Relu});
  b.begin_layer("classes");
  x = b.dense("dense", b.global_average_pool("mean", x), {.units = 2});
  b.softmax_loss("loss", x);
  return std::move(b).build();
}

run::Run run_with(std::uint64_t seed) {
  run::Run run;  // in 16 bits
  run.seed = seed;
  run.batch_size = 8;
  run.micro_batches = 2;
  run.optimiser = run::usual_optimiser(UpdateRule::Momentum);
  return run;
}

struct End {
  std::vector<double> losses;
  std::string digest;
  friend bool operator==(const End&, const End&) = default;
};

End train(const Runtime& runtime, std::uint64_t seed, int steps = 8) {
  Training training(runtime, network(), std::make_shared<Noise>(), run_with(seed),
                    std::make_shared<Noise>());
  End end;
  for (int i = 0; i < steps; ++i) end.losses.push_back(training.step(0.05).loss);
  end.losses.push_back(training.evaluate().loss);
  end.digest = training.digest();
  return end;
}

/// The number of OpenMP threads that the program has for itself in this thread.
void set_own_threads([[maybe_unused]] int threads) {
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
}

/// Trains with both seeds at once, each in a thread and with what `runtime_of` returns.
template <class RuntimeOf>
std::pair<End, End> at_once(const RuntimeOf& runtime_of) {
  std::pair<End, End> ends;
  const auto begin = [&](End& end, std::uint64_t seed) {
    return std::thread([&, seed] {
      set_own_threads(1);
      end = train(runtime_of(), seed, 40);
    });
  };
  std::thread one = begin(ends.first, 1);
  std::thread two = begin(ends.second, 2);
  one.join();
  two.join();
  return ends;
}

int test_threads() {
#if defined(KOKKOS_ENABLE_OPENMP)
  return 2;
#else
  return 1;
#endif
}

TEST(RuntimeTest, TwoTrainingsInTwoThreadsEndLikeOneAfterTheOther) {
  const Runtime runtime(test_threads());
  const std::pair<End, End> expected = {train(runtime, 1, 40), train(runtime, 2, 40)};
  EXPECT_NE(expected.first.digest, expected.second.digest);
  for (int round = 0; round < 3; ++round)
    EXPECT_EQ(at_once([&]() -> const Runtime& { return runtime; }), expected);
  EXPECT_EQ(at_once([] { return Runtime(test_threads()); }), expected);
}

/// The threads of the first one are there no more.
TEST(RuntimeTest, TheFirstMayBeginAndEndInAThreadOfItsOwn) {
  End first;
  std::thread([&] { first = train(Runtime(test_threads()), 1); }).join();
  EXPECT_TRUE(Kokkos::is_initialized());
  EXPECT_EQ(train(Runtime(test_threads()), 1), first);
  expect_error(ErrorKind::Config, {"3 threads asked for, but Kokkos has "},
               [] { Runtime other(3); });
  expect_error(ErrorKind::Config, "a Runtime of 0 threads: give at least 1",
               [] { Runtime none(0); });
}

TEST(RuntimeTest, UsesTheKokkosOfTheProgram) {
  set_own_threads(test_threads());
  Kokkos::initialize();
  {
    EXPECT_EQ(Runtime(test_threads()).threads(), test_threads());
    expect_error(ErrorKind::Config, {"asked for, but Kokkos has "},
                 [] { Runtime other(test_threads() + 1); });
    End elsewhere;
    std::thread([&] { elsewhere = train(Runtime(test_threads()), 1); }).join();
    EXPECT_EQ(train(Runtime(test_threads()), 1), elsewhere);
  }
  EXPECT_TRUE(Kokkos::is_initialized());
  Kokkos::finalize();
}

TEST(RuntimeTest, LeavesTheProgramAsItWas) {
  const auto subnormals = [] {
    volatile float least = std::numeric_limits<float>::min();
    std::atomic<int> count = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(2)
#endif
    if (const float half = least * 0.5F; half != 0.0F) ++count;
    return count.load();
  };
  const auto handler = [](int signal) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler;
  };
  const std::vector<int> cores = device::core_numbers();
  const int before = subnormals();
  set_own_threads(5);
  const Runtime runtime(test_threads());
  Training training(runtime, network(), std::make_shared<Noise>());
  (void)training.step(0.1);
  EXPECT_EQ(subnormals(), before);
  EXPECT_EQ(device::core_numbers(), cores);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE})
    EXPECT_EQ(handler(signal), SIG_DFL) << signal;
#ifdef _OPENMP
  {
    const device::Turn turn;
    EXPECT_EQ(omp_get_max_threads(), test_threads());
  }
  EXPECT_EQ(omp_get_max_threads(), 5);
  std::string refusal;
#pragma omp parallel num_threads(2)
#pragma omp single
  refusal = message_of(ErrorKind::Config, [&] { (void)training.step(0.1); });
  EXPECT_EQ(refusal, "called in a parallel region of OpenMP: call it outside");
#endif
}

TEST(RuntimeTest, IsAloneUnlessAskedAndHasTheGpuThatItIsAskedFor) {
  const test::Variable launched("PMI_SIZE", "2");  // MPI would fail to start
  const Runtime runtime;
  EXPECT_EQ(runtime.ranks(), 1);
  int has_begun = 0;
  MPI_Initialized(&has_begun);
  EXPECT_EQ(has_begun, 0);
  const MPI_Comm world = MPI_COMM_WORLD;
  expect_error(ErrorKind::Config, "a communicator was given, but MPI does not run",
               [&] { Runtime none({.communicator = &world}); });
  if (device::computes_on_cores())
    expect_error(ErrorKind::Config, "GPU 0 is asked for, but this build computes on CPU cores",
                 [] { Runtime none({.gpu = 0}); });
}

/// A program that initialises MPI itself, on three ranks, and gives a communicator of two of them:
/// its rank 2 is the library's rank 0.
class HostProgram : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_split(MPI_COMM_WORLD, rank_ == 1 ? MPI_UNDEFINED : 0, -rank_, &some_);
  }
  static void TearDownTestSuite() {
    int has_ended = 0;
    MPI_Finalized(&has_ended);
    ASSERT_EQ(has_ended, 0);
    MPI_Finalize();
  }
  void TearDown() override { MPI_Barrier(MPI_COMM_WORLD); }  // not one of them has ended

  static inline int rank_ = 0;
  static inline MPI_Comm some_ = MPI_COMM_NULL;
};

run::Run in_two_stages() {
  run::Run run = run_with(1);
  run.layout.splits = {"second"};
  return run;
}

TEST_F(HostProgram, SomeOfItsRanksTrainLikeOneProcess) {
  if (rank_ == 1) {
    expect_error(ErrorKind::Config,
                 "the communicator is MPI_COMM_NULL: this process has no part in it",
                 [] { Runtime none({.communicator = &some_}); });
    return;
  }
  const End alone = train(Runtime(), 1);
  // The program's own messages pass by.
  int own = rank_, other = -1;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&other, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, some_, &request);
  const Runtime runtime({.communicator = &some_});
  ASSERT_EQ(runtime.ranks(), 2);
  EXPECT_EQ(runtime.rank(), rank_ == 2 ? 0 : 1);
  Training training(runtime, network(), std::make_shared<Noise>(), in_two_stages(),
                    std::make_shared<Noise>());
  std::vector<double> losses;
  for (int i = 0; i < 8; ++i) losses.push_back(training.step(0.05).loss);
  losses.push_back(training.evaluate().loss);
  EXPECT_EQ(losses, alone.losses);
  const test::TemporaryDirectory directory;
  std::array<char, 256> place{};
  std::snprintf(place.data(), place.size(), "%s", directory.path().c_str());
  MPI_Bcast(place.data(), place.size(), MPI_CHAR, 0, some_);
  const fs::path saved = training.save(place.data());
  const Runtime one;
  Training loaded(one, network(), std::make_shared<Noise>(), run_with(1));
  loaded.load(saved);
  EXPECT_EQ(loaded.digest(), alone.digest);
  MPI_Send(&own, 1, MPI_INT, 1 - runtime.rank(), 7, some_);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT_EQ(other, 2 - rank_);
}

TEST_F(HostProgram, ARankThatFailsEndsTheWaitOfTheOthers) {
  if (rank_ == 1) return;
  {
    const Runtime runtime({.communicator = &some_});
    const bool fails = runtime.rank() == 0;
    run::Run run = in_two_stages();
    run.batch_size = 32;  // messages that MPI does not buffer are on their way when it fails
    run.micro_batches = 4;
    Training training(runtime, network(), std::make_shared<Noise>(fails ? 40 : -1), run);
    const auto steps = [&] {
      for (int i = 0; i < 8; ++i) (void)training.step(0.05);
    };
    expect_error(fails ? ErrorKind::Data : ErrorKind::Peer,
                 {fails ? "image 40 is bad" : "rank 0 has failed: its own error says why"}, steps);
    expect_error(ErrorKind::Peer, {"rank 0 of this Runtime has failed"}, steps);
  }
  const Runtime again({.communicator = &some_});
  Training training(again, network(), std::make_shared<Noise>(), in_two_stages());
  EXPECT_GT(training.step(0.05).loss, 0.0);
  // What concerns all is thrown in all, and they go on.
  expect_error(ErrorKind::Checkpoint, {"no-such"}, [&] { training.load("no-such"); });
  EXPECT_GT(training.step(0.05).loss, 0.0);
  expect_error(ErrorKind::Config, {"evaluate() needs"}, [&] { (void)training.evaluate(); });
  EXPECT_EQ(training.steps(), 2);
  std::thread([&] {
    expect_error(ErrorKind::Config, {"MPI_THREAD_FUNNELED", "and this is another one"},
                 [&] { (void)training.step(0.05); });
  }).join();
}

TEST_F(HostProgram, LaunchedRanksShareItsMpi) {
  const Runtime all({.processes = Processes::Launched});
  EXPECT_EQ(all.ranks(), 3);
  EXPECT_EQ(all.rank(), rank_);
  // One rank cannot have what it asks for, and all learn it.
  expect_error(ErrorKind::Config, {"a Runtime of 0 threads"}, [] {
    Runtime none({.threads = rank_ == 1 ? 0 : 1, .processes = Processes::Launched});
  });
}

TEST(SingleThreaded, MpiForOneThreadIsRefused) {
  MPI_Init(nullptr, nullptr);
  const MPI_Comm world = MPI_COMM_WORLD;
  expect_error(ErrorKind::Config,
               {"MPI was initialised for one thread (MPI_THREAD_SINGLE)",
                "MPI_Init_thread for MPI_THREAD_FUNNELED or more"},
               [&] { Runtime none({.communicator = &world}); });
  MPI_Finalize();
}

/// With a Training whose stages exchange messages.
TEST(EndedMpi, LeavesARuntimeThatCanOnlyBeDestroyed) {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm two = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 2 ? MPI_UNDEFINED : 0, rank, &two);
  if (rank == 2) {
    MPI_Finalize();
    return;
  }
  const Runtime runtime({.communicator = &two});
  Training training(runtime, network(), std::make_shared<Noise>(), in_two_stages());
  EXPECT_GT(training.step(0.05).loss, 0.0);
  MPI_Finalize();
  expect_error(ErrorKind::Config, "a communicator was given, but MPI does not run",
               [&] { Runtime late({.communicator = &two}); });
}

}  // namespace
}  // namespace millrace::training
