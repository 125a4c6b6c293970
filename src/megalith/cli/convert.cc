// `megalith convert`: converts models and checkpoints to other number formats, shard sizes or vocabularies, and
// verifies checkpoints. Tensors are copied one at a time, so a model may be larger than memory. Three kinds of work
// share the options: --verify only reads, --reshard copies a checkpoint with its optimizer state as it is, and
// everything else writes a Hugging Face folder.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/base/units.h"
#include "megalith/checkpoint/copy.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/cli/byte_size.h"
#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/hf/weight_files.h"
#include "megalith/model/convert/convert.h"
#include "megalith/model/foreign/convert_foreign.h"
#include "megalith/peft/adapter_folder.h"
#include "megalith/train/foreign_start.h"

namespace megalith::cli {

namespace {

// The text of --help.
constexpr const char* kConvertUsage = R"(megalith convert --checkpoint_path MODEL --output_path FOLDER [options]
megalith convert --checkpoint_path CHECKPOINT --output_path FOLDER --reshard [--max_shard_size SIZE]
megalith convert --checkpoint_path CHECKPOINT --verify

Copies weights tensor by tensor: the model is never in memory as a whole. A Megalith checkpoint (checkpoint-S) becomes
a plain Hugging Face folder; a Hugging Face model becomes a folder that is also a checkpoint: it has a manifest.
Checkpoints of torch.distributed.checkpoint, Megatron-LM (torch_dist and torch) and mcore_adapter are read, too: their
weights become a Hugging Face folder, and the state of AdamW, where it can be read, makes it a checkpoint from which
`megalith train --resume_from_checkpoint` continues. Nothing in them is executed.

  --checkpoint_path MODEL   folder, checkpoint, or a hub name that has been downloaded
  --adapter_path FOLDERS    merge this adapter, or several, one after the other: a,b (also --merge_adapter). The result
                            is a plain model. NAMES of folders in it with --adapter_folder FOLDER
  --config_path FOLDER      for checkpoints of other programs: folder of a Hugging Face model with the same config.json
                            and tokenizer, where the checkpoint has none
  --output_path FOLDER      where the result goes; it appears when it is complete
  --reshard                 all of a checkpoint, with its optimizer state, in files of another size. Another parallel
                            layout needs no conversion: every layout reads every checkpoint
  --verify                  compare a checkpoint with the sizes and checksums of its manifest
  --bf16 | --fp16 | --fp32  number format of the weights; without one every tensor keeps its own
  --fp8_blocks              linear layers in fp8 with a scale per block of 128 x 128, as DeepSeek-V3's files
  --max_shard_size SIZE     largest weight file: 5GB, 500MB, or bytes (default 5GB)
  --vocab_size N            grow the vocabulary to N ids; new rows are the mean of the old ones plus noise
  --seed N                  seed of that noise (default 42)
  --overwrite               replace FOLDER if it exists
  --json                    print a JSON object that describes the result
)";

// Warns of options of the table that were given and do not affect a conversion.
void warn_of_unused(const config::OptionReport& report) {
  for (const config::OptionUse& use : report.uses)
    if (use.name != "bf16" && use.name != "fp16" && use.name != "seed" && use.name != "adapter_folder")
      log_warning("{} has no effect on converting one Hugging Face checkpoint into another", use.given);
}

// Finds the adapters that a user names: folders, or names in `base`.
std::vector<std::filesystem::path> adapters_of(const std::string& names, const std::filesystem::path& base) {
  std::vector<std::filesystem::path> found;
  for (const std::string& name : split(names, ',')) {
    check<ConfigError>(!trim(name).empty(), "adapter_path is \"{}\"; give one folder, or several separated by commas",
                       names);
    found.push_back(peft::find_adapter(std::string(trim(name)), base));
  }
  return found;
}

// fp32 is an option of this command alone: `train` expresses it by the absence of the others.
std::optional<at::ScalarType> chosen_dtype(bool bf16, bool fp16, bool fp32) {
  check<ConfigError>(bf16 + fp16 + fp32 <= 1, "bf16, fp16 and fp32 exclude each other; give one of them");
  if (bf16) return at::kBFloat16;
  if (fp16) return at::kHalf;
  if (fp32) return at::kFloat;
  return std::nullopt;
}

// Reports a copy: as one JSON object on stdout, or as a line of the log.
void print_result(bool as_json, const std::string& target, int64_t tensors, uint64_t bytes, int64_t files) {
  if (as_json)
    fmt::print("{}\n",
               nlohmann::ordered_json{{"output_path", target}, {"tensors", tensors}, {"bytes", bytes}, {"files", files}}
                   .dump());
  else
    log_info("{} tensors, {} in {} file{} in {}", tensors, bytes_text(static_cast<double>(bytes)), files,
             files == 1 ? "" : "s", target);
}

// Reads every byte and compares checksums, which takes as long as reading the checkpoint.
int verify(const std::string& folder, bool as_json) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  const auto problems = checkpoint::problems_of_content(folder, manifest);
  if (as_json)
    fmt::print("{}\n", nlohmann::ordered_json{{"checkpoint_path", folder},
                                              {"step", manifest.step},
                                              {"bytes", manifest.total_bytes()},
                                              {"holds", manifest.holds},
                                              {"problems", problems}}
                           .dump());
  check<DataError>(problems.empty(), "{} is broken: {}", folder, fmt::join(problems, "; "));
  log_info("{} is whole: step {}, {} in {} files, saved by {}", folder, manifest.step,
           bytes_text(static_cast<double>(manifest.total_bytes())), manifest.files.size(), manifest.layout.in_words());
  return kDone;
}

}  // namespace

int run_convert(Words words) {
  std::optional<std::string> source, adapter, target, shard_size, described;
  std::optional<int64_t> vocab;
  bool fp32 = false, overwrite = false, json = false, help = false, reshard = false, verified = false;
  bool fp8_blocks = false;
  // bf16, fp16 and seed are options of the table; these are the command's own.
  const std::vector<config::CommandOption> own{{"checkpoint_path", "the model to convert", &source},
                                               {"adapter_path", "adapters to merge", &adapter},
                                               {"merge_adapter", "the same", &adapter},
                                               {"config_path", "config.json and tokenizer of the model", &described},
                                               {"output_path", "where the result goes", &target},
                                               {"reshard", "all of a checkpoint, in other files", &reshard},
                                               {"verify", "check that a checkpoint is complete", &verified},
                                               {"fp32", "weights in single precision", &fp32},
                                               {"fp8_blocks", "linear layers in fp8, as DeepSeek's", &fp8_blocks},
                                               {"max_shard_size", "largest weight file", &shard_size},
                                               {"vocab_size", "grow the vocabulary", &vocab},
                                               {"overwrite", "replace the output", &overwrite},
                                               {"json", "print a JSON object", &json},
                                               {"help", "print the usage", &help}};
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (help) {
    fmt::print("{}", kConvertUsage);
    return kDone;
  }
  check<ConfigError>(source && (target || verified), "convert needs --checkpoint_path MODEL and --output_path FOLDER");
  parsed.report.check_not_refused();
  warn_of_unused(parsed.report);
  const auto& precision = parsed.args.precision;
  model::ConvertOptions options{.dtype = chosen_dtype(precision.bf16, precision.fp16, fp32),
                                .vocab_size = vocab,
                                .seed = static_cast<uint64_t>(parsed.args.seeds.seed),
                                .fp8_blocks = fp8_blocks,
                                .overwrite = overwrite};
  if (adapter) options.adapters = adapters_of(*adapter, parsed.args.lora.adapter_folder.value_or(""));
  if (shard_size) options.max_shard_bytes = parse_byte_size("max_shard_size", *shard_size);
  if (verified) return verify(*source, json);
  // Optimizer state is copied as it is, so nothing that would change a weight may be asked for.
  if (reshard) {
    check<ConfigError>(!options.dtype && !vocab && !adapter && !fp8_blocks && !described,
                       "reshard copies tensors as they are: leave out number formats, fp8_blocks, vocab_size,"
                       " adapter_path and config_path");
    const auto copy = checkpoint::copy_checkpoint(*source, *target, {options.max_shard_bytes, overwrite});
    const auto files = std::ranges::count_if(
        copy.files, [](const checkpoint::FileRecord& file) { return file.name.ends_with(".safetensors"); });
    print_result(json, *target, 0, copy.total_bytes(), files);
    return kDone;
  }
  if (!hf::has_weight_files(*source) && model::find_foreign_checkpoint(*source)) {
    check<ConfigError>(
        !vocab && !adapter && !fp8_blocks,
        "{} is a checkpoint of another program: convert it without vocab_size, adapter_path and fp8_blocks"
        " first, and then the result with them",
        *source);
    model::ForeignOptions how{
        .dtype = options.dtype, .max_shard_bytes = options.max_shard_bytes, .overwrite = overwrite};
    if (described)
      how.config = hf::find_model_folder(*described, hf::HubEnvironment::from_process(), hf::ModelParts::kConfig);
    const auto report = model::convert_foreign_checkpoint(*source, *target, how);
    if (report.step)
      train::make_foreign_checkpoint(*target, *report.step);
    else
      checkpoint::add_manifest(*target);
    print_result(json, *target, report.tensors, report.bytes, report.files);
    return kDone;
  }
  check<ConfigError>(!described,
                     "config_path is for checkpoints of torch.distributed.checkpoint and Megatron, and {} is not one",
                     *source);
  const auto folder = hf::find_model_folder(*source, hf::HubEnvironment::from_process());
  const auto report = model::convert_checkpoint(folder, *target, options);
  // A converted checkpoint stays a plain folder; a converted model becomes a checkpoint that can be verified.
  if (!checkpoint::has_manifest(folder)) checkpoint::add_manifest(*target);
  print_result(json, *target, report.tensors, report.bytes, report.files);
  return kDone;
}

}  // namespace megalith::cli
