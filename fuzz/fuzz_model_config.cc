#include <nlohmann/json.hpp>

#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/model/families/family.h"

namespace megalith::fuzz {

void model_config(std::string_view input) {
  try {
    const model::ModelConfig config = model::read_model_config(io::parse_json_file(input, "config.json"));
    check(model::problems(config).empty(), "a configuration with problems was let through");
    check(model::name_map(config).ignored.size() < 100, "a name map that depends on sizes");
    // Reading the configuration again gives the same result.
    const auto again = model::read_model_config(io::parse_json_file(config.source->dump(), "config.json"));
    check(again.family == config.family && again.windows == config.windows && again.head_dim == config.head_dim,
          "another configuration after writing and reading");
  } catch (const DataError& error) {
    check(std::string_view(error.what()).find("config.json") != std::string_view::npos,
          "a message that does not name the file: {}", error.what());
  } catch (const ConfigError&) {  // a model that is not supported, or cannot be in this way
  }
}

}  // namespace megalith::fuzz
