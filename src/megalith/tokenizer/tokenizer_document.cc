// A SAX handler: events within model.vocab and model.merges go directly into their final form; everything else builds a
// JSON document as usual. Most of a tokenizer.json is these two members: a document of 150,000 tokens and as many
// merges would be millions of allocations that are thrown away again.
//
// Unigram's vocabulary is an array of pairs, not an object, so it stays in the document.
#include "megalith/tokenizer/tokenizer_document_internal.h"

#include "megalith/base/error.h"
#include "megalith/base/json_words.h"
#include "megalith/tokenizer/text/json_node_internal.h"

namespace megalith::tokenizer {

namespace {

using nlohmann::json;

// nlohmann calls one function per event; returning true continues. Errors are thrown, and pass through the parser.
class Handler final : public nlohmann::json_sax<json> {
 public:
  explicit Handler(const std::string& file) : file_(file) {}

  TokenizerDocument take() { return std::move(document_); }
  const std::string& error() const { return error_; }

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool v) override { return value(json(v)); }
  bool number_integer(number_integer_t v) override { return value(json(v)); }
  bool number_float(number_float_t v, const string_t&) override { return value(json(v)); }
  bool binary(binary_t& v) override { return value(json(std::move(v))); }

  // Ids are never negative, so the parser reports them through this function alone.
  bool number_unsigned(number_unsigned_t v) override {
    if (mode_ != Mode::kVocabulary) return value(json(v));
    check<DataError>(v < static_cast<uint64_t>(Vocabulary::kMaxIds),
                     "{}: model.vocab has id {} for \"{}\"; ids are whole numbers from 0 to {}", file_, v, key_,
                     Vocabulary::kMaxIds - 1);
    add_to_vocabulary(*document_.vocabulary, key_, static_cast<int32_t>(v), file_ + ": model.vocab");
    return true;
  }

  // A merge is "a b" in old files and ["a", "b"] in new ones.
  bool string(string_t& v) override {
    if (mode_ != Mode::kMerges) return value(json(std::move(v)));
    if (in_pair_) {
      pair_.push_back(std::move(v));
    } else {
      document_.merges->push_back(split_merge(v, merge_name()));
    }
    return true;
  }

  // Only the innermost key matters: it names the next value.
  bool key(string_t& v) override {
    key_ = std::move(v);
    return true;
  }

  bool start_object(size_t) override {
    if (mode_ != Mode::kDocument) bad_value("an object");
    if (in_model("vocab")) {
      mode_ = Mode::kVocabulary;
      document_.vocabulary.emplace();
      return true;
    }
    open(json::object());
    return true;
  }

  bool end_object() override {
    if (mode_ == Mode::kVocabulary) {
      mode_ = Mode::kDocument;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::kVocabulary || in_pair_) bad_value("an array");
    if (mode_ == Mode::kMerges) {
      in_pair_ = true;
      pair_.clear();
    } else if (in_model("merges")) {
      mode_ = Mode::kMerges;
      document_.merges.emplace();
    } else {
      open(json::array());
    }
    return true;
  }

  bool end_array() override {
    if (in_pair_) {
      check<DataError>(pair_.size() == 2, "{} has {} tokens; two are expected", merge_name(), pair_.size());
      document_.merges->emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      in_pair_ = false;
    } else if (mode_ == Mode::kMerges) {
      mode_ = Mode::kDocument;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = without_exception_name(error.what());
    return false;
  }

 private:
  // The destination of the next value.
  enum class Mode { kDocument, kVocabulary, kMerges };

  // Returns whether the value that starts now is the member `name` of the root's "model".
  bool in_model(std::string_view name) const { return open_.size() == 2 && model_open_ && key_ == name; }

  std::string merge_name() const { return fmt::format("{}: model.merges[{}]", file_, document_.merges->size()); }

  [[noreturn]] void bad_value(std::string_view given) const {
    if (mode_ == Mode::kVocabulary)
      throw DataError(fmt::format("{}: model.vocab has {} for \"{}\"; a token id is expected", file_, given, key_));
    throw DataError(
        fmt::format("{} has {}; a string with two tokens, or an array of two, is expected", merge_name(), given));
  }

  // Adds a value to the innermost open object or array, and returns its place.
  json* add_value(json v) {
    if (open_.empty()) return &(document_.rest = std::move(v));
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(v));
    return &((*open_.back())[key_] = std::move(v));
  }

  bool value(json v) {
    if (mode_ != Mode::kDocument) bad_value(v.dump(-1, ' ', true, json::error_handler_t::replace));
    add_value(std::move(v));
    return true;
  }

  // Pointers in open_ stay valid: only the innermost container grows, and none of its elements is open.
  void open(json v) {
    if (open_.size() == 1) model_open_ = open_.back()->is_object() && key_ == "model" && v.is_object();
    open_.push_back(add_value(std::move(v)));
  }

  const std::string& file_;
  TokenizerDocument document_;
  std::vector<json*> open_;  // objects and arrays around the next value, outermost first
  bool model_open_ = false;  // open_[1] is the root's "model"
  std::string key_;          // key of the next value
  Mode mode_ = Mode::kDocument;
  bool in_pair_ = false;
  std::vector<std::string> pair_;
  std::string error_;
};

}  // namespace

TokenizerDocument parse_tokenizer_document(std::string_view text, const std::string& file) {
  Handler handler(file);
  if (!json::sax_parse(text.begin(), text.end(), &handler))
    throw DataError(fmt::format("{} is not valid JSON: {}", file, handler.error()));
  return handler.take();
}

}  // namespace megalith::tokenizer
