// libmegalith_arrow.so: rows of Parquet and Arrow files as JSON text (arrow_rows_internal.h is its interface).
//
// Files are read on the calling thread, with malloc's memory: Arrow's own thread pool and allocators would stand beside
// those of libtorch and gain little here, since tokenizing takes far longer than decoding. The memory has a limit,
// since a single damaged byte can ask for a buffer of any size.
#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "megalith/data/table/arrow_json_internal.h"
#include "megalith/data/table/arrow_rows_internal.h"
#include "megalith/data/table/json_string_internal.h"

namespace megalith::data {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;         // text that next() returns at a time, at least a row
constexpr int64_t kDecodedBytes = int64_t{16} << 20;    // decoded values of a Parquet file at a time, about
constexpr int64_t kPageBufferBytes = int64_t{1} << 20;  // bytes that are read of a column of a Parquet file at a time

constexpr int64_t kMemoryLimit = int64_t{16} << 30;  // a record batch needs a fraction of it

// The memory of everything that is read. It is never destroyed: Arrow reads ahead on a thread of its own, which frees
// such buffers after the reader that asked for them is gone.
arrow::MemoryPool* memory_pool() {
  static auto* const pool = new arrow::CappedMemoryPool(arrow::system_memory_pool(), kMemoryLimit);
  return pool;
}

void require(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
T require(arrow::Result<T> result) {
  require(result.status());
  return *std::move(result);
}

// Cuts record batches, which a derived class reads, into pieces of text.
class BatchRows : public ArrowRows {
 public:
  bool next(std::vector<std::string>& texts) final {
    texts.clear();
    while (!batch_ || at_ == batch_->num_rows()) {
      at_ = 0;
      batch_ = read_batch();
      if (!batch_) return false;
    }
    for (size_t bytes = 0; at_ < batch_->num_rows() && bytes < kPieceBytes; ++at_) {
      texts.push_back(row_text());
      bytes += texts.back().size();
    }
    return true;
  }

 protected:
  // The names of the columns, for rows of every batch. Refuses types that have no form in JSON.
  void set_schema(const arrow::Schema& schema) {
    check_types(schema);
    for (const auto& field : schema.fields()) {
      append_json_string(field->name(), keys_.emplace_back());
      keys_.back() += ':';
    }
  }
  // Returns the next batch; nullptr at the end.
  virtual std::shared_ptr<arrow::RecordBatch> read_batch() = 0;

 private:
  std::string row_text() const {
    std::string text = "{";
    for (int c = 0; c < batch_->num_columns(); ++c) {
      if (c > 0) text += ',';
      text += keys_[static_cast<size_t>(c)];
      append_value(*batch_->column(c), at_, text);
    }
    return text += '}';
  }

  std::vector<std::string> keys_;  // names as JSON, with their colons
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t at_ = 0;  // row of the batch
};

// How many rows are decoded at a time: row groups may have a million rows, of which a few thousand fill the budget.
int64_t rows_at_a_time(const parquet::FileMetaData& metadata) {
  int64_t row_bytes = 1;
  for (int g = 0; g < metadata.num_row_groups(); ++g) {
    const auto group = metadata.RowGroup(g);
    row_bytes = std::max(row_bytes, group->total_byte_size() / std::max<int64_t>(group->num_rows(), 1));
  }
  return std::clamp<int64_t>(kDecodedBytes / row_bytes, 1, 4096);
}

// Row groups one after the other; of each column a buffer of pages and the values of some rows are in memory.
class ParquetRows final : public BatchRows {
 public:
  explicit ParquetRows(const char* path) {
    parquet::ReaderProperties properties(memory_pool());
    properties.enable_buffered_stream();
    properties.set_buffer_size(kPageBufferBytes);
    parquet::arrow::FileReaderBuilder builder;
    require(builder.OpenFile(path, /*memory_map=*/false, properties));
    count_ = builder.raw_reader()->metadata()->num_rows();
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_batch_size(rows_at_a_time(*builder.raw_reader()->metadata()));
    file_ = require(builder.memory_pool(memory_pool())->properties(arrow_properties)->Build());
    batches_ = require(file_->GetRecordBatchReader());
    set_schema(*batches_->schema());
  }

  int64_t count() const override { return count_; }

 private:
  std::shared_ptr<arrow::RecordBatch> read_batch() override { return require(batches_->Next()); }

  int64_t count_ = 0;
  std::unique_ptr<parquet::arrow::FileReader> file_;  // outlives batches_
  std::unique_ptr<arrow::RecordBatchReader> batches_;
};

arrow::ipc::IpcReadOptions ipc_options() {
  arrow::ipc::IpcReadOptions options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = memory_pool();
  options.use_threads = false;
  return options;
}

// Arrow trusts the offsets in a file; a damaged one would lead out of its buffers.
std::shared_ptr<arrow::RecordBatch> validated(std::shared_ptr<arrow::RecordBatch> batch) {
  if (batch) require(batch->ValidateFull());
  return batch;
}

// The IPC file format (Feather 2): record batches and a footer that knows where they are.
class IpcFileRows final : public BatchRows {
 public:
  explicit IpcFileRows(const char* path)
      : reader_(require(arrow::ipc::RecordBatchFileReader::Open(
            require(arrow::io::ReadableFile::Open(path, memory_pool())), ipc_options()))) {
    set_schema(*reader_->schema());
  }

  int64_t count() const override { return require(reader_->CountRows()); }

 private:
  std::shared_ptr<arrow::RecordBatch> read_batch() override {
    if (next_ == reader_->num_record_batches()) return nullptr;
    return validated(require(reader_->ReadRecordBatch(next_++)));
  }

  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
  int next_ = 0;
};

// The IPC stream format, which Hugging Face's datasets keep in their cache: record batches up to the end of the file.
class IpcStreamRows final : public BatchRows {
 public:
  explicit IpcStreamRows(const char* path) : path_(path) {
    reader_ = require(arrow::ipc::RecordBatchStreamReader::Open(
        require(arrow::io::ReadableFile::Open(path, memory_pool())), ipc_options()));
    set_schema(*reader_->schema());
  }

  // Nothing but the batches knows how many rows they have. The file is mapped and only the first column looked at, so
  // that this does not read the values.
  int64_t count() const override {
    arrow::ipc::IpcReadOptions options = ipc_options();
    if (reader_->schema()->num_fields() > 0) options.included_fields = {0};
    const auto reader = require(arrow::ipc::RecordBatchStreamReader::Open(
        require(arrow::io::MemoryMappedFile::Open(path_, arrow::io::FileMode::READ)), options));
    int64_t rows = 0;
    while (const auto batch = require(reader->Next())) rows += batch->num_rows();
    return rows;
  }

 private:
  std::shared_ptr<arrow::RecordBatch> read_batch() override { return validated(require(reader_->Next())); }

  std::string path_;
  std::shared_ptr<arrow::ipc::RecordBatchStreamReader> reader_;
};

// Both formats have the extension .arrow; a file, but not a stream, begins with a magic number.
bool is_ipc_file(const char* path) {
  constexpr std::string_view kMagic = "ARROW1";
  const auto file = require(arrow::io::ReadableFile::Open(path, arrow::system_memory_pool()));
  char start[kMagic.size()];
  const int64_t got = require(file->Read(static_cast<int64_t>(kMagic.size()), start));
  return std::string_view(start, static_cast<size_t>(got)) == kMagic;
}

}  // namespace

// The one function that the library exports.
extern "C" __attribute__((visibility("default"))) ArrowRows* megalith_open_arrow_rows_1(const char* path,
                                                                                        ArrowStorage storage) {
  if (storage == ArrowStorage::kParquet) return std::make_unique<ParquetRows>(path).release();
  if (is_ipc_file(path)) return std::make_unique<IpcFileRows>(path).release();
  return std::make_unique<IpcStreamRows>(path).release();
}

}  // namespace megalith::data
