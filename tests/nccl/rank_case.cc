#include "tests/nccl/rank_case.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "megalith/base/text.h"
#include "megalith/model/families/family.h"
#include "tests/cuda/device_model.h"
#include "tests/cuda/device_sight.h"
#include "tests/nccl/made_once.h"

namespace megalith::testing {

namespace {

namespace fs = std::filesystem;

bool names_stage(const Words& words) {
  return std::ranges::any_of(words, [](const std::string& word) { return word.starts_with("--stage="); });
}

// Everything but output, layout and batches. SGD shows what gradients are; with momentum, so that a checkpoint has a
// state; with clipping, so that a wrong norm shows in the weights.
Words common_words(const RankCase& how) {
  Words words{MEGALITH_PROGRAM,
              "train",
              "--model_name_or_path=" + case_model(how.family).string(),
              "--dataset=" + case_data(how).string(),
              fmt::format("--cutoff_len={}", kDeviceRow),
              fmt::format("--max_steps={}", kRankSteps),
              "--num_train_epochs=100",
              "--lr_scheduler_type=constant",
              "--weight_decay=0",
              "--max_grad_norm=1.0",
              "--logging_steps=1",
              "--save_strategy=no",
              "--full_determinism=true",
              "--preprocessing_num_workers=1",
              "--ddp_timeout=40"};
  const auto add = [&](const Words& more) { words.insert(words.end(), more.begin(), more.end()); };
  if (how.precision == Precision::kAdam)
    add({"--learning_rate=1e-3", "--adam_beta2=0.95"});
  else
    add({"--optim=sgd", "--sgd_momentum=0.9", "--learning_rate=0.05"});
  if (how.precision == Precision::kBf16 || how.precision == Precision::kFp8) add({"--bf16"});
  if (how.precision == Precision::kFp8) add({"--fp8=hybrid"});
  if (how.data == CaseData::kSamples) add({"--calculate_per_token_loss"});
  if (how.data == CaseData::kPairs && !names_stage(how.run)) add({"--stage=dpo"});
  if (!how.adapter()) add({"--finetuning_type=full"});
  add(sight_words(how.family, case_model(how.family)));
  add(how.run);
  return words;
}

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "fp32";
    case Precision::kBf16:
      return "bf16";
    case Precision::kFp8:
      return "fp8";
    case Precision::kAdam:
      return "adam";
  }
  return "";
}

struct Limits {
  double loss, norm, tensors;
};

Limits limits_of(const RankCase& how) {
  switch (how.precision) {
    case Precision::kFp32:
      return {1e-5, 1e-5, 1e-5};
    case Precision::kBf16:
      // An adapter's numbers, which begin with zero, are sums of rounded differences alone.
      return {5e-3, 5e-2, how.adapter() ? 1e-1 : 2e-2};
    case Precision::kFp8:
      return {1e-2, 1e-1, 5e-2};
    case Precision::kAdam:
      return {1e-4, 1e-3, 2e-2};
  }
  return {};
}

}  // namespace

bool RankCase::adapter() const { return std::ranges::find(run, "--finetuning_type=lora") != run.end(); }

fs::path case_model(const std::string& family) {
  return made_once("model-" + family, [&](const fs::path& folder) { write_device_model(family, folder); });
}

fs::path case_data(const RankCase& how) {
  const char* name = how.data == CaseData::kFullRows  ? "full.jsonl"
                     : how.data == CaseData::kSamples ? "data.jsonl"
                                                      : "pairs.jsonl";
  return case_model(how.family) / name;
}

Words case_command(const RankCase& how, Transport transport, const fs::path& output) {
  const int microbatches = how.pp > 1 ? 4 : how.dp > 4 ? 1 : std::min(2, kStepSamples / how.dp);
  Words words = common_words(how);
  words.insert(words.end(), {"--output_dir=" + output.string(), fmt::format("--tp={}", how.tp),
                             fmt::format("--pp={}", how.pp), fmt::format("--cp={}", how.cp),
                             fmt::format("--per_device_train_batch_size={}", kStepSamples / how.dp / microbatches),
                             fmt::format("--gradient_accumulation_steps={}", microbatches)});
  for (const Words& more : {transport_words(transport, how.ranks()), how.layout})
    words.insert(words.end(), more.begin(), more.end());
  return words;
}

fs::path case_reference(const RankCase& how, Transport transport) {
  Words words = common_words(how);
  words.insert(words.end(), {"--per_device_train_batch_size=4", "--gradient_accumulation_steps=2"});
  if (transport == Transport::kGlooOnCpu) words.emplace_back("--use_cpu");
  const std::string name = fmt::format("one-{}-{:016x}", how.family, fnv1a64(fmt::format("{}", fmt::join(words, " "))));
  return made_once(name, [&](const fs::path& folder) {
    words.push_back("--output_dir=" + folder.string());
    words.emplace_back("--overwrite_output_dir=true");
    run_job(words, 1, transport);
  });
}

void expect_agreement(const RankCase& how, Transport transport, const RunDifference& found, const JobEnd& end) {
  fmt::print("nccl-case {} {} {} {} {:.1e} {:.1e} {:.1e} {:.1f} {:.1f}\n", how.name, to_string(transport), how.ranks(),
             precision_name(how.precision), found.loss, found.norm, found.tensors, end.seconds,
             end.first_step.value_or(-1));
  const Limits limits = limits_of(how);
  EXPECT_LE(found.loss, limits.loss) << how.name << ": loss";
  EXPECT_LE(found.norm, limits.norm) << how.name << ": gradient norm";
  EXPECT_LE(found.tensors, limits.tensors) << how.name << ": " << found.where;
}

std::string obstacle_of(const RankCase& how, Transport transport) {
  if (std::string obstacle = sight_obstacle(how.family); !obstacle.empty()) return obstacle;
  if (how.precision != Precision::kFp8 || transport == Transport::kGlooOnCpu) return "";  // the CPU rounds as fp8 does
  const ProcessResult asked =
      run_process({"nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", "0"});
  const double capability = asked.exit_code == 0 ? std::atof(asked.out.c_str()) : 9.0;
  return capability >= 8.9 ? "" : fmt::format("a GPU of compute capability {} has no fp8 products", capability);
}

void expect_equal_to_one_rank(const RankCase& how, Transport transport) {
  const DeviceRun expected = read_run(case_reference(how, transport));
  ASSERT_EQ(expected.losses.size(), size_t{kRankSteps});
  ASSERT_FALSE(expected.tensors.empty());
  const TempFolder folder;
  // Without experts the host waits for the totals of a step alone; libtorch ends a run that waits anywhere else. For
  // experts see expert_waits_test.cc.
  std::map<std::string, std::string> variables;
  if (!model::read_model_config(case_model(how.family)).moe) variables["MEGALITH_FORBID_DEVICE_WAITS"] = "1";
  const JobEnd end =
      run_job(case_command(how, transport, folder / "out"), how.ranks(), transport, how.starter, variables);
  const RunDifference found = difference_of(read_run(folder / "out"), expected);
  EXPECT_TRUE(end.first_step) << "no line tells of step 1";
  expect_agreement(how, transport, found, end);
}

}  // namespace megalith::testing
