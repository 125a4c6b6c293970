// Small checkpoints by rank threads.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "megalith/checkpoint/saver.h"
#include "megalith/io/file_io.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {

// Tensor "t" [8, 6] of 0 … 47, its columns split over tp ranks, and "norm" [5], which every rank has. `tp`: ranks in
// the group; the rest are replicas.
inline checkpoint::TensorFiles small_tensors(int tp, int tp_rank, double add = 0) {
  const at::Tensor whole = at::arange(48, at::kFloat).view({8, 6}) + add;
  const int64_t columns = 6 / tp;
  return {.stem = "model",
          .tensors = {{"t", hf::Dtype::kF32, {8, 6}}, {"norm", hf::Dtype::kF32, {5}}},
          .held = {{"t", {0, columns * tp_rank}, whole.narrow(1, columns * tp_rank, columns), 0},
                   {"norm", {0}, at::ones({5}) + add, tp_rank}}};
}

inline checkpoint::SaveRequest small_request(const parallel::ParallelContext& context,
                                             const std::filesystem::path& folder, int64_t step = 1, double add = 0,
                                             bool per_writer = false) {
  checkpoint::TensorFiles model = small_tensors(context.grid().shape().tp, context.place().tp_rank, add);
  model.per_writer = per_writer;
  return {
      .folder = folder,
      .step = step,
      .layout = checkpoint::SavedLayout::of(context.grid().shape(), false),
      .tensors = {std::move(model), checkpoint::rng_files(context, fmt::format("state of rank {}", context.rank()))},
      .other_files = [](const std::filesystem::path& to) { io::write_text_file(to / "notes.txt", "hello\n"); }};
}

// A checkpoint by two ranks that split the tensor.
inline void save_small(const std::filesystem::path& folder, int64_t step = 1, double add = 0) {
  run_ranks(2, [&](const Rank& rank) {
    const parallel::ParallelContext context(rank.world, layout::RankGrid({.world_size = 2, .tp = 2}));
    checkpoint::Saver(context).save(small_request(context, folder, step, add));
  });
}

inline void flip_byte(const std::filesystem::path& file, int64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(at);
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(at);
  stream.put(byte);
}

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace megalith::testing
