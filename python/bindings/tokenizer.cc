// Texts and ids of the library's own tokenizer. Conversations cross as JSON: templates read whatever a message holds.
#include "tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/tokenizer/chat/chat_template.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::python {

namespace {

namespace fs = std::filesystem;
using tokenizer::ChatTemplate;
using tokenizer::Json;
using Unlocked = py::call_guard<py::gil_scoped_release>;

// A tokenizer with the chat template of its folder, if there is one. Immutable.
class FolderTokenizer {
 public:
  explicit FolderTokenizer(const std::string& folder_or_name) {
    folder_ = fs::is_directory(folder_or_name)
                  ? fs::path(folder_or_name)
                  : hf::find_model_folder(folder_or_name, hf::HubEnvironment::from_process(), hf::ModelParts::kConfig);
    tokenizer_ = tokenizer::Tokenizer::from_folder(folder_);
    if (ChatTemplate::is_in(folder_)) chat_ = ChatTemplate::from_folder(folder_);
  }

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  std::string folder() const { return folder_.string(); }

  std::vector<std::vector<int32_t>> encode_batch(const std::vector<std::string>& texts, bool special) const {
    const int threads = std::max(1U, std::thread::hardware_concurrency());
    return tokenizer_->encode_batch(texts, {.add_special_tokens = special}, threads);
  }

  // Returns the text and the ids of a conversation.
  std::pair<std::string, std::vector<int32_t>> apply_chat_template(const std::string& messages,
                                                                   const std::string& tools, bool add_generation_prompt,
                                                                   const std::string& kwargs) const {
    check<ConfigError>(chat_.has_value(),
                       "{} has no chat template: neither chat_template.jinja nor chat_template in"
                       " tokenizer_config.json",
                       folder_.string());
    const tokenizer::Conversation conversation{.messages = Json::parse(messages), .tools = Json::parse(tools)};
    const std::string text =
        chat_->render(conversation, {.add_generation_prompt = add_generation_prompt, .kwargs = Json::parse(kwargs)});
    return {text, tokenizer_->encode(text)};
  }

 private:
  fs::path folder_;
  std::optional<tokenizer::Tokenizer> tokenizer_;  // always there after construction
  std::optional<ChatTemplate> chat_;
};

}  // namespace

void bind_tokenizer(py::module_& module) {
  py::class_<FolderTokenizer, std::shared_ptr<FolderTokenizer>>(module, "Tokenizer")
      .def(py::init<const std::string&>(), py::arg("folder"), Unlocked())
      .def_property_readonly("folder", &FolderTokenizer::folder)
      .def(
          "encode",
          [](const FolderTokenizer& self, const std::string& text, bool special) {
            return self.tokenizer().encode(text, {.add_special_tokens = special});
          },
          py::arg("text"), py::arg("add_special_tokens"), Unlocked())
      .def("encode_batch", &FolderTokenizer::encode_batch, py::arg("texts"), py::arg("add_special_tokens"), Unlocked())
      .def(
          "decode",
          [](const FolderTokenizer& self, const std::vector<int32_t>& ids, bool skip) {
            return self.tokenizer().decode(ids, {.skip_special_tokens = skip});
          },
          py::arg("ids"), py::arg("skip_special_tokens"), Unlocked())
      .def("apply_chat_template", &FolderTokenizer::apply_chat_template, py::arg("messages"), py::arg("tools"),
           py::arg("add_generation_prompt"), py::arg("kwargs"), Unlocked())
      .def("id_of", [](const FolderTokenizer& self, const std::string& token) { return self.tokenizer().id_of(token); })
      .def("token_of", [](const FolderTokenizer& self, int32_t id) { return self.tokenizer().token_of(id); })
      .def_property_readonly("vocab_size", [](const FolderTokenizer& self) { return self.tokenizer().vocab_size(); })
      .def_property_readonly("bos_id", [](const FolderTokenizer& self) { return self.tokenizer().bos_id(); })
      .def_property_readonly("eos_id", [](const FolderTokenizer& self) { return self.tokenizer().eos_id(); })
      .def_property_readonly("pad_id", [](const FolderTokenizer& self) { return self.tokenizer().pad_id(); });
}

}  // namespace megalith::python
