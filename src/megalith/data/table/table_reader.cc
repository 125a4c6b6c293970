#include "megalith/data/table/table_reader.h"

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/data/table/arrow_library.h"
#include "megalith/data/table/csv_file.h"
#include "megalith/data/table/row_spool.h"

namespace megalith::data {
namespace {

TableFormat required_format(const std::filesystem::path& path) {
  const auto format = table_format(path);
  check(format.has_value(), "{} is not a table", path.string());
  return *format;
}

bool is_csv(TableFormat format) { return format == TableFormat::kCsv || format == TableFormat::kTsv; }
char delimiter_of(TableFormat format) { return format == TableFormat::kTsv ? '\t' : ','; }

}  // namespace

std::optional<TableFormat> table_format(const std::filesystem::path& path) {
  const std::string extension = to_lower(path.extension().string());
  if (extension == ".csv") return TableFormat::kCsv;
  if (extension == ".tsv") return TableFormat::kTsv;
  if (extension == ".parquet") return TableFormat::kParquet;
  if (extension == ".arrow") return TableFormat::kArrow;
  return std::nullopt;
}

std::unique_ptr<TableReader> open_table(const std::filesystem::path& path) {
  const TableFormat format = required_format(path);
  if (is_csv(format)) return std::make_unique<CsvReader>(path, delimiter_of(format));
  return std::make_unique<ArrowTable>(path, format);
}

std::unique_ptr<TableFile> open_table_by_number(const std::filesystem::path& path,
                                                const std::filesystem::path& scratch_folder) {
  const TableFormat format = required_format(path);
  if (is_csv(format)) return std::make_unique<CsvFile>(path, delimiter_of(format));
  // Only counted for now: a dataset may have more files than a process may open.
  return std::make_unique<RowSpool>(path, ArrowTable(path, format).count(), scratch_folder);
}

}  // namespace megalith::data
