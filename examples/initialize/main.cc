// initialize_megatron: turns arguments into groups, random streams and this rank's place in every parallel dimension.
//
//   RANK=0 WORLD_SIZE=4 … example_initialize --tensor_model_parallel_size=2 --pipeline_model_parallel_size=2
//
// Ranks are started by torchrun, srun or mpirun, or by hand with their variables; one process alone needs none.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/run/run_context.h"

int main(int argc, char** argv) try {
  using namespace megalith;
  const std::vector<std::string> words(argv + 1, argv + argc);

  const auto run = run::initialize_megatron(words, {.dialect = config::Dialect::kTrain, .allow_no_cuda = true});
  parallel::ParallelContext& context = run->context();

  // The ranks that share each weight matrix sum their numbers.
  const at::Tensor sum = at::full({1}, context.rank(), at::kLong);
  context.tp().all_reduce(sum);
  const layout::RankPlace& place = context.place();
  fmt::print("rank {}: tp {} of {}, pp {} of {}, dp {} of {}; sum of the ranks in my tp group: {}\n", context.rank(),
             place.tp_rank, context.tp().size(), place.pp_rank, context.pp().size(), place.dp_rank, context.dp().size(),
             sum.item<int64_t>());

  run::shutdown_megatron();
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return dynamic_cast<const megalith::ConfigError*>(&error) != nullptr ? 2 : 1;
}
