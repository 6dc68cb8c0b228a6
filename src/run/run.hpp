// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/label_smoothing.hpp"
#include "core/update_rule.hpp"
#include "models/model_options.hpp"
#include "pipeline/layout.hpp"
#include "run/image_options.hpp"

namespace millrace::run {

using OptimiserKind = UpdateRule;
/// What weight decay adds to the loss. Its gradient is added to that of the data.
enum class DecayForm {
  HalfSquare,  ///< decay / 2 x |w|^2, or decay x w added to the gradient, which is the same
  Square       ///< decay x |w|^2, Keras' regulariser: twice the gradient
};
/// Curve of the learning rate, in the order of the choices of `lr-schedule`.
enum class LearningRateKind {
  Stepped,
  Cosine,
  Exponential,
  Polynomial,
  Piecewise,
  GradualWarmup,
  LarsPolynomial
};
/// Whether the curve begins with a warm-up of its own.
[[nodiscard]] constexpr bool warms_up_itself(LearningRateKind kind) {
  return kind == LearningRateKind::GradualWarmup || kind == LearningRateKind::LarsPolynomial;
}
/// Scaled: the schedule's own value x iteration / W. Linear: base_rate x iteration / W; after the
/// warm-up the rate jumps to the schedule's value.
enum class WarmupForm { Scaled, Linear };
using millrace::SmoothingForm;
/// Static: constant. Dynamic: halved after a non-finite gradient, doubled after
/// `LossScaling::growth_interval` updates in a row (as TensorFlow's automatic mixed precision).
enum class ScalingKind { Static, Dynamic };
using pipeline::Recompute;
/// How pixels become floats. CIFAR: each image by its own mean and deviation (the recipe), or all
/// images by those of the data set or of ImageNet. ImageNet: minus its mean, or by its mean and
/// deviation.
enum class Normalisation { Standardise, Dataset, MeanOnly, ImageNet };
/// Where images come from: files, generated on the host, or generated once and kept on the device.
enum class ImageSource { Files, Host, Device };
enum class ValidationMode { All, End, None };
/// What a trace shows of the devices: each weight update as a whole, every action of the schedule,
/// or also every kernel.
enum class TraceDetail { Updates, Actions, Kernels };
/// What a run prints: warnings, errors and the closing summary; also its progress; also what was
/// taken from the environment, and the command that starts its ranks.
enum class Verbosity { Quiet, Normal, Verbose };

/// How long a run is, as it was asked for: in epochs or in weight updates.
struct LengthRequest {
  std::optional<double> epochs = {};            ///< none: `iterations` says it
  std::optional<std::int64_t> iterations = {};  ///< weight updates
  /// With epochs: the run ends after so many updates at the latest, with the rates of its epochs.
  std::optional<std::int64_t> max_iterations = {};
  friend bool operator==(const LengthRequest&, const LengthRequest&) = default;
};

/// The learning rate as it was asked for. LearningRateConfig holds the numbers that follow.
struct RateRequest {
  std::optional<double> exponent = {};                 ///< the rate is 2^exponent x total batch
  std::optional<double> absolute = {};                 ///< instead
  static constexpr double kWarmupEpochs = 5.0;         ///< of a run in epochs, if it is as long
  std::optional<double> warmup_epochs = {};            ///< none: the usual ones
  std::optional<std::int64_t> warmup_iterations = {};  ///< instead
  std::optional<double> horizon_epochs = {};           ///< none: the run
  std::optional<std::int64_t> horizon = {};            ///< instead, in weight updates
  std::vector<double> drop_epochs = {30, 60, 80};      ///< piecewise
  std::optional<double> power = {};                    ///< polynomials; none: the usual one
  friend bool operator==(const RateRequest&, const RateRequest&) = default;
};

/// What was asked for of the update rule where OptimiserConfig holds what follows.
struct OptimiserRequest {
  double weight_decay = 0.0;
  std::optional<double> lars_weight_decay = {};  ///< instead, with LARS
  double rmsprop_decay = 0.9;
  std::optional<double> rmsprop_exponent = {};  ///< instead: the decay is 1 - 2^x x total batch
  friend bool operator==(const OptimiserRequest&, const OptimiserRequest&) = default;
};

/// When a run validates, and on how much.
struct ValidationRequest {
  std::int64_t every_epochs = 1;
  std::optional<std::int64_t> every_iterations = {};  ///< instead
  std::optional<std::int64_t> batch_size = {};        ///< none: that of the training
  std::optional<std::int64_t> most_batches = {};      ///< none: all images
  friend bool operator==(const ValidationRequest&, const ValidationRequest&) = default;
};

/// A time between checkpoints: "500", "0.5epochs", "10minutes".
struct CheckpointInterval {
  enum class Unit { Updates, Epochs, Minutes } unit = Unit::Updates;
  double number = 0.0;
  friend bool operator==(const CheckpointInterval&, const CheckpointInterval&) = default;
};

/// What a run keeps.
struct CheckpointRequest {
  std::int64_t per_epoch = 1;
  bool only_last = false;
  std::optional<CheckpointInterval> every = {};  ///< instead of both
  std::optional<std::int64_t> keep = {};  ///< none: one, or all that are validated at the end
  std::string export_folder = {};         ///< empty: none
  friend bool operator==(const CheckpointRequest&, const CheckpointRequest&) = default;
};

/// Where a run writes, and how often.
struct LogRequest {
  static constexpr std::int64_t kLinesPerEpoch = 16;    ///< of a run in epochs
  static constexpr std::int64_t kUpdatesPerLine = 500;  ///< of one in weight updates
  bool keeps = true;                                    ///< whether there is a run directory
  std::string place = {};                       ///< the directory itself; empty: it gets a name
  std::string directory = {};                   ///< below which it is created; empty: the usual one
  std::string suffix = {};                      ///< of its name
  std::optional<std::int64_t> per_epoch = {};   ///< lines
  std::optional<std::int64_t> every = {};       ///< instead: weight updates between lines
  std::optional<std::int64_t> per_report = {};  ///< the IPU trainer's word for it, if none is given
  bool tensorboard = false;
  std::optional<std::int64_t> summary_every = {};
  friend bool operator==(const LogRequest&, const LogRequest&) = default;
};

/// What forward passes are repeated in the backward pass.
enum class RecomputeRequest { None, Segments, Auto };

/// Threads of a device, at most.
inline constexpr int kMostThreads = 256;

/// The layout as it was asked for: what is fixed, and by its absence what is open. What is chosen
/// takes the place of what is open, so that a run that is restored has it again.
struct LayoutRequest {
  std::optional<std::int32_t> shards = {};  ///< devices of a replica
  std::vector<std::string> splits = {};     ///< "auto" alone: to be chosen; empty: not given
  std::optional<std::string> schedule = {};
  std::string schedule_file = {};
  std::string plan = {};            ///< file with stages and schedule
  std::optional<int> threads = {};  ///< of a device
  std::optional<std::int32_t> extra_warmup = {};
  std::optional<std::int32_t> chunks = {};   ///< stages of a device
  std::vector<std::int32_t> device_of = {};  ///< by stage
  std::vector<std::string> include = {};     ///< sharding cuts only at layers with such names
  std::vector<std::string> exclude = {};     ///< and not at these
  std::optional<std::int64_t> ranks = {};
  std::vector<std::int32_t> rank_shares = {};  ///< devices of each rank; empty: as equal as can be
  std::vector<double> rank_speeds = {};        ///< by which ranks get parts; empty: all are as fast
  bool elastic = false;                        ///< any number of ranks that was started will do
  bool spread = false;                         ///< ranks may have parts of the stages
  std::string device_memory = {};     ///< bytes that a device may use: "8GiB"; empty: no limit
  bool pipelined = false;             ///< whether anything is given that only pipelines have
  bool depth_is_of_pipeline = false;  ///< whether micro_batches was given as their depth
  std::optional<RecomputeRequest> recompute = {};
  bool recomputes_stages = false;           ///< the IPU trainer's flag for Segments
  std::vector<double> scratch_shares = {};  ///< of a device's memory, for kernels
  std::string devices = {};                 ///< numbers, or "AUTO"
  bool cut_by_memory = false;               ///< decided: shards divide memory, not time
  friend bool operator==(const LayoutRequest&, const LayoutRequest&) = default;
};

/// Learning rate as a function of the iteration. All values are absolute.
struct LearningRateConfig {
  LearningRateKind kind = LearningRateKind::Stepped;
  double base_rate = 0.1;                        ///< 2^exponent x total batch; the highest rate
  double decay = 0.1;                            ///< stepped, exponential: factor of each drop
  std::vector<double> boundaries = {0.5, 0.75};  ///< stepped: fractions of the run
  std::int64_t warmup_iterations = 0;
  WarmupForm warmup = WarmupForm::Scaled;
  double initial_rate = 0.0;            ///< gradual warm-up: at iteration 0
  double end_rate = 0.0;                ///< polynomials: after the last iteration
  double power = 1.0;                   ///< polynomials; LARS: 2
  std::int64_t drops = 146;             ///< exponential: in the whole run
  std::vector<std::int64_t> cuts = {};  ///< piecewise: last iteration of each piece except the last
  std::vector<double> factors = {};     ///< piecewise: multiples of base_rate, one more than cuts
  std::int64_t horizon = 0;             ///< iterations after which the rate is constant; 0: the run
  friend bool operator==(const LearningRateConfig&, const LearningRateConfig&) = default;
};

struct OptimiserConfig {
  OptimiserKind kind = OptimiserKind::Sgd;
  double momentum = 0.9;
  double weight_decay = 0.0;
  DecayForm decay_form = DecayForm::HalfSquare;
  std::vector<std::string> decay_excludes = {};  ///< parts of names of parameters that do not decay
  double mean_square_decay = 0.9;                ///< RMSprop, Adam
  double epsilon = 1e-3;  ///< RMSprop: inside the root; LARS, Adam: in the denominator
  double trust = 1e-3;    ///< LARS: "eeta"
  std::vector<std::string> lars_skips = {};  ///< LARS: parts of names that neither adapt nor decay
  double clip_norm = 0.0;                    ///< largest norm of all gradients together; 0: any
  /// Each replica keeps and updates only its share of the tensors.
  bool sharded = false;
  friend bool operator==(const OptimiserConfig&, const OptimiserConfig&) = default;
};

/// The rule with the constants of its paper, which hold where nothing else is said.
[[nodiscard]] OptimiserConfig usual_optimiser(OptimiserKind kind);

/// Loss scaling. A step with non-finite gradients changes nothing on any rank and is counted.
struct LossScaling {
  ScalingKind kind = ScalingKind::Static;
  double initial = 128.0;
  std::int64_t growth_interval = 2000;  ///< dynamic
  friend bool operator==(const LossScaling&, const LossScaling&) = default;
};

/// Averages of checkpoints, made at the end of the training: see averaging.hpp. And a moving
/// average of the weights over updates.
struct AveragingConfig {
  double ema_decay = 0.0;                      ///< of the moving average over updates; 0: none
  std::vector<std::int64_t> last_epochs = {};  ///< plain averages over the last n epochs
  std::vector<double> decays = {};  ///< exponential averages, old x decay + new x (1 - decay)
  [[nodiscard]] bool of_checkpoints() const { return !last_epochs.empty() || !decays.empty(); }
  friend bool operator==(const AveragingConfig&, const AveragingConfig&) = default;
};

/// How the files of ImageNet are read. Nothing of it is used for other images.
struct ImageFileRequest {
  std::string preset = "tf";
  std::optional<ImageNormalisation> normalisation = {};  ///< none: that of the preset
  std::vector<double> mean = {};                         ///< three colours, instead; empty: none
  std::vector<double> deviation = {};                    ///< likewise
  std::vector<double> crop_area = {};  ///< smallest and largest share; empty: those of the preset
  std::int64_t label_offset = 1;
  bool allow_missing_shards = false;
  std::string cache = {};  ///< "8GiB", "all"; empty: nothing stays in memory
  friend bool operator==(const ImageFileRequest&, const ImageFileRequest&) = default;
};

struct DataConfig {
  std::string dataset = "cifar-10";
  std::filesystem::path directory = {};  ///< empty for synthetic data
  ImageSource source = ImageSource::Files;
  std::int64_t train_size = 0;  ///< images per epoch
  std::int64_t validation_size = 0;
  Normalisation normalisation = Normalisation::Standardise;
  std::int64_t side = 0;  ///< pixels of an image that the network sees
  bool augment = true;
  Augmentation augmentation = {};   ///< besides crop and mirror
  ImageFileRequest images = {};     ///< of ImageNet from files
  int loader_threads = 1;           ///< per stage that reads images
  int max_cpus = 0;                 ///< upper bound of loader threads per process; 0: none
  double max_bad_fraction = 0.001;  ///< largest fraction of bad images in an epoch
  /// Type in which images are copied to the device; none: that of the activations. U8 is converted
  /// to floats there, with the same tensors as a result.
  std::optional<DType> image_type = {};
  std::optional<DType> asked_type = {};  ///< the type that was asked for
  bool sends_bytes = false;              ///< whether bytes were
  bool normalises_on_host = false;       ///< or floats
  MixingConfig mixing = {};
  bool weighted = false;  ///< whether labels of the training set have weights
  // Recorded in checkpoints, so that images can be classified without the data set.
  std::vector<std::string> class_names = {};    ///< none: unknown
  std::optional<Preparation> preparation = {};  ///< of validation images
  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

/// A fully resolved training: every default is filled in and every derived number computed. Plain
/// data, which the trainer follows, beside the data sets that it is given.
struct Run {
  models::ModelOptions model = {};
  DataConfig data = {};
  OptimiserConfig optimiser = {};
  LearningRateConfig learning_rate = {};
  std::string network = "resnet";  ///< name of its family, or the file that holds it
  bool weights_of_file = true;     ///< whether a network in a file starts with the weights there
  std::optional<std::int64_t> outputs = {};  ///< none: the classes of the data set
  LengthRequest length = {};
  RateRequest rate = {};
  OptimiserRequest update = {};
  ValidationRequest validating = {};
  CheckpointRequest saving = {};
  LogRequest logging = {};
  LayoutRequest layout = {};

  std::int64_t batch_size = 32;    ///< micro-batch
  std::int64_t micro_batches = 1;  ///< accumulated per iteration and replica
  std::int64_t iterations = 0;     ///< weight updates of the whole run, exact
  std::int64_t iterations_per_epoch = 0;
  double label_smoothing = 0.0;
  SmoothingForm smoothing = SmoothingForm::OtherClasses;
  LossScaling loss_scaling = {};
  Precision precision = {};
  bool stochastic_rounding = true;   ///< 16.16: of stored master weights and slots
  DType reduced_as = DType::F32;     ///< of gradients that replicas send: F32 or BF16
  std::int64_t reduced_at_once = 0;  ///< bytes of gradients; 0: chosen by the stage
  bool check_exceptions = false;     ///< name the first op that makes a non-finite number
  Recompute recompute = Recompute::None;
  std::vector<std::string> recompute_layers = {};
  /// By stage, if they were chosen so that the stages fit; empty: as Recompute says.
  std::vector<pipeline::ChosenSegments> chosen_segments = {};
  std::int64_t device_memory = 0;        ///< bytes that a device may use; 0: no limit
  std::filesystem::path init_path = {};  ///< checkpoint or file whose weights the run starts from
  std::vector<std::string> init_fresh = {};  ///< parts of names that init_path does not replace
  std::vector<std::string> trained_filters = {};  ///< parts of names that are trained; none: all
  AveragingConfig averaging = {};
  std::uint64_t seed = 0;
  int threads = 1;  ///< threads per device
  /// Device numbers to use, by replica and device of the pipeline; none: any free device. Their
  /// meaning is defined in cli/launch.hpp.
  std::vector<int> device_numbers = {};
  /// Scratch bytes for the vendor's kernels: no limit, one limit, or two for each stage
  /// (convolutions and products).
  std::vector<std::int64_t> scratch_caps = {};
  /// The vendor's kernels may add in another order from run to run: faster, and against law 1.
  bool allow_nondeterministic = false;
  pipeline::PipelinePlan pipeline = {};  ///< stages, schedule, replicas, ranks
  std::vector<std::string> splits = {};  ///< first layer or op of each stage but the first
  /// As it was before what is open was chosen: what proposes another layout begins there.
  LayoutRequest asked_layout = {};
  std::int64_t weight_check_every = 0;  ///< iterations between comparisons of replicas
  std::filesystem::path trace = {};     ///< file of the trace; empty: none
  std::int64_t trace_first = 0;         ///< first and last update of the trace, from 1, inclusive
  std::int64_t trace_last = 0;
  TraceDetail trace_detail = TraceDetail::Actions;
  int hang_timeout = 0;  ///< seconds without progress that end the run; 0: never

  Verbosity verbosity = Verbosity::Normal;
  std::int64_t log_every = 0;         ///< iterations between log lines
  bool tensorboard = false;           ///< write event files for TensorBoard
  std::int64_t summary_every = 0;     ///< iterations between their summaries; 0: at log lines
  std::int64_t checkpoint_every = 0;  ///< iterations between checkpoints; 0: only the final one
  double checkpoint_minutes = 0.0;    ///< between checkpoints, instead of iterations; 0: none
  std::int64_t partner_every = 0;     ///< iterations between snapshots in memory; 0: none
  int max_checkpoints_to_keep = 1;    ///< 0: all
  bool keep_best = false;             ///< also keep the checkpoint with the best validation
  ValidationMode validation = ValidationMode::All;
  std::int64_t validate_every = 0;  ///< iterations between validations
  std::int64_t early_stop = 0;      ///< validations without a better one that end the run; 0: any
  double stop_threshold = 0.0;      ///< top-1 accuracy that ends the run, a fraction; 0: none
  std::int64_t validation_batch_size = 32;
  std::optional<std::int64_t> stop_after = {};  ///< end after N updates of this process

  std::filesystem::path run_directory = {};  ///< empty with `no-logs`

  /// Where the weights are that a new run starts from; empty: they are random.
  [[nodiscard]] std::filesystem::path initial_weights() const {
    return init_path.empty() && model.given.graph && weights_of_file
               ? std::filesystem::path(network)
               : init_path;
  }
  /// Whether checkpoints are written before the end of the run.
  [[nodiscard]] bool saves_on_the_way() const {
    return checkpoint_every > 0 || checkpoint_minutes > 0.0;
  }
  [[nodiscard]] std::int64_t total_batch() const {
    return batch_size * micro_batches * pipeline.ranks.replicas;
  }
  /// Epochs completed after `updates` weight updates.
  [[nodiscard]] double epoch_after(std::int64_t updates) const {
    return static_cast<double>(total_batch() * updates) / static_cast<double>(data.train_size);
  }
  friend bool operator==(const Run&, const Run&) = default;
};

}  // namespace millrace::run
