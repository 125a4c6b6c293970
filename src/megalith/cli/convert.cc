// `megalith convert`: a checkpoint into another number format, shard size or vocabulary.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/model/convert.h"

namespace megalith::cli {

namespace {

constexpr const char* kUsage = R"(megalith convert --checkpoint_path MODEL --output_path FOLDER [options]

Copies a Hugging Face checkpoint, tensor by tensor: the model is never in memory as a whole.

  --checkpoint_path MODEL   folder, or a hub name that has been downloaded
  --output_path FOLDER      where the result goes; it appears when it is complete
  --bf16 | --fp16 | --fp32  number format of the weights; without one every tensor keeps its own
  --max_shard_size SIZE     largest weight file: 5GB, 500MB, or bytes (default 5GB)
  --vocab_size N            grow the vocabulary to N ids; new rows are the mean of the old ones plus noise
  --seed N                  of that noise (default 42)
  --overwrite               replace FOLDER when it is there
  --json                    print a JSON object about what was written
)";

// "5GB" as transformers reads it: powers of ten; KiB, MiB, GiB are powers of two.
uint64_t parse_size(const std::string& text) {
  static const std::pair<const char*, double> kUnits[] = {
      {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1}};
  std::string number = to_lower(text);
  double unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!number.ends_with(name)) continue;
    number.resize(number.size() - std::string_view(name).size());
    unit = bytes;
    break;
  }
  const auto value = parse_double(std::string(trim(number)));
  check<ConfigError>(value && *value > 0 && *value * unit >= 1 && *value * unit < 1e18,
                     "max_shard_size is \"{}\"; it must be a size such as 5GB, 500MB or a number of bytes", text);
  return static_cast<uint64_t>(*value * unit);
}

// Options of the table that were given and that a copy has no use for.
void warn_of_unused(const config::OptionReport& report) {
  for (const config::OptionUse& use : report.uses)
    if (use.name != "bf16" && use.name != "fp16" && use.name != "seed")
      log_warning("{} has no effect on converting one Hugging Face checkpoint into another", use.given);
}

std::optional<at::ScalarType> chosen_dtype(bool bf16, bool fp16, bool fp32) {
  check<ConfigError>(bf16 + fp16 + fp32 <= 1, "bf16, fp16 and fp32 exclude each other; give one of them");
  if (bf16) return at::kBFloat16;
  if (fp16) return at::kHalf;
  if (fp32) return at::kFloat;
  return std::nullopt;
}

}  // namespace

int run_convert(Words words) {
  std::optional<std::string> source, target, shard_size;
  std::optional<int64_t> vocab;
  bool fp32 = false, overwrite = false, json = false, help = false;
  const std::vector<config::CommandOption> own{{"checkpoint_path", "the model to convert", &source},
                                               {"output_path", "where the result goes", &target},
                                               {"fp32", "weights in single precision", &fp32},
                                               {"max_shard_size", "largest weight file", &shard_size},
                                               {"vocab_size", "grow the vocabulary", &vocab},
                                               {"overwrite", "replace the output", &overwrite},
                                               {"json", "print a JSON object", &json},
                                               {"help", "print the usage", &help}};
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (help) {
    fmt::print("{}", kUsage);
    return kDone;
  }
  check<ConfigError>(source && target, "convert needs --checkpoint_path MODEL and --output_path FOLDER");
  parsed.report.check_not_refused();
  warn_of_unused(parsed.report);
  const auto& precision = parsed.args.precision;
  model::ConvertOptions options{.dtype = chosen_dtype(precision.bf16, precision.fp16, fp32),
                                .vocab_size = vocab,
                                .seed = static_cast<uint64_t>(parsed.args.seeds.seed),
                                .overwrite = overwrite};
  if (shard_size) options.max_shard_bytes = parse_size(*shard_size);
  const auto folder = hf::find_model_folder(*source, hf::HubEnvironment::from_process());
  const auto report = model::convert_checkpoint(folder, *target, options);
  if (json) {
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{
            {"output_path", *target}, {"tensors", report.tensors}, {"bytes", report.bytes}, {"files", report.files}}
            .dump());
  } else {
    log_info("{} tensors, {:.1f} MB in {} file{} in {}", report.tensors, static_cast<double>(report.bytes) / 1e6,
             report.files, report.files == 1 ? "" : "s", *target);
  }
  return kDone;
}

}  // namespace megalith::cli
