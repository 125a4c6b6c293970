// The classes and functions that a pickle may name. Everything stays a description, so the list is not what keeps code
// from running; it tells a checkpoint from a file that was made to attack its readers.
#include <algorithm>
#include <array>

#include "megalith/base/error.h"
#include "megalith/hf/foreign/pickle_reader.h"

namespace megalith::hf {

bool is_known_to_checkpoints(std::string_view module, std::string_view name) {
  // Harmless parts of modules that have dangerous ones.
  static constexpr std::array<std::string_view, 19> kNames{
      "builtins.getattr",  // members of enums, in some versions of Python 3.11
      "builtins.long",          "builtins.unicode", "builtins.set",    "builtins.frozenset", "builtins.bytearray",
      "builtins.complex",       "builtins.slice",   "builtins.object", "builtins.int",       "builtins.float",
      "builtins.str",           "builtins.bool",    "builtins.list",   "builtins.dict",      "_codecs.encode",
      "copyreg._reconstructor", "io.BytesIO",       "_io.BytesIO"};
  // Packages that checkpoints of the programs read here take their classes from.
  static constexpr std::array<std::string_view, 17> kPackages{
      "torch",    "megatron",    "transformer_engine", "numpy",         "collections",
      "argparse", "pathlib",     "datetime",           "enum",          "types",
      "signal",   "dataclasses", "transformers",       "mcore_adapter", "apex",
      "typing",   "uuid"};
  // Protocol 2, the default of torch.save, uses the names that these modules had in Python 2.
  const std::string_view known = module == "__builtin__" ? "builtins" : module == "copy_reg" ? "copyreg" : module;
  const std::string whole = fmt::format("{}.{}", known, name);
  if (std::ranges::find(kNames, whole) != kNames.end()) return true;
  return std::ranges::find(kPackages, module.substr(0, module.find('.'))) != kPackages.end();
}

}  // namespace megalith::hf
