#include "megalith/base/error.h"

namespace megalith::detail {

// Paths start at megalith/, wherever the tree was built.
std::string with_location(std::string message, const std::source_location& where) {
  std::string_view file = where.file_name();
  if (const auto at = file.rfind("megalith/"); at != std::string_view::npos) file = file.substr(at);
  return fmt::format("{} [internal error at {}:{}; please report it]", message, file, where.line());
}

}  // namespace megalith::detail
