// Token tables in memory and in mapped files. Both are read through TokenColumns, a set of spans, so TokenDataset does
// not know the difference. A folder is checked completely when it is opened (all ends and pieces are walked once, ids
// and labels are not), so that reading a sample later needs no checks and cannot leave the arrays.
#include "megalith/data/token_table.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>

#include "megalith/base/error.h"
#include "megalith/data/token_media_internal.h"
#include "megalith/io/json_reader.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "token folders hold little-endian numbers");

// Stored on disk: must not change. A new format gets the next version number.
constexpr int64_t kTokenTableVersion = 1;
constexpr int64_t kMediaTableVersion = 3;     // with the files of media; others are written as version 1
constexpr int64_t kSoundTableVersion = 4;     // with sounds among them, which version 3 takes for videos
constexpr int64_t kFeedbackTableVersion = 5;  // with desirable.bin; info.json says whether there are media
constexpr const char* kFormat = "megalith tokens";

// The arrays of a TokenTable, wherever they are stored.
struct TokenColumns {
  std::span<const int32_t> ids, labels;
  std::span<const int64_t> row_ends;
  std::span<const int32_t> pieces;
  std::span<const int64_t> piece_ends;
  // Media: in memory as they are, or in files. `media_ends` is empty if there are none.
  std::span<const MediaReference> media;
  const MediaColumns* stored_media = nullptr;
  std::span<const int64_t> media_ends;
  std::span<const uint8_t> desirable;

  MediaReference medium(int64_t i) const {
    return stored_media != nullptr ? stored_media->medium(i) : media[static_cast<size_t>(i)];
  }
};

// `owner` keeps the memory alive that the spans point to.
class TokenDataset : public Dataset {
 public:
  TokenDataset(TokenColumns columns, const TokenTableInfo& info, std::shared_ptr<const void> owner)
      : columns_(columns),
        pairs_(info.pairs),
        feedback_(info.feedback),
        pieces_attend_(info.pieces_attend),
        owner_(std::move(owner)) {}

  int64_t size() const override { return std::ssize(columns_.row_ends) / rows_per_sample(); }

  Sample sample(int64_t index) const override {
    check(index >= 0 && index < size(), "sample {} of a dataset of {}", index, size());
    if (pairs_) return {row(2 * index), row(2 * index + 1)};
    if (!feedback_) return {row(index), std::nullopt};
    return {.row = row(2 * index),
            .rejected = std::nullopt,
            .feedback = Feedback{columns_.desirable[static_cast<size_t>(index)] != 0, row(2 * index + 1)}};
  }

  int64_t tokens(int64_t index) const override {
    check(index >= 0 && index < size(), "sample {} of a dataset of {}", index, size());
    const auto rows = static_cast<size_t>(rows_per_sample());
    const size_t first = static_cast<size_t>(index) * rows;
    return columns_.row_ends[first + rows - 1] - (first == 0 ? 0 : columns_.row_ends[first - 1]);
  }

 private:
  int64_t rows_per_sample() const { return pairs_ || feedback_ ? 2 : 1; }

  // Returns the values of one row; `ends` are cumulative.
  template <typename T>
  static std::vector<T> slice(std::span<const T> values, std::span<const int64_t> ends, int64_t row) {
    const auto at = static_cast<size_t>(row);
    const auto begin = static_cast<size_t>(at == 0 ? 0 : ends[at - 1]);
    const auto part = values.subspan(begin, static_cast<size_t>(ends[at]) - begin);
    return {part.begin(), part.end()};
  }

  // Copies the row, so that a Sample does not refer to the mapping.
  Sequence row(int64_t index) const {
    Sequence result;
    result.ids = slice(columns_.ids, columns_.row_ends, index);
    result.labels = slice(columns_.labels, columns_.row_ends, index);
    result.pieces = slice(columns_.pieces, columns_.piece_ends, index);
    result.pieces_attend = pieces_attend_ && !result.pieces.empty();
    if (columns_.media_ends.empty()) return result;
    const auto at = static_cast<size_t>(index);
    for (int64_t i = at == 0 ? 0 : columns_.media_ends[at - 1]; i < columns_.media_ends[at]; ++i)
      result.media.push_back(columns_.medium(i));
    return result;
  }

  TokenColumns columns_;
  bool pairs_, feedback_, pieces_attend_;
  std::shared_ptr<const void> owner_;
};

// The numbers of one file, mapped into memory.
template <typename T>
class MappedColumn {
 public:
  explicit MappedColumn(const fs::path& path) {
    const io::FileHandle file = io::FileHandle::open_for_reading(path);
    bytes_ = file.size();
    check<DataError>(bytes_ % sizeof(T) == 0, "{} has {} bytes, which is not a whole number of values; it is damaged",
                     path.string(), bytes_);
    if (bytes_ == 0) return;  // mmap refuses empty files
    address_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    check<DataError>(address_ != MAP_FAILED, "cannot map {}: {}", path.string(),
                     std::generic_category().message(errno));
  }
  ~MappedColumn() {
    if (bytes_ > 0 && address_ != MAP_FAILED) ::munmap(address_, bytes_);
  }
  MappedColumn(const MappedColumn&) = delete;
  MappedColumn& operator=(const MappedColumn&) = delete;

  std::span<const T> values() const { return {static_cast<const T*>(address_), bytes_ / sizeof(T)}; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

// All columns of a folder. Kept alive by the dataset.
struct MappedTable {
  MappedTable(const fs::path& folder, bool has_media, bool has_verdicts)
      : ids(folder / "ids.bin"),
        labels(folder / "labels.bin"),
        row_ends(folder / "row_ends.bin"),
        pieces(folder / "pieces.bin"),
        piece_ends(folder / "piece_ends.bin") {
    if (has_media) media.emplace(folder);
    if (has_verdicts) desirable.emplace(folder / "desirable.bin");
  }
  TokenColumns columns() const {
    TokenColumns result{ids.values(), labels.values(), row_ends.values(), pieces.values(), piece_ends.values()};
    if (desirable) result.desirable = desirable->values();
    if (!media) return result;
    result.stored_media = &*media;
    result.media_ends = media->ends();
    return result;
  }
  MappedColumn<int32_t> ids, labels;
  MappedColumn<int64_t> row_ends;
  MappedColumn<int32_t> pieces;
  MappedColumn<int64_t> piece_ends;
  std::optional<MediaColumns> media;
  std::optional<MappedColumn<uint8_t>> desirable;
};

// Whether the pieces of each row lie within it. Requires that row_ends and piece_ends have been checked.
bool pieces_fit(const TokenColumns& columns) {
  int64_t row_begin = 0, piece = 0;
  for (size_t row = 0; row < columns.row_ends.size(); ++row) {
    int64_t room = columns.row_ends[row] - row_begin;
    for (; piece < columns.piece_ends[row]; ++piece) {
      const int64_t tokens = columns.pieces[static_cast<size_t>(piece)];
      if (tokens < 0 || tokens > room) return false;
      room -= tokens;
    }
    row_begin = columns.row_ends[row];
  }
  return true;
}

// Makes sure that a damaged file cannot lead outside the arrays.
void check_columns(const TokenColumns& columns, int64_t rows, const TokenTableInfo& info, const fs::path& folder) {
  const auto ends_fit = [](std::span<const int64_t> ends, size_t total) {
    int64_t last = 0;
    for (const int64_t end : ends) {
      if (end < last) return false;
      last = end;
    }
    return last == static_cast<int64_t>(total);
  };
  // Ascending ends that finish at the number of elements keep every row inside the arrays.
  const bool sound = std::ssize(columns.row_ends) == rows && std::ssize(columns.piece_ends) == rows &&
                     columns.labels.size() == columns.ids.size() && ends_fit(columns.row_ends, columns.ids.size()) &&
                     ends_fit(columns.piece_ends, columns.pieces.size()) && pieces_fit(columns) &&
                     (columns.stored_media == nullptr || columns.stored_media->fit(columns.row_ends)) &&
                     (!(info.pairs || info.feedback) || rows % 2 == 0) &&
                     std::ssize(columns.desirable) == (info.feedback ? rows / 2 : 0);
  check<DataError>(sound, "{}: the files do not fit one another; remove the folder, and it is built again",
                   folder.string());
}

}  // namespace

// The format has no place for shifted rows, coordinates and fields.
void TokenTable::append(const Sequence& row) {
  check(!row.shifted, "token tables hold labels beside their tokens");
  check<DataError>(row.coordinates.empty(),
                   "token tables do not hold coordinates of tokens; add them in a Dataset around it");
  check<DataError>(row.fields.empty(),
                   "token tables do not hold fields such as \"{}\"; add them in a Dataset around it",
                   row.fields.empty() ? "" : row.fields.begin()->first);
  ids.insert(ids.end(), row.ids.begin(), row.ids.end());
  labels.insert(labels.end(), row.labels.begin(), row.labels.end());
  // Rows before the first image have none.
  if (!row.media.empty()) media_ends.resize(row_ends.size(), std::ssize(media));
  media.insert(media.end(), row.media.begin(), row.media.end());
  if (!media.empty()) media_ends.push_back(std::ssize(media));
  row_ends.push_back(std::ssize(ids));
  pieces.insert(pieces.end(), row.pieces.begin(), row.pieces.end());
  piece_ends.push_back(std::ssize(pieces));
}

void TokenTable::append(const Sample& sample) {
  append(sample.row);
  if (sample.second() != nullptr) append(*sample.second());
  if (sample.feedback) desirable.push_back(sample.feedback->desirable ? 1 : 0);
}

// Concatenates the columns; ends are cumulative, so those of `other` move up.
void TokenTable::append(const TokenTable& other) {
  const auto tokens = std::ssize(ids), piece_count = std::ssize(pieces), media_count = std::ssize(media);
  if (!other.media.empty() || !media.empty()) {
    media_ends.resize(row_ends.size(), media_count);
    media.insert(media.end(), other.media.begin(), other.media.end());
    for (const int64_t end : other.media_ends) media_ends.push_back(media_count + end);
    media_ends.resize(row_ends.size() + other.row_ends.size(), media_count);
  }
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  labels.insert(labels.end(), other.labels.begin(), other.labels.end());
  pieces.insert(pieces.end(), other.pieces.begin(), other.pieces.end());
  desirable.insert(desirable.end(), other.desirable.begin(), other.desirable.end());
  for (const int64_t end : other.row_ends) row_ends.push_back(tokens + end);
  for (const int64_t end : other.piece_ends) piece_ends.push_back(piece_count + end);
}

// The table moves to the heap, where the spans of the dataset can point to it.
std::shared_ptr<const Dataset> dataset_of(TokenTable table, TokenTableInfo info) {
  const auto owner = std::make_shared<const TokenTable>(std::move(table));
  return std::make_shared<TokenDataset>(TokenColumns{.ids = owner->ids,
                                                     .labels = owner->labels,
                                                     .row_ends = owner->row_ends,
                                                     .pieces = owner->pieces,
                                                     .piece_ends = owner->piece_ends,
                                                     .media = owner->media,
                                                     .media_ends = owner->media_ends,
                                                     .desirable = owner->desirable},
                                        info, owner);
}

TokenFolderWriter::TokenFolderWriter(const fs::path& folder)
    : folder_(folder), media_(std::make_unique<MediaWriter>(folder)) {
  ids_.file = io::FileHandle::create(folder / "ids.bin");
  labels_.file = io::FileHandle::create(folder / "labels.bin");
  row_ends_.file = io::FileHandle::create(folder / "row_ends.bin");
  pieces_.file = io::FileHandle::create(folder / "pieces.bin");
  piece_ends_.file = io::FileHandle::create(folder / "piece_ends.bin");
}

TokenFolderWriter::~TokenFolderWriter() = default;

template <typename T>
void TokenFolderWriter::write(Column& column, const std::vector<T>& values) {
  column.file.write_at(column.bytes, values.data(), values.size() * sizeof(T));
  column.bytes += values.size() * sizeof(T);
}

// Ends in `rows` are relative to its own start; on disk they are relative to the start of the folder.
void TokenFolderWriter::append(const TokenTable& rows) {
  const auto shifted = [](std::vector<int64_t> ends, int64_t by) {
    for (int64_t& end : ends) end += by;
    return ends;
  };
  write(ids_, rows.ids);
  write(labels_, rows.labels);
  write(row_ends_, shifted(rows.row_ends, tokens_));
  write(pieces_, rows.pieces);
  write(piece_ends_, shifted(rows.piece_ends, piece_count_));
  media_->append(rows.media, rows.media_ends, std::ssize(rows.row_ends));
  if (!rows.desirable.empty()) {
    if (!desirable_) desirable_.emplace().file = io::FileHandle::create(folder_ / "desirable.bin");
    write(*desirable_, rows.desirable);
  }
  tokens_ += std::ssize(rows.ids);
  piece_count_ += std::ssize(rows.pieces);
  rows_ += std::ssize(rows.row_ends);
}

// The columns are on disk before info.json is: is_token_folder needs both.
void TokenFolderWriter::finish(const TokenTableInfo& info) {
  for (const Column* column : {&ids_, &labels_, &row_ends_, &pieces_, &piece_ends_}) column->file.sync();
  media_->sync();
  if (desirable_) desirable_->file.sync();
  const int64_t version = info.feedback         ? kFeedbackTableVersion
                          : media_->any_sound() ? kSoundTableVersion
                          : media_->any()       ? kMediaTableVersion
                                                : kTokenTableVersion;
  io::Json document = {{"format", kFormat},     {"version", version},    {"rows", rows_},
                       {"tokens", tokens_},     {"pairs", info.pairs},   {"pieces_attend", info.pieces_attend},
                       {"max_id", info.max_id}, {"report", info.report}, {"left_out", info.left_out}};
  if (info.feedback) document["media"] = media_->any();
  io::write_text_file(folder_ / "info.json", document.dump(2) + "\n");
}

// info.json alone is not enough: other formats have a file of that name, too.
bool is_token_folder(const fs::path& folder) {
  return fs::exists(folder / "info.json") && fs::exists(folder / "ids.bin");
}

// Recognizes folders of Hugging Face's `datasets` first, since tokenized_path of LLaMA-Factory points to such a one.
OpenedTokens open_token_folder(const fs::path& folder) {
  check<DataError>(
      !fs::exists(folder / "dataset_dict.json") && !fs::exists(folder / "state.json"),
      "{} was written by the Python package `datasets` (Arrow files), which Megalith does not read. Give another "
      "tokenized_path, and the tokens are saved there in Megalith's own format",
      folder.string());
  check<DataError>(is_token_folder(folder), "{} has no tokens in it: info.json and ids.bin are missing",
                   folder.string());
  const io::JsonFile file = io::read_json_file(folder / "info.json");
  const io::JsonFields fields = file.fields();
  if (fields.required<std::string>("format") != kFormat) fields.refuse("format", fmt::format("be \"{}\"", kFormat));
  const auto version = fields.required<int64_t>("version");
  if (version != kTokenTableVersion && version != kMediaTableVersion && version != kSoundTableVersion &&
      version != kFeedbackTableVersion)
    fields.refuse("version",
                  fmt::format("be {}, {}, {} or {}: another version of Megalith wrote it", kTokenTableVersion,
                              kMediaTableVersion, kSoundTableVersion, kFeedbackTableVersion));
  TokenTableInfo info{.pairs = fields.required<bool>("pairs"),
                      .pieces_attend = fields.required<bool>("pieces_attend"),
                      .max_id = fields.required<int64_t>("max_id"),
                      .report = fields.required<std::string>("report"),
                      .left_out = fields.optional<int64_t>("left_out").value_or(0),
                      .feedback = version == kFeedbackTableVersion};
  const bool has_media = info.feedback ? fields.required<bool>("media") : version != kTokenTableVersion;
  const auto owner = std::make_shared<const MappedTable>(folder, has_media,
                                                         info.feedback);  // unmapped with the last copy of the dataset
  check_columns(owner->columns(), fields.required<int64_t>("rows"), info, folder);
  auto dataset = std::make_shared<TokenDataset>(owner->columns(), info, owner);
  return {std::move(dataset), std::move(info)};
}

}  // namespace megalith::data
