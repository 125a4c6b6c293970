// Presets, the YAML form of a cluster, and the two speed formulas that all predictions rest on.
//
// A matrix product reaches a speed that depends on its size, so speed is a curve over the number of operations, linear
// in their logarithm between measured points. Everything else is bound by memory: bytes over bandwidth. Both take at
// least launch_s.
#include "megalith/plan/cluster.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"

namespace megalith::plan {

namespace {

// A cluster file has twenty lines; anything of more than a megabyte is another file.
constexpr uint64_t kMaxFileBytes = 1 << 20;

// Square products of 256 … 8192 at the shares of full speed that recent GPUs reach.
std::vector<SpeedPoint> gemm_curve(double full) {
  std::vector<SpeedPoint> points;
  for (const auto& [size, part] : {std::pair(256.0, 0.02), std::pair(512.0, 0.12), std::pair(1024.0, 0.45),
                                   std::pair(2048.0, 0.80), std::pair(4096.0, 0.95), std::pair(8192.0, 1.0)})
    points.push_back({2 * size * size * size, part * full});
  return points;
}

// Speeds in FLOP/s and bytes/s; `gemm` and `attention` are reached ones, the others from data sheets.
Cluster gpu_preset(const char* name, double memory_gib, double peak, double gemm, double attention, double bandwidth,
                   double intra, double inter) {
  Cluster c;
  c.gpu = name;
  c.memory_bytes = memory_gib * kGiB;
  // Bandwidths are taken at the share of the data sheet's values that is reached in practice.
  c.reserved_bytes = 0.06 * c.memory_bytes;
  c.peak_flops = peak;
  c.gemm = gemm_curve(gemm);
  c.fp32_factor = 0.5;  // TF32
  c.attention_flops = attention;
  c.attention_backward_flops = 0.75 * attention;
  c.memory_bytes_per_second = 0.6 * bandwidth;
  c.launch_s = 4e-6;
  c.intra = {0.8 * intra, 8e-6};
  c.inter = {0.8 * inter, 15e-6};
  c.host_bytes_per_second = 25e9;
  c.storage_bytes_per_second = 5e9;
  return c;
}

// A small CPU machine, for tests and for plans of the examples. The speeds are orders of magnitude.
Cluster cpu_preset() {
  Cluster c;
  c.gpu = "cpu";
  c.cuda = false;
  c.memory_bytes = 16 * kGiB;
  c.reserved_bytes = 0.5 * kGiB;
  c.peak_flops = 1e12;
  c.gemm = {{2e6, 5e10}, {2e9, 3e11}, {2e11, 5e11}};
  c.fp32_factor = 0.33;
  c.attention_flops = 1e11;
  c.attention_backward_flops = 1e11;
  c.memory_bytes_per_second = 1e10;
  c.launch_s = 2e-6;
  c.intra = {2e9, 5e-5};
  c.inter = {1e9, 1e-4};
  c.host_bytes_per_second = 1e10;
  c.storage_bytes_per_second = 5e8;
  c.gpus_per_node = 1;
  return c;
}

// Peaks are from the makers' data sheets; reached speeds are those of our kernels on an H200, scaled by peak and
// bandwidth.
const std::vector<Cluster>& presets() {
  static const std::vector<Cluster> table{
      gpu_preset("a100-80g", 79.2, 312e12, 205e12, 180e12, 2.04e12, 300e9, 25e9),
      gpu_preset("h100-80g", 79.6, 989e12, 650e12, 520e12, 3.35e12, 450e9, 50e9),
      gpu_preset("h200", 139.8, 989e12, 650e12, 560e12, 4.8e12, 450e9, 50e9),
      gpu_preset("b200", 178.4, 2250e12, 1480e12, 1150e12, 8.0e12, 900e9, 50e9),
      cpu_preset(),
  };
  return table;
}

// ---- YAML: one table of fields for both directions -----------------------------------------------------------

// A number of the file, its unit, and the member that it sets.
struct Field {
  const char* name;
  double scale;  // value = number in the file * scale
  std::function<double&(Cluster&)> of;
  bool may_be_zero = false;
};

// The order is that of the written file. Numbers that may be zero are latencies and reserves.
const std::vector<Field>& fields() {
  static const std::vector<Field> table{
      {"memory_gib", kGiB, [](Cluster& c) -> double& { return c.memory_bytes; }},
      {"reserved_gib", kGiB, [](Cluster& c) -> double& { return c.reserved_bytes; }, true},
      {"peak_tflops", 1e12, [](Cluster& c) -> double& { return c.peak_flops; }},
      {"fp32_factor", 1, [](Cluster& c) -> double& { return c.fp32_factor; }},
      {"attention_tflops", 1e12, [](Cluster& c) -> double& { return c.attention_flops; }},
      {"attention_backward_tflops", 1e12, [](Cluster& c) -> double& { return c.attention_backward_flops; }},
      {"memory_gb_per_s", 1e9, [](Cluster& c) -> double& { return c.memory_bytes_per_second; }},
      {"launch_us", 1e-6, [](Cluster& c) -> double& { return c.launch_s; }, true},
      {"intra_gb_per_s", 1e9, [](Cluster& c) -> double& { return c.intra.bytes_per_second; }},
      {"intra_latency_us", 1e-6, [](Cluster& c) -> double& { return c.intra.latency_s; }, true},
      {"inter_gb_per_s", 1e9, [](Cluster& c) -> double& { return c.inter.bytes_per_second; }},
      {"inter_latency_us", 1e-6, [](Cluster& c) -> double& { return c.inter.latency_s; }, true},
      {"host_gb_per_s", 1e9, [](Cluster& c) -> double& { return c.host_bytes_per_second; }},
      {"storage_gb_per_s", 1e9, [](Cluster& c) -> double& { return c.storage_bytes_per_second; }},
  };
  return table;
}

// Reads a parsed file. Fields that are not given keep the value of the preset that `gpu` names.
class Reader {
 public:
  Reader(const YAML::Node& root, std::string name) : root_(root), name_(std::move(name)) {}

  Cluster read() {
    check<ConfigError>(root_.IsMap(), "{} is not a cluster file: it must be a map of fields, such as gpu: h200", name_);
    Cluster cluster;
    if (const auto base = root_["gpu"]) cluster = based_on(text(base, "gpu"));
    if (const auto cuda = root_["cuda"]) cluster.cuda = text(cuda, "cuda") != "false";
    for (const Field& field : fields())
      if (const auto node = root_[field.name])
        field.of(cluster) = number(node, field.name, field.may_be_zero) * field.scale;
    cluster.gpus_per_node = whole("gpus_per_node", cluster.gpus_per_node);
    cluster.nodes = whole("nodes", cluster.nodes);
    if (const auto node = root_["gemm_tflops"]) cluster.gemm = points(node);
    check_names();
    check_complete(cluster);
    return cluster;
  }

 private:
  template <typename... Args>
  // Throws "file:line: …".
  [[noreturn]] void refuse(const YAML::Node& node, fmt::format_string<Args...> what, Args&&... args) const {
    throw ConfigError(
        fmt::format("{}:{}: {}", name_, node.Mark().line + 1, fmt::format(what, std::forward<Args>(args)...)));
  }
  std::string text(const YAML::Node& node, const char* field) const {
    if (!node.IsScalar()) refuse(node, "{} must be one word", field);
    return node.Scalar();
  }
  double number(const YAML::Node& node, const char* field, bool may_be_zero) const {
    const auto value = parse_double(text(node, field));
    if (!value || !std::isfinite(*value) || *value < 0 || (*value == 0 && !may_be_zero))
      refuse(node, "{} is {}; it must be a {} number", field, node.Scalar(), may_be_zero ? "non-negative" : "positive");
    return *value;
  }
  // Returns the field as a whole number, or `otherwise` if it is not given.
  int whole(const char* field, int otherwise) const {
    const auto node = root_[field];
    if (!node) return otherwise;
    const auto value = parse_int(text(node, field));
    if (!value || *value < 1 || *value > layout::kMaxGridSize)
      refuse(node, "{} is {}; it must be a whole number from 1 to {}", field, node.Scalar(), layout::kMaxGridSize);
    return static_cast<int>(*value);
  }
  // Reads a map from the edge of a square product to its TFLOP/s.
  std::vector<SpeedPoint> points(const YAML::Node& node) const {
    if (!node.IsMap() || node.size() == 0)
      refuse(node, "gemm_tflops must be a map from the edge of a square product to TFLOP/s, such as {{1024: 200}}");
    std::map<double, double> sorted;
    for (const auto& item : node) {
      const double edge = number(item.first, "an edge of gemm_tflops", false);
      sorted[2 * edge * edge * edge] = number(item.second, "gemm_tflops", false) * 1e12;
    }
    std::vector<SpeedPoint> result;
    for (const auto& [flop, speed] : sorted) result.push_back({flop, speed});
    return result;
  }
  // Starts from a preset; any other name starts from an empty cluster, whose fields must then all be given.
  static Cluster based_on(const std::string& gpu) {
    const auto found = std::ranges::find(presets(), gpu, &Cluster::gpu);
    if (found != presets().end()) return *found;
    Cluster own;
    own.gpu = gpu;
    return own;
  }
  // A misspelled field would silently leave the preset's value in place.
  void check_names() const {
    std::vector<std::string> known{"gpu", "cuda", "gpus_per_node", "nodes", "gemm_tflops"};
    for (const Field& field : fields()) known.emplace_back(field.name);
    for (const auto& item : root_) {
      const std::string key = item.first.Scalar();
      if (std::ranges::find(known, key) != known.end()) continue;
      const auto near = nearest(key, known, 1);
      refuse(item.first, "{} is not a field of a cluster{}; fields: {}", key,
             near.empty() ? "" : fmt::format(" (did you mean {}?)", near[0]), list_in_words(known, known.size()));
    }
  }
  // A preset has everything; a cluster of another name must give every number that has no natural zero.
  void check_complete(Cluster& cluster) const {
    std::vector<std::string> missing;
    for (const Field& field : fields())
      if (!field.may_be_zero && field.of(cluster) <= 0) missing.emplace_back(field.name);
    if (cluster.gemm.empty()) missing.emplace_back("gemm_tflops");
    check<ConfigError>(missing.empty(), "{}: gpu \"{}\" is not a preset ({}), and {} {} not given", name_, cluster.gpu,
                       list_in_words(cluster_presets()), list_in_words(missing), missing.size() == 1 ? "is" : "are");
    check<ConfigError>(cluster.reserved_bytes < cluster.memory_bytes,
                       "{}: reserved_gib {:.1f} leaves nothing of memory_gib {:.1f}", name_,
                       cluster.reserved_bytes / kGiB, cluster.memory_bytes / kGiB);
  }

  const YAML::Node& root_;
  std::string name_;
};

}  // namespace

double Cluster::gemm_seconds(double m, double n, double k, bool fp32) const {
  const double flop = 2 * m * n * k;
  if (flop <= 0) return 0;
  double speed = gemm.front().flops_per_second;
  if (flop <= gemm.front().flop) {
    speed *= flop / gemm.front().flop;  // a small product takes as long as the smallest measured one
  } else if (flop >= gemm.back().flop) {
    speed = gemm.back().flops_per_second;
  } else {
    // Linear in the logarithm of the work between the two neighboring points.
    const auto above = std::ranges::upper_bound(gemm, flop, {}, &SpeedPoint::flop);
    const auto below = above - 1;
    const double part = std::log(flop / below->flop) / std::log(above->flop / below->flop);
    speed = below->flops_per_second + part * (above->flops_per_second - below->flops_per_second);
  }
  return std::max(launch_s, flop / (speed * (fp32 ? fp32_factor : 1)));
}

double Cluster::memory_seconds(double bytes) const { return std::max(launch_s, bytes / memory_bytes_per_second); }

std::vector<std::string> cluster_presets() {
  std::vector<std::string> names;
  for (const Cluster& preset : presets()) names.push_back(preset.gpu);
  return names;
}

// Presets in any case ("H100-80G"); anything else must look like a file, so that a typo gets a suggestion.
Cluster find_cluster(const std::string& preset_or_file) {
  const std::string lower = to_lower(preset_or_file);
  const auto found = std::ranges::find(presets(), lower, &Cluster::gpu);
  if (found != presets().end()) return *found;
  const bool file = preset_or_file.ends_with(".yaml") || preset_or_file.ends_with(".yml");
  const auto near = nearest(lower, cluster_presets(), 1);
  check<ConfigError>(file,
                     "\"{}\" is not a known GPU kind{}; use {}, or a cluster file (.yaml), which"
                     " `megalith doctor --measure` writes",
                     preset_or_file, near.empty() ? "" : fmt::format(" (did you mean {}?)", near[0]),
                     list_in_words(cluster_presets()));
  return parse_cluster(io::read_text_file(preset_or_file, kMaxFileBytes), preset_or_file);
}

Cluster parse_cluster(const std::string& yaml, const std::string& name) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("{}:{}: {}", name, error.mark.line + 1, error.msg));
  }
  return Reader(root, name).read();
}

// The inverse of parse_cluster: the speed curve is written by the edge of a square product, (flop / 2)^(1/3).
std::string to_yaml(const Cluster& cluster) {
  std::string text = fmt::format("gpu: {}\ncuda: {}\ngpus_per_node: {}\nnodes: {}\n", cluster.gpu, cluster.cuda,
                                 cluster.gpus_per_node, cluster.nodes);
  Cluster copy = cluster;
  for (const Field& field : fields()) text += fmt::format("{}: {}\n", field.name, field.of(copy) / field.scale);
  text += "gemm_tflops:  # of square products, by their edge\n";
  for (const SpeedPoint& point : cluster.gemm)
    text += fmt::format("  {:.0f}: {}\n", std::cbrt(point.flop / 2), point.flops_per_second / 1e12);
  return text;
}

}  // namespace megalith::plan
