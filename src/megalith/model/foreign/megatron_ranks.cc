// Files number layers and experts from 0 in each rank. How many layers each rank has is counted, so that uneven splits
// need no settings: chunk v of pipeline rank p comes after chunk v of the ranks before p, and after all chunks before
// v.
// Experts: rank e of n has the experts e·E/n …; E is the number of rows of the router.
//
// Which dimension tensor-parallel ranks split is found by comparing their shapes with that of the whole. Where rows
// are those of gate and up, those of all gates are put together first (`parts`).
#include "megalith/model/foreign/megatron_ranks.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::model {

namespace {

namespace fs = std::filesystem;
using hf::PickleValue;

constexpr std::string_view kFolderPrefix = "mp_rank_", kLayersOfRanks = "decoder.layers.", kExperts = ".mlp.experts.";

constexpr int64_t kMostNumber = 1 << 30;  // bounds numbers in names

using NamedTensors = std::map<std::string, at::Tensor>;

// The tensors of one chunk of a model.
NamedTensors tensors_of(const hf::TorchFile& file, const PickleValue& chunk) {
  NamedTensors tensors;
  for (const auto& [key, value] : chunk.pairs) {
    if (!key->is(PickleValue::Kind::kText)) continue;
    check<DataError>(key->text != "language_model",
                     "{}: a model of Megatron-LM from before Megatron-Core (\"language_model\"); convert it with"
                     " tools/checkpoint/convert.py of Megatron-LM (--saver core) first",
                     file.name());
    const auto tensor = file.describe(*value);
    std::string name = key->text;
    if (name.starts_with("module.")) name = name.substr(std::string_view("module.").size());
    if (tensor && !is_megatron_extra(name)) tensors[name] = file.tensor(*tensor);
  }
  return tensors;
}

// Returns the number at `begin` of a name, which is followed by a dot or the end, and where it ends.
std::optional<std::pair<int64_t, size_t>> number_at(const std::string& name, size_t begin) {
  size_t end = begin;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  const auto number = parse_int(std::string_view(name).substr(begin, end - begin));
  if (!number || *number > kMostNumber) return std::nullopt;
  return std::pair{*number, end};
}

int64_t layers_of(const NamedTensors& tensors) {
  int64_t layers = 0;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(kLayersOfRanks))
      if (const auto layer = number_at(name, kLayersOfRanks.size())) layers = std::max(layers, layer->first + 1);
  return layers;
}

}  // namespace

// One file, and the ranks that its folder names.
struct MegatronRanks::RankFile {
  std::string folder;
  int64_t tp = 0, pp = 0, ep = 0;
  std::unique_ptr<const hf::TorchFile> file;
  std::vector<NamedTensors> chunks;
};

bool is_megatron_rank_folder(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().starts_with(kFolderPrefix)) return true;
  return false;
}

// Finds the folders of ranks, and which ranks their names say. A second number of two is that of the pipeline rank.
std::vector<MegatronRanks::RankFile> MegatronRanks::find_files(size_t& numbers) const {
  std::vector<RankFile> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFolderPrefix)) continue;
    std::vector<int64_t> ranks;
    for (const std::string& word : split(name.substr(kFolderPrefix.size()), '_'))
      ranks.push_back(parse_int(word).value_or(-1));
    check<DataError>(
        ranks.size() <= 3 && std::ranges::all_of(ranks, [](int64_t rank) { return rank >= 0 && rank <= kMostNumber; }),
        "{}: not the name of a folder that Megatron writes", entry.path().string());
    check<DataError>(files.empty() || ranks.size() == numbers,
                     "{}: folders of two layouts, {} and {}; remove those that do not belong to the checkpoint",
                     folder_.string(), files.empty() ? "" : files[0].folder, name);
    numbers = ranks.size();
    ranks.resize(3, 0);
    RankFile& file = files.emplace_back();
    file.folder = name;
    file.tp = ranks[0];
    file.pp = ranks[1];
    file.ep = ranks[2];
  }
  return files;
}

// Maps a file and finds the tensors of each of its chunks: "model", or "model0", "model1", … with virtual stages.
void MegatronRanks::open(RankFile& file) {
  const fs::path inside = folder_ / file.folder;
  const bool old_name = !fs::exists(inside / "model_optim_rng.pt") && fs::exists(inside / "model_rng.pt");
  file.file = std::make_unique<hf::TorchFile>(inside / (old_name ? "model_rng.pt" : "model_optim_rng.pt"));
  const PickleValue& root = file.file->root();
  if (unread_.empty()) unread_ = find_unread_arguments(root);
  if (root.find("optimizer") || fs::exists(inside / "distrib_optim.pt")) ++optimizer_files_;
  std::vector<const PickleValue*> models;
  if (const PickleValue* only = root.find("model")) models.push_back(only);
  for (int chunk = 0; const PickleValue* model = root.find(fmt::format("model{}", chunk)); ++chunk)
    models.push_back(model);
  check<DataError>(!models.empty(), "{}: it holds no \"model\"", file.file->name());
  for (const PickleValue* model : models) {
    check<DataError>(model->is_dict(), "{}: its model is not a dict", file.file->name());
    file.chunks.push_back(tensors_of(*file.file, *model));
  }
}

// Counts the ranks. Not each combination of them need be there (experts may have fewer tensor-parallel ranks), but each
// rank in each stage.
int64_t MegatronRanks::count_ranks(const std::vector<RankFile>& files) {
  int64_t pp = 1, ep = 1;
  for (const RankFile& file : files) {
    tp_ = std::max(tp_, file.tp + 1);
    pp = std::max(pp, file.pp + 1);
    ep = std::max(ep, file.ep + 1);
  }
  std::set<std::tuple<char, int64_t, int64_t>> there;
  for (const RankFile& file : files) {
    there.emplace('t', file.pp, file.tp);
    there.emplace('e', file.pp, file.ep);
  }
  // More ranks than files: at least one is missing, and a folder may say mp_rank_999999999.
  check<DataError>(std::max({tp_, pp, ep}) <= std::ssize(files),
                   "{}: {} folders of ranks, whose names count to {}; some are missing", folder_.string(), files.size(),
                   std::max({tp_, pp, ep}));
  std::vector<std::string> missing;
  for (int64_t p = 0; p < pp; ++p) {
    for (int64_t t = 0; t < tp_; ++t)
      if (!there.contains({'t', p, t}))
        missing.push_back(fmt::format("tensor-parallel rank {} of pipeline rank {}", t, p));
    for (int64_t e = 0; e < ep; ++e)
      if (!there.contains({'e', p, e})) missing.push_back(fmt::format("expert rank {} of pipeline rank {}", e, p));
  }
  check<DataError>(missing.empty(), "{}: files of ranks are missing: {}. Copy the checkpoint again", folder_.string(),
                   list_in_words(missing));
  return ep;
}

MegatronRanks::MegatronRanks(const fs::path& folder) : folder_(folder) {
  size_t numbers = 0;
  std::vector<RankFile> files = find_files(numbers);
  check<DataError>(!files.empty(), "{}: it holds no files of ranks", folder.string());
  for (RankFile& file : files) open(file);
  // Without a pipeline, the second number is the expert rank: the first rank already has the last layer.
  const auto is_last = [](const NamedTensors& chunk) { return chunk.contains("decoder.final_layernorm.weight"); };
  const auto first = std::ranges::find_if(files, [](const RankFile& file) { return file.pp == 0 && file.ep == 0; });
  if (numbers == 2 && first != files.end() && std::ranges::any_of(first->chunks, is_last))
    for (RankFile& file : files) std::swap(file.pp, file.ep);
  const int64_t expert_ranks = count_ranks(files);
  std::map<std::pair<size_t, int64_t>, int64_t> layers;  // by chunk and pipeline rank: the order of the layers
  const size_t chunks = files[0].chunks.size();
  for (const RankFile& file : files) {
    check<DataError>(file.chunks.size() == chunks, "{}: {} and {} hold {} and {} chunks of the model", folder.string(),
                     files[0].folder, file.folder, chunks, file.chunks.size());
    for (size_t chunk = 0; chunk < chunks; ++chunk) layers[{chunk, file.pp}] = layers_of(file.chunks[chunk]);
  }
  std::ranges::sort(files, {}, [](const RankFile& file) { return std::tuple(file.ep, file.pp, file.tp); });
  for (const RankFile& file : files)
    for (size_t chunk = 0; chunk < chunks; ++chunk) {
      int64_t before = 0;
      for (const auto& [place, count] : layers)
        if (place < std::pair(chunk, file.pp)) before += count;
      add_chunk(file, chunk, before, expert_ranks);
    }
}

void MegatronRanks::add_chunk(const RankFile& file, size_t chunk, int64_t first_layer, int64_t expert_ranks) {
  const NamedTensors& tensors = file.chunks[chunk];
  for (const auto& [name, value] : tensors) {
    std::string global = name;
    if (name.starts_with(kLayersOfRanks))
      if (const auto layer = number_at(name, kLayersOfRanks.size()))
        global = fmt::format("{}{}{}", kLayersOfRanks, layer->first + first_layer, name.substr(layer->second));
    int64_t experts = 0;
    if (const size_t at = name.find(kExperts); at != std::string::npos) {
      const auto router = tensors.find(name.substr(0, at) + ".mlp.router.weight");
      check<DataError>(router != tensors.end() && router->second.dim() == 2, "{}: {} has no router", file.file->name(),
                       name);
      experts = router->second.size(0);
    }
    add(file, global, value, expert_ranks, experts);
  }
}

// `experts` of the whole layer; 0 for tensors that are not of experts.
void MegatronRanks::add(const RankFile& file, const std::string& name, const at::Tensor& value, int64_t expert_ranks,
                        int64_t experts) {
  if (experts == 0) {
    pieces_[name].emplace(file.tp, value);
    return;
  }
  const size_t at = name.find(kExperts);
  const std::string block = name.substr(0, at + kExperts.size()), rest = name.substr(at + kExperts.size());
  check<DataError>(experts % expert_ranks == 0, "{}: {} experts are not shared evenly by {} ranks", file.file->name(),
                   experts, expert_ranks);
  const int64_t own = experts / expert_ranks, first = file.ep * own;
  const auto add_expert = [&](int64_t expert, const std::string& tensor, const at::Tensor& part) {
    check<DataError>(expert < own, "{}: {} is expert {} of a rank that has {}", file.file->name(), name, expert, own);
    pieces_[fmt::format("{}{}.{}", block, first + expert, tensor)].emplace(file.tp, part);
  };
  constexpr std::string_view kLocal = "local_experts.";
  if (rest.starts_with(kLocal)) {  // local_experts.3.linear_fc1.weight
    const auto expert = number_at(rest, kLocal.size());
    check<DataError>(expert && expert->second < rest.size(), "{}: {} is not a name of an expert", file.file->name(),
                     name);
    add_expert(expert->first, rest.substr(expert->second + 1), value);
  } else if (rest == "weight1" || rest == "weight2") {  // all experts of the rank, as [in, out] each
    const bool is_fc1 = rest == "weight1";
    check<DataError>(value.dim() == 2 && value.numel() > 0 && value.size(is_fc1 ? 1 : 0) % own == 0,
                     "{}: {} does not hold {} experts", file.file->name(), name, own);
    const at::Tensor stack = is_fc1 ? value.reshape({own, value.size(0), -1}) : value.reshape({own, -1, value.size(1)});
    for (int64_t expert = 0; expert < own; ++expert)
      add_expert(expert, is_fc1 ? "linear_fc1.weight" : "linear_fc2.weight", stack[expert].t());
  } else {  // linear_fc1.weight3
    const size_t digits = rest.find_last_not_of("0123456789") + 1;
    const auto expert = number_at(rest, digits);
    check<DataError>(expert.has_value(), "{}: {} is not a name of an expert", file.file->name(), name);
    add_expert(expert->first, rest.substr(0, digits), value);
  }
}

std::vector<std::string> MegatronRanks::names() const {
  std::vector<std::string> names;
  for (const auto& [name, pieces] : pieces_) names.push_back(name);
  return names;
}

at::ScalarType MegatronRanks::dtype(const std::string& name) const {
  return pieces_.at(name).begin()->second.scalar_type();
}

std::optional<MegatronRanks::Join> MegatronRanks::join_of(const Pieces& pieces, const std::vector<int64_t>& shape,
                                                          int64_t parts) const {
  const at::IntArrayRef own = pieces.begin()->second.sizes();
  if (own.size() != shape.size()) return std::nullopt;
  // The vocabulary is split whenever there are ranks to share it.
  const bool any_rows = !shape.empty() && shape[0] < 0;
  if (!any_rows && own == at::IntArrayRef(shape)) return Join{.replicated = true};
  if (std::ssize(pieces) != tp_) return std::nullopt;
  std::optional<Join> join;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d == 0 && any_rows) {
      if (own[0] < (-shape[0] + tp_ - 1) / tp_) return std::nullopt;
      join = Join{.dim = 0};
    } else if (own[d] != shape[d]) {
      if (join || own[d] * tp_ != shape[d]) return std::nullopt;
      join = Join{.dim = static_cast<int64_t>(d)};
    }
  }
  if (join && join->dim == 0 && parts > 1 && own[0] % parts != 0) return std::nullopt;
  const auto same = [&](const auto& piece) { return piece.second.sizes() == own; };
  return std::ranges::all_of(pieces, same) ? join : std::nullopt;
}

std::string MegatronRanks::problem(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const {
  const Pieces& pieces = pieces_.at(name);
  if (join_of(pieces, shape, parts)) return "";
  return fmt::format("{}: [{}] in each of {} tensor-parallel ranks, {} in the model", name,
                     fmt::join(pieces.begin()->second.sizes(), ", "), pieces.size(), expected_in_words(shape));
}

at::Tensor MegatronRanks::whole(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const {
  const Pieces& pieces = pieces_.at(name);
  const std::optional<Join> join = join_of(pieces, shape, parts);
  check(join.has_value(), "{} cannot be put together", name);
  if (join->replicated) return pieces.begin()->second;
  std::vector<at::Tensor> in_order;
  const int64_t split_parts = join->dim == 0 ? parts : 1;
  for (int64_t part = 0; part < split_parts; ++part)
    for (const auto& [rank, piece] : pieces) {
      const int64_t rows = piece.size(join->dim) / split_parts;
      in_order.push_back(piece.narrow(join->dim, part * rows, rows));
    }
  return at::cat(in_order, join->dim);
}

}  // namespace megalith::model
