// TokenTable: samples as flat arrays, the form of a tokenized dataset in memory and on disk.
//
//   TokenFolderWriter writer(folder);                     // one process, with bounded memory
//   writer.append(rows);
//   writer.finish(info);
//   const auto [dataset, info] = open_token_folder(folder);  // any number of processes: the files are mapped
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/data/dataset.h"
#include "megalith/io/file_io.h"

namespace megalith::data {

class MediaWriter;

// The arrays. Row r has the tokens [row_ends[r-1], row_ends[r]) and the pieces [piece_ends[r-1], piece_ends[r]); row 0
// begins at 0. A sample is one row, or two: chosen and rejected in a table of pairs, own and mismatched in one of
// feedback. 8 bytes per token; a table of all
// records of a run is kept only without a cache folder.
struct TokenTable {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  std::vector<int64_t> row_ends;
  std::vector<int32_t> pieces;
  std::vector<int64_t> piece_ends;
  // Row r has the media [media_ends[r-1], media_ends[r]). Tables without any leave both empty.
  std::vector<MediaReference> media;
  std::vector<int64_t> media_ends;
  std::vector<uint8_t> desirable;  // the verdict of each sample, 0 or 1, in a table of feedback; otherwise empty

  // Append rows to the columns. Throw a DataError for rows with fields, which tables cannot hold.
  void append(const Sequence& row);
  void append(const Sample& sample);  // one or two rows
  void append(const TokenTable& other);
};

// Properties of a table as a whole. Stored in info.json, so that a reader need not look at the tokens.
struct TokenTableInfo {
  bool pairs = false;
  bool pieces_attend = false;  // Sequence::pieces_attend of all rows with more than one piece
  int64_t max_id = -1;         // the largest token id
  std::string report;          // how the table was made: one line for people
  int64_t left_out = 0;        // records that gave no sample, and samples that did not fit into a row
  bool feedback = false;       // answers with verdicts; not together with `pairs`
};

// Returns a dataset over a table in memory.
std::shared_ptr<const Dataset> dataset_of(TokenTable table, TokenTableInfo info);

// Writes a folder with the arrays as files of little-endian numbers (ids.bin, labels.bin, row_ends.bin, pieces.bin,
// piece_ends.bin, with verdicts desirable.bin) and info.json. With media, also the files of token_media_internal.h,
// among them the bytes of images that came without a file. Rows are written as they come; info.json, written last,
// marks the folder as complete. A folder without info.json was not finished, and is not opened. Not thread-safe.
class TokenFolderWriter {
 public:
  // `folder` must exist and be empty.
  explicit TokenFolderWriter(const std::filesystem::path& folder);
  ~TokenFolderWriter();
  // Appends rows.
  void append(const TokenTable& rows);
  // Completes the folder. No other call may follow.
  void finish(const TokenTableInfo& info);

 private:
  struct Column {
    io::FileHandle file;
    uint64_t bytes = 0;
  };
  template <typename T>
  void write(Column& column, const std::vector<T>& values);

  std::filesystem::path folder_;
  Column ids_, labels_, row_ends_, pieces_, piece_ends_;
  std::optional<Column> desirable_;  // std::nullopt until a table has verdicts
  std::unique_ptr<MediaWriter> media_;
  int64_t tokens_ = 0, piece_count_ = 0, rows_ = 0;
};

// The result of open_token_folder.
struct OpenedTokens {
  std::shared_ptr<const Dataset> dataset;  // keeps the files mapped while it lives
  TokenTableInfo info;
};
// Whether the folder was written by TokenFolderWriter.
bool is_token_folder(const std::filesystem::path& folder);
// Opens a folder written by TokenFolderWriter. Throws a DataError if it has another format (an Arrow dataset is named
// as such), is broken, or was written by another version. Costs a pass over the ends of rows, not over the tokens;
// pages of the files are shared between processes.
OpenedTokens open_token_folder(const std::filesystem::path& folder);

}  // namespace megalith::data
