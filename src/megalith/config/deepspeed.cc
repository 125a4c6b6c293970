#include "megalith/config/deepspeed_internal.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace megalith::config {

namespace {

using nlohmann::json;

// Returns the member of an object, or null if there is none or `object` is not an object.
json member(const json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : json();
}

}  // namespace

DeepspeedRequest read_deepspeed(const JsonObject& file) {
  DeepspeedRequest request;
  const json root = json::parse(file.text);
  const json zero = member(root, "zero_optimization");
  const json stage = member(zero, "stage");
  const bool known = stage.is_null() || (stage.is_number_integer() && stage >= 0 && stage <= 3);
  if (!known) {
    request.problems.push_back(
        fmt::format("deepspeed: zero_optimization.stage is {}; Megalith takes 0, 1 and 2", stage.dump()));
  } else if (stage == 3) {
    request.problems.emplace_back(
        "deepspeed asks for ZeRO stage 3, which shards parameters; Megalith shards optimizer state (stage 1 or 2) and "
        "splits models with tensor_model_parallel_size and pipeline_model_parallel_size");
  } else if (!stage.is_null()) {
    request.shards_optimizer = stage >= 1;
  }
  const json device = member(member(zero, "offload_optimizer"), "device");
  if (device == "cpu")
    request.offloads_optimizer = true;
  else if (!device.is_null() && device != "none")
    request.problems.push_back(
        fmt::format("deepspeed: offload_optimizer.device is {}; Megalith offloads to the cpu only", device.dump()));
  for (const char* section : {"optimizer", "scheduler"})
    if (root.contains(section))
      request.problems.push_back(fmt::format(
          "deepspeed: the section {} is not read; leave it out and set learning_rate, lr_scheduler_type and the "
          "other options of training",
          section));
  return request;
}

}  // namespace megalith::config
