// SPDX-License-Identifier: Apache-2.0
//
// What stands before the options of a guide's line: programs, launchers, variables.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <regex>

#include "cli/commands.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "tools/dialects/dialect.hpp"

namespace millrace::cli {
namespace {

struct Programs {
  std::string_view dialect;
  std::string_view names;
};
constexpr std::array kPrograms = std::to_array<Programs>({
    {"ipu", "train.py, validation.py, restore.py"},
    {"nvidia",
     "main.py, predict.py, RN50_FP16_1GPU.sh, RN50_FP16_4GPU.sh, RN50_FP16_8GPU.sh, "
     "RN50_FP16_EVAL.sh, RN50_FP32_1GPU.sh, RN50_FP32_4GPU.sh, RN50_FP32_8GPU.sh, "
     "RN50_FP32_EVAL.sh"},
    {"habana", "imagenet_main.py, demo_resnet_keras.py, resnet_ctl_imagenet_main.py"},
    {"surfsara", "resnet_main.py, resnet_eval.py"},
});

/// A variable of a guide that has no effect here.
struct IdleVariable {
  std::string_view dialect;
  const char* name;
  std::string_view text;    ///< behind its name
  std::string_view unless;  ///< an option that says all that there is to say; "": none
};
constexpr std::string_view kHalf = " has no effect here: --use_tf_amp sets mixed precision";
constexpr std::array kVariables = std::to_array<IdleVariable>({
    {"ipu", "POPLAR_ENGINE_OPTIONS",
     " has no effect here: there is no host exchange whose table could overflow", ""},
    {"nvidia", "TF_ENABLE_AUTO_MIXED_PRECISION", kHalf, "--use_tf_amp"},
    {"nvidia", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", kHalf, "--use_tf_amp"},
    {"habana", "HCCL_SOCKET_IFNAME",
     " has no effect here: MPI_TCP_INCLUDE, --interface or mpirun's --mca btl_tcp_if_include names "
     "the network",
     "--interface"},
    {"habana", "HCCL_OVER_TCP", " has no effect here: MPI chooses how its messages travel", ""},
    {"habana", "MULTI_HLS_IPS",
     ": the hosts are reached at the port that ssh is configured for; Habana's containers listen "
     "on 3022: --ssh-port 3022",
     "--ssh-port"},
});

std::string file_name(const std::string& word) {
  return std::filesystem::path(word).filename().string();
}

/// "python", "python3", "/usr/bin/python3.11", "bash", "sh".
bool is_interpreter(const std::string& word) {
  constexpr std::string_view kName = "python";
  const std::string name = file_name(word);
  if (name == "bash" || name == "sh") return true;
  return name.starts_with(kName) &&
         name.find_first_not_of("0123456789.", kName.size()) == std::string::npos;
}

bool is_program(const std::string& word) {
  return !word.starts_with('-') && (word.ends_with(".py") || word.ends_with(".sh"));
}

/// The text behind the last of these options, or else `otherwise`.
std::string text_behind(std::span<const std::string> words, std::string_view name,
                        std::string_view otherwise) {
  std::string text(otherwise);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    std::string typed = words[i].substr(0, equals);
    std::replace(typed.begin(), typed.end(), '-', '_');
    if (typed != name) continue;
    if (equals != std::string::npos)
      text = words[i].substr(equals + 1);
    else if (i + 1 < words.size())
      text = words[i + 1];
  }
  return text;
}

/// Errors: Usage for the programs of the guides that prepare data, naming the command that does.
void refuse_preparation(std::string_view script, std::span<const std::string> words) {
  if (script != "preprocess_imagenet.py" && script != "imagenet_to_gcs.py") return;
  fail(ErrorKind::Usage,
       "{} does not train but prepares data: use millrace data convert {} --raw-dir {}", script,
       text_behind(words, "__local_scratch_dir", "OUT"),
       text_behind(words, "__raw_data_dir", "DIR"));
}

/// Errors: Usage for NVIDIA's scripts that measure several batches, naming the line of one of them.
void refuse_series(std::string_view script) {
  static const std::regex form("\\w+_(train|infer)bench_(fp16|fp32)\\.sh");
  std::cmatch match;
  if (!std::regex_match(script.begin(), script.end(), match, form)) return;
  fail(ErrorKind::Usage,
       "{} measures several batches on several GPUs; one of them is main.py "
       "--mode={}_benchmark{} --batch_size N --data_dir DIR --results_dir DIR, on N GPUs under "
       "mpirun -np N",
       script, match[1] == "train" ? "training" : "inference",
       match[2] == "fp16" ? " --use_tf_amp" : "");
}

/// Errors: Usage, naming the programs of the dialect.
void require_known(std::string_view dialect, const std::string& script) {
  const Programs& known = *std::ranges::find(kPrograms, dialect, &Programs::dialect);
  const std::vector<std::string> names = split_list(known.names);
  if (std::ranges::find(names, script) == names.end())
    fail(ErrorKind::Usage,
         "unknown program '{}'; those of --dialect {} are {}, and the options alone mean its "
         "training",
         script, dialect, known.names);
}

/// Errors: Usage for a launcher behind millrace.
void refuse_launcher(std::string_view dialect, std::span<const std::string> words) {
  const std::string name = words.empty() ? "" : file_name(words[0]);
  if (name != "mpirun" && name != "mpiexec") return;
  const bool per_node = std::ranges::find(words, "-ppn") != words.end();
  fail(ErrorKind::Usage, "{0} stands before millrace: {0} .. millrace train --dialect {1} ..{2}",
       name, dialect, per_node ? "; Open MPI's word for -ppn N is --map-by ppr:N:node" : "");
}

}  // namespace

std::string take_program(std::string_view dialect, std::vector<std::string>& words) {
  refuse_launcher(dialect, words);
  std::size_t next = 0;
  std::string script;
  if (!words.empty() && is_interpreter(words[0])) {
    next = 1;
    while (next < words.size() && words[next].starts_with('-') && words[next] != "-m") ++next;
    if (next + 1 < words.size() && words[next] == "-m") {
      const std::string& module = words[next + 1];  // "package.main"
      script = module.substr(module.rfind('.') + 1) + ".py";
      next += 2;
    }
  }
  if (script.empty() && next < words.size() && is_program(words[next]))
    script = file_name(words[next++]);
  if (script.empty()) return script;
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(next));
  refuse_preparation(script, words);
  if (dialect == "nvidia") refuse_series(script);
  require_known(dialect, script);
  return script;
}

Command agreed_command(Command typed, Command meant, const std::string& by) {
  if (typed == Command::Train || typed == meant) return meant;
  const bool of_training =
      typed == Command::Restore || typed == Command::Bench || typed == Command::Plan;
  if (by.empty() || (meant == Command::Train && of_training)) return typed;
  const auto name = [](Command id) {
    return std::ranges::find(command_table(), id, &CommandSpec::id)->name;
  };
  fail(
      ErrorKind::Usage,
      "millrace {0} and {1} contradict each other: {1} means millrace {2}; type that, or leave {1} "
      "out",
      name(typed), by, name(meant));
}

std::vector<std::string> take_nvidia_script(const std::string& script,
                                            std::vector<std::string>& words) {
  static const std::regex form("RN50_(FP16|FP32)_(?:([148])GPU|EVAL)\\.sh");
  std::smatch match;
  if (!std::regex_match(script, match, form)) return {};
  constexpr std::size_t kArguments = 3;
  if (words.size() < kArguments || std::any_of(words.begin(), words.begin() + kArguments,
                                               [](const auto& w) { return w.starts_with('-'); }))
    fail(ErrorKind::Usage, "{} needs the paths of the model, of the data set and of the results",
         script);
  const bool half = match[1] == "FP16";
  std::vector<std::string> passed = {"--results_dir=" + words[2],
                                     half ? "--batch_size=256" : "--batch_size=128",
                                     half ? "--use_tf_amp" : "--nouse_tf_amp"};
  const std::vector<std::string> more =
      match[2].matched ? std::vector<std::string>{"--replicas=" + match[2].str(),
                                                  "--num_iter=50",
                                                  "--warmup_steps=100",
                                                  "--use_cosine_lr",
                                                  "--label_smoothing=0.1",
                                                  "--lr_init=0.256",
                                                  "--lr_warmup_epochs=8",
                                                  "--momentum=0.875",
                                                  "--weight_decay=3.0517578125e-05"}
                       : std::vector<std::string>{"--mode=evaluate"};
  passed.insert(passed.end(), more.begin(), more.end());
  const std::string data = words[1];  // typed: stronger than DATA_DIR
  words.erase(words.begin(), words.begin() + kArguments);
  words.insert(words.begin(), "--data_dir=" + data);
  return passed;
}

std::vector<std::string> notes_on_variables(std::string_view dialect,
                                            std::span<const std::string> words,
                                            const Environment& environment) {
  std::vector<std::string> notes;
  for (const IdleVariable& variable : kVariables) {
    if (variable.dialect != dialect) continue;
    const auto value = environment(variable.name);
    const bool said =
        !variable.unless.empty() && std::ranges::any_of(words, [&](const std::string& word) {
          return word.starts_with(variable.unless);
        });
    if (value && *value != "0" && !said)
      notes.push_back(fmt::format("{}{}", variable.name, variable.text));
  }
  return notes;
}

void refuse_device_list(const std::string& word) {
  if (file_name(word) != "gc-info") return;
  fail(ErrorKind::Usage, "gc-info lists devices and trains nothing: use millrace doctor");
}

void take_profiler(std::vector<std::string>& words) {
  if (words.empty() || file_name(words[0]) != "gc-profile") return;
  const auto end = std::find(words.begin(), words.end(), "--");
  if (end == words.end())
    fail(ErrorKind::Usage, "gc-profile needs -- before the program that it runs");
  const auto option = std::find(words.begin(), end, "-d");
  const std::string folder = option < end && option + 1 < end ? option[1] : "";
  words.erase(words.begin(), end + 1);
  if (folder.empty()) return;
  words.insert(words.end(), {"--trace", (std::filesystem::path(folder) / "trace.json").string()});
}

}  // namespace millrace::cli
