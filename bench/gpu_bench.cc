// Measures tokens per second and peak memory of whole training steps on one GPU: `megalith train` against programs that
// PyTorch experts would write.
//
//   gpu_bench [--peers torch_best.py] [--hf hf_train.py] [--mcore mcore_train.py] [--peft gpu_lora.py]
//             [--cluster FILE] [--cases gpt2-124m,llama-1b] [--rounds N] [--megalith PROGRAM]
//   gpu_bench --profile FILE [--cases …] [--megalith PROGRAM]
//
// Rounds alternate between our run and the peers' scripts, which run unmodified with the Python in MEGALITH_PYTHON.
// Weights and tokens are random; precision is bf16 with fp32 main parameters. Prints one JSON line per case: the median
// over rounds of the median over the steps after the fourth, and the seconds from exec to the first finished step and
// to the end of a run of one step, which writes the model. Names of cases:
//
//   …-fp8…      linear layers inside blocks run in fp8, the head in bf16 unless the name ends with -head; the peer is
//               the bf16 one
//   …-lora      trains an adapter of rank 16 on all linear layers; compared with our own full step, as --peft's script
//               compares its two
//   …-qlora     trains such an adapter on weights in 4 bits; compared with the adapter on weights in bf16, and with
//               --peft's script on bitsandbytes' weights
//   …-graphs    runs with cuda_graph_impl local; compared with the same run without. Those of several ranks share the
//               GPU, as in tests/nccl: the ratio counts, not the rate
//   …-experts   multiplies for experts in fp8, too; compared with the same run without
//   …-muon      updates weight matrices with Muon; compared with AdamW: 1 - ratio is the share of its step that Muon
//               takes besides what AdamW would
//   …-full      trains a whole model whose fp32 state would not fit, with two-byte gradients and state; no peer runs it
//   …-packed…   packs samples of random lengths (mean 1024, or 8192 in rows of 32k tokens; at most a row) into rows,
//               which are others in every step; compared with rows that are filled by one sample
//
// A peer without a result is reported with the last line of its output. --cluster adds the predictions of `megalith
// preview memory` and `megalith plan` with this cluster file. Without peers, only our own numbers are printed.
// --profile runs each case once, without peers, and appends the tables of three of its steps (`megalith train
// --profile`) to FILE: kernels, idle time, and products by shape with their rate.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>

#include "bench/options.h"
#include "bench/peer_process.h"
#include "bench/ranks_on_gpu.h"
#include "bench/train_inputs.h"
#include "tests/support/subprocess.h"
#include "tests/support/temp_folder.h"

namespace megalith::bench {
namespace {

using nlohmann::json;
using testing::TempFolder;

// A model as its config.json, and a batch; the same shapes as in the peers' scripts.
struct Case {
  std::string name;
  int batch, length;
  json config;
  std::vector<std::string> options;   // our options besides those of all runs
  int accumulation = 1;               // micro-batches per step
  int mean_length = 0;                // mean of the random lengths of samples, which are packed; 0: each fills a row
  std::vector<std::string> common{};  // options of both runs that are compared
  int ranks = 1;                      // processes that share the GPU, connected by NCCL
};

// The fields that llama, qwen2 and qwen3_moe share.
json llama(int vocab, int hidden, int layers, int heads, int kv_heads, int head_dim, int width, bool tied,
           double theta) {
  return {{"model_type", "llama"},
          {"vocab_size", vocab},
          {"hidden_size", hidden},
          {"intermediate_size", width},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"head_dim", head_dim},
          {"max_position_embeddings", 32768},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", theta},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", tied}};
}

// Models whose state and activations fill one GPU reasonably, and one that is so small that launches dominate.
std::vector<Case> all_cases() {
  const json gpt2{{"model_type", "gpt2"}, {"vocab_size", 50304},
                  {"n_embd", 768},        {"n_layer", 12},
                  {"n_head", 12},         {"n_positions", 1024},
                  {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0},
                  {"attn_pdrop", 0.0},    {"activation_function", "gelu_new"}};
  json qwen = llama(151936, 896, 24, 14, 2, 64, 4864, true, 1e6);
  qwen["model_type"] = "qwen2";
  json experts = llama(151936, 2048, 8, 32, 4, 128, 768, false, 1e6);
  experts.update({{"model_type", "qwen3_moe"},
                  {"num_experts", 64},
                  {"num_experts_per_tok", 8},
                  {"moe_intermediate_size", 768},
                  {"norm_topk_prob", true},
                  {"decoder_sparse_step", 1},
                  {"mlp_only_layers", json::array()},
                  {"router_aux_loss_coef", 0.0}});
  json wide_experts = llama(32000, 4096, 3, 32, 8, 128, 14336, false, 1e6);  // Mixtral's layers
  wide_experts.update({{"model_type", "mixtral"}, {"num_local_experts", 8}, {"num_experts_per_tok", 2}});
  const json small = llama(128256, 2048, 16, 32, 8, 64, 8192, true, 5e5);
  const json wide = llama(128256, 4096, 4, 32, 8, 128, 14336, false, 5e5);
  const json whole = llama(128256, 4096, 32, 32, 8, 128, 14336, false, 5e5);
  const json tiny = llama(32000, 512, 8, 8, 8, 64, 1408, true, 1e4);  // the host is slower than the device
  json few_experts = llama(32000, 512, 8, 8, 8, 64, 1408, true, 1e4);
  few_experts.update({{"model_type", "qwen3_moe"},
                      {"num_experts", 8},
                      {"num_experts_per_tok", 2},
                      {"moe_intermediate_size", 704},
                      {"norm_topk_prob", true},
                      {"decoder_sparse_step", 1},
                      {"mlp_only_layers", json::array()},
                      {"router_aux_loss_coef", 0.0}});
  const json medium = llama(32000, 1024, 20, 16, 16, 64, 2816, true, 1e4);  // 290 million parameters
  const std::vector<std::string> scaled{"--fp8=hybrid", "--fp8_recipe=delayed"};
  const std::vector<std::string> dropout{"--hidden_dropout=0.1"};
  const std::vector<std::string> graphs{"--cuda_graph_impl=local"};
  const std::vector<std::string> lean{"--recompute_granularity=selective", "--recompute_modules=mlp_act"};
  const std::vector<std::string> two_bytes{"--use_distributed_optimizer", "--use_precision_aware_optimizer",
                                           "--main_grads_dtype=bf16", "--exp_avg_dtype=bf16",
                                           "--exp_avg_sq_dtype=bf16"};
  return {{"gpt2-124m", 64, 1024, gpt2, {}},
          {"llama-1b", 4, 4096, small, {}},
          {"llama-1b-lora", 4, 4096, small, {"--finetuning_type=lora", "--lora_rank=16", "--lora_target=all"}},
          {"llama-8b-lora", 4, 4096, whole, {"--finetuning_type=lora", "--lora_rank=16", "--lora_target=all"}},
          {"llama-8b-qlora",
           2,
           4096,
           whole,
           {"--quantization_bit=4"},
           1,
           0,
           {"--finetuning_type=lora", "--lora_rank=16", "--lora_target=all"}},
          {"llama-1b-fp8", 4, 4096, small, {"--fp8=hybrid"}},
          {"llama-1b-fp8-head", 4, 4096, small, {"--fp8=hybrid", "--fp8_head"}},
          {"llama-1b-packed", 4, 4096, small, {"--sequence_packing"}, 1, /*mean_length=*/1024},
          {"llama-1b-32k-packed", 1, 32768, small, {"--sequence_packing"}, 1, /*mean_length=*/8192},
          {"qwen2.5-0.5b", 8, 4096, qwen, {}},
          {"llama-8b-4layer", 4, 4096, wide, lean},
          {"llama-8b-4layer-fp8", 4, 4096, wide, {"--fp8=hybrid"}},
          {"llama-8b-4layer-fp8-head", 4, 4096, wide, {"--fp8=hybrid", "--fp8_head"}},
          {"llama-8b-4layer-fp8-delayed", 4, 4096, wide, {"--fp8=hybrid", "--fp8_recipe=delayed"}},
          {"llama-8b-4layer-fp8-blockwise", 4, 4096, wide, {"--fp8=e4m3", "--fp8_recipe=blockwise"}},
          {"llama-8b-full", 2, 4096, whole, two_bytes},
          {"llama-8b-full-fp8", 2, 4096, whole, two_bytes, 1, 0, {"--fp8=hybrid"}},
          {"llama-300m-muon", 8, 2048, medium, {"--optimizer=muon"}, 8},
          {"moe-small", 4, 4096, experts, {}},
          {"moe-small-fp8", 4, 4096, experts, {"--fp8=hybrid"}},
          {"moe-small-fp8-head", 4, 4096, experts, {"--fp8=hybrid", "--fp8_head"}},
          {"llama-40m-graphs", 2, 512, tiny, graphs},
          {"llama-40m-accumulated-graphs", 2, 512, tiny, graphs, 8},
          {"llama-40m-fp8-graphs", 2, 512, tiny, graphs, 1, 0, scaled},
          {"llama-40m-dropout-graphs", 2, 512, tiny, graphs, 1, 0, dropout},
          {"moe-small-fp8-experts", 4, 4096, experts, {"--fp8_experts"}, 1, 0, {"--fp8=hybrid", "--fp8_head"}},
          {"moe-wide-fp8-experts", 4, 4096, wide_experts, {"--fp8_experts"}, 1, 0, {"--fp8=hybrid", "--fp8_head"}},
          {"moe-40m-graphs", 2, 512, few_experts, graphs},
          {"llama-40m-dp2-graphs", 2, 512, tiny, graphs, 8, 0, {}, /*ranks=*/2}};
}

// Scripts of peers, and what to run; an empty path leaves that peer out.
struct Settings {
  std::string peers, hf, mcore, peft, cluster, cases, profile, megalith = MEGALITH_PROGRAM;
  int rounds = 2;
};

// Medians of one run.
struct Measured {
  double tokens_per_second = 0, peak_gib = 0;
};

// Four steps cover allocation, autotuning and the recording of graphs.
constexpr int kSteps = 14, kWarmUp = 4;

// Four steps' worth of data, which epochs repeat; enough for all steps where samples are packed, since rows of new
// lengths cost more than those that were seen before. A row has one token more than its length, because labels are
// shifted.
void write_inputs(const Case& c, const TempFolder& folder) {
  std::ofstream(folder / "config.json") << c.config.dump();
  std::mt19937 random(1);
  const unsigned ids_below = std::min(50257U, c.config.at("vocab_size").get<unsigned>());
  std::ofstream data(folder / "data.jsonl");
  const bool packed = c.mean_length > 0;
  std::exponential_distribution<double> short_length(1.0 / (packed ? c.mean_length : 1));
  const int64_t steps = packed ? kSteps + 2 : 4;
  for (int64_t left = steps * c.batch * c.accumulation * c.length; left > 0;) {
    const int length = packed ? std::clamp(static_cast<int>(short_length(random)), 16, c.length) : c.length + 1;
    left -= packed ? length : c.length;
    json ids = json::array();
    for (int i = 0; i < length; ++i) ids.push_back(random() % ids_below);
    data << json{{"input_ids", std::move(ids)}}.dump() << '\n';
  }
}

// Returns the options that a run and its plan share.
std::vector<std::string> shape_words(const Case& c) {
  std::vector<std::string> words{"--bf16", "--cross_entropy_loss_fusion", fmt::format("--cutoff_len={}", c.length),
                                 fmt::format("--per_device_train_batch_size={}", c.batch),
                                 fmt::format("--gradient_accumulation_steps={}", c.accumulation)};
  for (const auto& some : {c.common, c.options}) words.insert(words.end(), some.begin(), some.end());
  return words;
}

// The hyperparameters do not matter for speed; they are the same in every case.
std::vector<std::string> our_command(const Settings& s, const Case& c, const TempFolder& folder, int steps) {
  std::vector<std::string> words{s.megalith,
                                 "train",
                                 "--train_from_scratch",
                                 "--finetuning_type=full",
                                 "--save_strategy=no",
                                 "--logging_steps=1",
                                 "--model_name_or_path=" + folder.path().string(),
                                 "--dataset=" + (folder / "data.jsonl").string(),
                                 "--output_dir=" + (folder / "out").string(),
                                 "--overwrite_output_dir",
                                 fmt::format("--max_steps={}", steps),
                                 fmt::format("--num_train_epochs={}", steps),
                                 "--learning_rate=1e-4",
                                 "--lr_scheduler_type=constant",
                                 "--adam_beta2=0.95",
                                 "--weight_decay=0.1",
                                 "--max_grad_norm=1.0"};
  for (std::string& word : shape_words(c)) words.push_back(std::move(word));
  return words;
}

Measured run_ours(const Settings& s, const Case& c, const TempFolder& folder) {
  const auto result = run_ranks_on_gpu(our_command(s, c, folder, kSteps), c.ranks, std::chrono::minutes(5));
  if (result.exit_code != 0) throw std::runtime_error("megalith train failed:\n" + result.err);
  // The zero stands for a run without any rate, whose median would not exist.
  std::vector<double> rates{0};
  Measured measured;
  std::ifstream lines(folder / "out" / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json metrics = json::parse(line);
    if (!metrics.contains("tokens_per_second")) continue;
    measured.peak_gib = std::max(measured.peak_gib, metrics.value("memory", 0.0) / (1 << 30));
    if (metrics.at("step").get<int>() > kWarmUp) rates.push_back(metrics.at("tokens_per_second"));
  }
  if (rates.size() > 1) rates.erase(rates.begin());
  measured.tokens_per_second = median(rates);
  return measured;
}

// A program to compare with: the prefix of its numbers, its script, and its words besides model and shape.
struct Peer {
  std::string name, script;
  std::vector<std::string> words;
};

// Each peer in its fastest configuration.
std::vector<Peer> peers_of(const Settings& s) {
  std::vector<Peer> all;
  if (!s.peers.empty()) all.push_back({"peer", s.peers, {"--compile", "default", "--attn", "best"}});
  if (!s.hf.empty()) all.push_back({"hf", s.hf, {"--mode", "eager", "--precision", "bf16", "--attn", "best"}});
  if (!s.mcore.empty()) all.push_back({"mcore", s.mcore, {"--attn", "cudnn"}});
  return all;
}

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "nothing";
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? -1 : begin));
}

// Returns the first line of a script's output that is an object with `key`. Throws its last line of stderr if there is
// none.
json run_script(const std::string& script, const std::vector<std::string>& words, const std::string& key) {
  std::vector<std::string> command{peer_python(), script};
  command.insert(command.end(), words.begin(), words.end());
  const auto result = testing::run_process(command, {}, std::chrono::minutes(5));
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (row.is_object() && row.contains(key)) return row;
  }
  throw std::runtime_error(last_line(result.err));
}

// Peers have no fp8 form, so they run the bf16 case of the same name.
Measured run_peer(const Peer& peer, const Case& c) {
  std::vector<std::string> words{"--model", c.name.substr(0, c.name.find("-fp8")),
                                 "--batch", std::to_string(c.batch),
                                 "--seq",   std::to_string(c.length)};
  words.insert(words.end(), peer.words.begin(), peer.words.end());
  const json row = run_script(peer.script, words, "tok_s");
  return {row.at("tok_s"), row.value("peak_gib", 0.0)};
}

// Adds the planner's predictions for the case, if it supports such runs.
void add_plan(const Settings& s, const Case& c, const TempFolder& folder, json& line) {
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.begin(), s.megalith);
    words.insert(words.end(), {"--model", folder.path().string(), "--gpu", s.cluster, "--json"});
    for (std::string& word : shape_words(c)) words.push_back(std::move(word));
    return json::parse(testing::run_process(words).out, nullptr, /*allow_exceptions=*/false);
  };
  const json memory = ask({"preview", "memory", "--world-size", "1"});
  if (memory.is_object()) line["planned_gib"] = memory.at("peak").get<double>() / (1 << 30);
  const json layouts = ask({"plan", "--gpus", "1", "--best", "1", fmt::format("--global_batch_size={}", c.batch)});
  if (layouts.is_object() && !layouts.at("best").empty())
    line["planned_tokens_per_second"] = layouts.at("best").at(0).at("time").at("tokens_per_second");
}

void print(const json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

// A peer that fails does not end the comparison: its error becomes part of the line.
void run(const Settings& s, const Case& c) {
  const TempFolder folder;
  write_inputs(c, folder);
  std::vector<double> ours, gib;
  std::map<std::string, std::vector<double>> peer_rates, peer_gib;
  json line{{"bench", "gpu"}, {"case", c.name}};
  for (int round = 0; round < s.rounds; ++round) {
    const Measured own = run_ours(s, c, folder);
    ours.push_back(own.tokens_per_second);
    gib.push_back(own.peak_gib);
    for (const Peer& peer : peers_of(s)) try {
        const Measured measured = run_peer(peer, c);
        peer_rates[peer.name].push_back(measured.tokens_per_second);
        peer_gib[peer.name].push_back(measured.peak_gib);
      } catch (const std::runtime_error& error) {
        line[peer.name + "_error"] = error.what();
      }
  }
  std::vector<double> first_step, end;
  for (int round = 0; round < s.rounds; ++round) {
    const TimeTo times = time_to("step 1/1", our_command(s, c, folder, 1));
    first_step.push_back(times.text);
    end.push_back(times.end);
  }
  line.update({{"tokens_per_second", median(ours)},
               {"peak_gib", median(gib)},
               {"seconds_to_first_step", median(first_step)},
               {"seconds_of_one_step_run", median(end)}});
  for (const auto& [name, rates] : peer_rates)
    line.update({{name + "_tokens_per_second", median(rates)},
                 {name + "_peak_gib", median(peer_gib[name])},
                 {name + "_ratio", median(ours) / median(rates)}});
  if (!s.cluster.empty()) add_plan(s, c, folder, line);
  print(line);
}

// Tokens per second of a case, with and without its special options.
struct WithAndWithout {
  double with = 0, without = 0;
};
// Both kinds run in every round, so that clocks and temperature are the same for them.
WithAndWithout run_with_and_without(const Settings& s, const Case& c, const std::function<void()>& each_round = {}) {
  Case plain = c;
  plain.options.clear();
  plain.mean_length = 0;
  const TempFolder folder, plain_folder;
  write_inputs(c, folder);
  write_inputs(plain, plain_folder);
  std::vector<double> with, without;
  for (int round = 0; round < s.rounds; ++round) {
    without.push_back(run_ours(s, plain, plain_folder).tokens_per_second);
    with.push_back(run_ours(s, c, folder).tokens_per_second);
    if (each_round) each_round();
  }
  return {median(with), median(without)};
}

// Compares a step that trains an adapter with a step that trains every weight, ours and peft's.
void run_adapter(const Settings& s, const Case& c) {
  const TempFolder folder;
  std::ofstream(folder / "config.json") << c.config.dump();
  std::vector<double> peer;
  json line{{"bench", "gpu"}, {"case", c.name}};
  const WithAndWithout ours = run_with_and_without(s, c, [&] {
    if (s.peft.empty()) return;
    const std::vector<std::string> words{(folder / "config.json").string(), std::to_string(c.batch),
                                         std::to_string(c.length), "16"};
    try {
      const json row = run_script(s.peft, words, "lora_ms");
      peer.push_back(row.at("lora_ms").get<double>() / row.at("full_ms").get<double>());
    } catch (const std::runtime_error& error) {
      line["peft_error"] = error.what();
    }
  });
  line.update({{"full_tokens_per_second", ours.without},
               {"lora_tokens_per_second", ours.with},
               {"lora_step_of_full_step", ours.without / ours.with}});
  if (!peer.empty()) line["peft_lora_step_of_full_step"] = median(peer);
  print(line);
}

// Compares an adapter on weights in 4 bits with one on weights in bf16, and with peft's on bitsandbytes' weights.
void run_quantized(const Settings& s, const Case& c) {
  Case dense = c;
  dense.options.clear();
  const TempFolder folder;
  write_inputs(c, folder);
  std::map<std::string, std::vector<double>> rates, gib;
  json line{{"bench", "gpu"}, {"case", c.name}};
  const auto keep = [&](const std::string& prefix, const Measured& run) {
    rates[prefix].push_back(run.tokens_per_second);
    gib[prefix].push_back(run.peak_gib);
  };
  for (int round = 0; round < s.rounds; ++round) {
    keep("", run_ours(s, c, folder));
    keep("without_", run_ours(s, dense, folder));
    if (s.peft.empty()) continue;
    const std::vector<std::string> words{(folder / "config.json").string(), std::to_string(c.batch),
                                         std::to_string(c.length), "16", "nf4"};
    try {
      const json row = run_script(s.peft, words, "lora_ms");
      keep("peft_", {1000.0 * c.batch * c.length / row.at("lora_ms").get<double>(), row.at("peak_gib")});
    } catch (const std::runtime_error& error) {
      line["peft_error"] = error.what();
    }
  }
  for (const auto& [prefix, all] : rates) {
    line[prefix + "tokens_per_second"] = median(all);
    line[prefix + "peak_gib"] = median(gib[prefix]);
    if (!prefix.empty()) line[prefix + "ratio"] = median(rates[""]) / median(all);
  }
  print(line);
}

// Compares runs with and without graphs, with packed and full rows, with Muon and AdamW, or with experts in fp8 and
// bf16.
void run_both(const Settings& s, const Case& c) {
  const WithAndWithout ours = run_with_and_without(s, c);
  print({{"bench", "gpu"},
         {"case", c.name},
         {"tokens_per_second", ours.with},
         {"without_tokens_per_second", ours.without},
         {"ratio", ours.with / ours.without}});
}

// Appends the tables of the last three steps of a short run to the file.
void run_profile(const Settings& s, const Case& c) {
  const TempFolder folder;
  write_inputs(c, folder);
  const int last = kWarmUp + 3;
  std::vector<std::string> words = our_command(s, c, folder, last);
  words.insert(words.end(), {"--profile", fmt::format("--profile_step_start={}", kWarmUp),
                             fmt::format("--profile_step_end={}", last)});
  const auto result = testing::run_process(words, {}, std::chrono::minutes(5));
  if (result.exit_code != 0) throw std::runtime_error("megalith train failed:\n" + result.err);
  std::ifstream tables(folder / "out" / "profile" / "rank-0.txt");
  std::ofstream(s.profile, std::ios::app) << "==== " << c.name << '\n' << tables.rdbuf() << '\n';
  print({{"bench", "gpu"}, {"case", c.name}, {"profile", s.profile}});
}

Settings parse(int argc, char** argv) {
  Settings s;
  read_options(argc, argv,
               {{"--peers", &s.peers},
                {"--hf", &s.hf},
                {"--mcore", &s.mcore},
                {"--peft", &s.peft},
                {"--cluster", &s.cluster},
                {"--cases", &s.cases},
                {"--profile", &s.profile},
                {"--rounds", &s.rounds},
                {"--megalith", &s.megalith}});
  // Commas around it make a search for ",name," exact.
  if (!s.cases.empty()) s.cases = "," + s.cases + ",";
  return s;
}

}  // namespace
}  // namespace megalith::bench

int main(int argc, char** argv) try {
  const megalith::bench::Settings settings = megalith::bench::parse(argc, argv);
  for (const auto& each : megalith::bench::all_cases()) {
    if (!settings.cases.empty() && settings.cases.find("," + each.name + ",") == std::string::npos) continue;
    if (!settings.profile.empty())
      megalith::bench::run_profile(settings, each);
    else if (each.name.ends_with("-lora"))
      megalith::bench::run_adapter(settings, each);
    else if (each.name.ends_with("-qlora"))
      megalith::bench::run_quantized(settings, each);
    else if (each.name.ends_with("-graphs") || each.name.ends_with("-packed") || each.name.ends_with("-muon") ||
             each.name.ends_with("-experts"))
      megalith::bench::run_both(settings, each);
    else
      megalith::bench::run(settings, each);
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "gpu_bench: {}\n", error.what());
  return 1;
}
