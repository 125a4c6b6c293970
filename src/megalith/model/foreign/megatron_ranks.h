// Checkpoints of Megatron-Core with one file per model-parallel rank: Megatron-LM's --ckpt-format torch and the folders
// of mcore_adapter.
//
//   mp_rank_00/model_optim_rng.pt         tensor-parallel rank
//   mp_rank_00_001/…                      and pipeline rank or, without a pipeline, expert rank
//   mp_rank_00_001_002/…                  and expert rank
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "megalith/hf/foreign/torch_file.h"
#include "megalith/model/foreign/megatron_model.h"

namespace megalith::model {

// Returns whether a folder holds such files.
bool is_megatron_rank_folder(const std::filesystem::path& folder);

// All files are mapped; tensors are put together when they are asked for.
class MegatronRanks : public MegatronModel {
 public:
  // Throws DataError naming every file that is missing, and what is not a model of Megatron-Core.
  explicit MegatronRanks(const std::filesystem::path& folder);

  std::vector<std::string> names() const override;
  bool has(const std::string& name) const override { return pieces_.contains(name); }
  at::ScalarType dtype(const std::string& name) const override;
  std::string problem(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const override;
  at::Tensor whole(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const override;
  std::vector<std::string> unread_arguments() const override { return unread_; }
  int64_t optimizer_tensors() const override { return optimizer_files_; }

 private:
  struct RankFile;
  // The parts of a tensor, by tensor-parallel rank.
  using Pieces = std::map<int64_t, at::Tensor>;
  // How the pieces make the whole: along which dimension, or not at all since all of them are the whole.
  struct Join {
    bool replicated = false;
    int64_t dim = 0;
  };
  std::vector<RankFile> find_files(size_t& numbers) const;
  void open(RankFile& file);
  int64_t count_ranks(const std::vector<RankFile>& files);  // sets tp_; returns how many share the experts
  void add_chunk(const RankFile& file, size_t chunk, int64_t first_layer, int64_t expert_ranks);
  void add(const RankFile& file, const std::string& name, const at::Tensor& value, int64_t expert_ranks,
           int64_t experts);
  std::optional<Join> join_of(const Pieces& pieces, const std::vector<int64_t>& shape, int64_t parts) const;

  std::filesystem::path folder_;
  int64_t tp_ = 1;
  std::vector<std::string> unread_;
  std::map<std::string, Pieces> pieces_;
  int64_t optimizer_files_ = 0;
};

}  // namespace megalith::model
