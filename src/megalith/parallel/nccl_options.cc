// Reads Megatron's YAML file of NCCL settings and merges it with the options. Every problem names the file, the group
// and the key. Group names are ours; Megatron's differ for some groups and are translated.
//
//   tp: {max_ctas: 16, is_high_priority_stream: true}
//   ep_dp: {min_ctas: 4}
#include "megalith/parallel/nccl_options.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/layout/group_kind.h"

namespace megalith::parallel {

namespace {

// Returns every group that may have a communicator.
std::vector<std::string> tunable_groups() {
  std::vector<std::string> names{"world"};
  for (const layout::GroupKind kind : layout::all_group_kinds()) names.emplace_back(layout::name(kind));
  return names;
}

// Returns the groups that one word of a user means; see nccl_groups_named.
std::vector<std::string> groups_named(const std::string& word, const std::string& source) {
  static const std::map<std::string, std::string> megatron{
      {"ep_dp", "edp"}, {"intra_ep_dp", "intra_edp"}, {"inter_ep_dp", "inter_edp"}, {"mp", "tp_pp"}};
  const auto other = megatron.find(word);
  const std::string& name = other == megatron.end() ? word : other->second;
  // A pipeline has three communicators: one for collectives and one for messages in each direction.
  if (name == "pp") return {"pp", "pp_forward", "pp_backward"};
  const std::vector<std::string> known = tunable_groups();
  check<ConfigError>(std::ranges::find(known, name) != known.end(), "{}: there is no group \"{}\"; the groups are {}",
                     source, word, list_in_words(known));
  return {name};
}

// Throws with `where`, which names file, group and key.
int positive_number(const YAML::Node& value, const std::string& where) {
  int number = 0;
  check<ConfigError>(value.IsScalar() && YAML::convert<int>::decode(value, number) && number >= 1,
                     "{} must be a whole number from 1", where);
  return number;
}

// One key of one group.
void read_setting(const std::string& key, const YAML::Node& value, const std::string& where,
                  comm::NcclGroupSettings& settings) {
  if (key == "cga_cluster_size") {
    settings.cga_cluster_size = positive_number(value, where);
  } else if (key == "min_ctas") {
    settings.min_ctas = positive_number(value, where);
  } else if (key == "max_ctas") {
    settings.max_ctas = positive_number(value, where);
  } else if (key == "net_name") {
    check<ConfigError>(value.IsScalar() && !value.Scalar().empty(), "{} must be the name of a network plugin", where);
    settings.net_name = value.Scalar();
  } else if (key == "is_high_priority_stream") {
    check<ConfigError>(value.IsScalar() && YAML::convert<bool>::decode(value, settings.high_priority_stream),
                       "{} must be true or false", where);
  } else {
    throw ConfigError(
        fmt::format("{} is not a setting; there are cga_cluster_size, min_ctas, max_ctas, net_name and"
                    " is_high_priority_stream",
                    where));
  }
}

}  // namespace

comm::NcclSettings parse_nccl_config(const std::string& yaml, const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::Load(yaml);
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("{}:{}: {}", path, error.mark.line + 1, error.msg));
  }
  check<ConfigError>(root.IsMap(), "{}: expected group names with their settings (\"tp: {{max_ctas: 16}}\")", path);
  comm::NcclSettings settings;
  for (const auto& group : root) {
    const std::string word = group.first.as<std::string>();
    check<ConfigError>(group.second.IsMap(), "{}: group \"{}\" has no settings under it", path, word);
    // All keys of a group are read before they are stored, since the limits are checked together.
    comm::NcclGroupSettings one;
    for (const auto& item : group.second) {
      const std::string key = item.first.as<std::string>();
      read_setting(key, item.second, fmt::format("{}: {} of group \"{}\"", path, key, word), one);
    }
    check<ConfigError>(!one.min_ctas || !one.max_ctas || *one.min_ctas <= *one.max_ctas,
                       "{}: group \"{}\" has min_ctas {} above max_ctas {}", path, word, one.min_ctas.value_or(0),
                       one.max_ctas.value_or(0));
    for (const std::string& name : groups_named(word, path)) settings[name] = one;
  }
  return settings;
}

// Groups whose collectives a layer waits for. Gradient groups are left out: their reductions overlap with backward and
// may give way.
std::vector<std::string> default_high_priority_groups() {
  return {"tp", "cp", "ep", "etp", "tp_ep", "hcp_0", "hcp_1", "pp_forward", "pp_backward"};
}

std::vector<std::string> nccl_groups_named(std::span<const std::string> words, const std::string& option) {
  std::vector<std::string> names;
  for (const std::string& word : words)
    for (std::string& name : groups_named(word, option)) names.push_back(std::move(name));
  return names;
}

// The options come after the file, so they can only add to it.
comm::NcclSettings nccl_settings(const NcclOptions& options) {
  comm::NcclSettings settings;
  if (options.config_file) {
    const std::string& path = *options.config_file;
    std::ifstream file(path);
    std::ostringstream text;
    check<ConfigError>(file.good() && text << file.rdbuf(), "nccl_communicator_config_path: {} cannot be read", path);
    settings = parse_nccl_config(text.str(), path);
  }
  if (options.overlapped_tp && !settings.contains("tp")) settings["tp"].max_ctas = kOverlappedCtas;
  for (const std::string& name : options.high_priority_groups) settings[name].high_priority_stream = true;
  // Reductions in the switches pay off for the large sums of gradients only.
  if (options.sharp)
    for (const char* name : {"dp", "dp_cp", "intra_dp_cp"}) settings[name].sharp = true;
  return settings;
}

}  // namespace megalith::parallel
