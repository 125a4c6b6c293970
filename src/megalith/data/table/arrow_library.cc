// Opening the plug-in by its plain name lets the dynamic linker search where it searches for every library: the RPATH
// of the program (lib beside bin, in a build tree as in an installed one), then LD_LIBRARY_PATH. RTLD_LOCAL keeps the
// symbols of Arrow apart from those of libtorch.
#include "megalith/data/table/arrow_library.h"

#include <dlfcn.h>

#include "megalith/base/error.h"
#include "megalith/data/table/arrow_rows_internal.h"

namespace megalith::data {
namespace {

constexpr const char* kPluginName = "libmegalith_arrow.so";

// Returns the command that converts a file to JSON lines.
std::string convert_command(const std::filesystem::path& path, TableFormat format) {
  const std::string from = path.string();
  const std::string to = std::filesystem::path(path).replace_extension(".jsonl").string();
  return fmt::format("python -c 'from datasets import Dataset; Dataset.from_{}(\"{}\").to_json(\"{}\")'",
                     format == TableFormat::kParquet ? "parquet" : "file", from, to);
}

// Once per process: a function that is not there is looked for again, since a later file deserves the same message.
OpenArrowRows plugin(const std::filesystem::path& path, TableFormat format) {
  void* const library = ::dlopen(kPluginName, RTLD_NOW | RTLD_LOCAL);
  check<ConfigError>(library != nullptr,
                     "{}: {} files are read with Arrow's libraries, and this installation lacks them ({}). Run `make "
                     "setup`, which fetches the pyarrow wheel, and build again; or convert the file: {}",
                     path.string(), format == TableFormat::kParquet ? "Parquet" : "Arrow", ::dlerror(),
                     convert_command(path, format));
  void* const function = ::dlsym(library, kOpenArrowRowsName);
  check<ConfigError>(function != nullptr, "the {} that was found belongs to another version of Megalith ({})",
                     kPluginName, ::dlerror());
  return reinterpret_cast<OpenArrowRows>(function);
}

}  // namespace

ArrowTable::ArrowTable(const std::filesystem::path& path, TableFormat format) : path_(path) {
  const OpenArrowRows open = plugin(path, format);
  try {
    rows_.reset(open(path.c_str(), format == TableFormat::kParquet ? ArrowStorage::kParquet : ArrowStorage::kIpc));
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

ArrowTable::~ArrowTable() = default;

void ArrowTable::fail(const std::exception& error) const {
  throw DataError(fmt::format("{}: nothing after row {} can be read: {}", path_.string(), row_, error.what()));
}

bool ArrowTable::next(std::string& text, int64_t& number) {
  while (at_ == texts_.size()) {
    at_ = 0;
    try {
      if (!rows_->next(texts_)) return false;
    } catch (const std::exception& error) {
      fail(error);
    }
  }
  text = std::move(texts_[at_++]);
  number = ++row_;
  return true;
}

int64_t ArrowTable::count() const {
  try {
    return rows_->count();
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}", path_.string(), error.what()));
  }
}

}  // namespace megalith::data
