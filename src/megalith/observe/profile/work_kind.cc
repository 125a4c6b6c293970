// One table, read from top to bottom: the first row whose word occurs in the name decides. The order matters for names
// with several words: flash attention is built from CUTLASS, whose products are "cutlass" too, and a fused optimizer
// is a "multi_tensor_apply" that works element by element.
#include "megalith/observe/profile/work_kind.h"

#include <array>
#include <cctype>
#include <utility>

#include "megalith/base/text.h"

namespace megalith::observe {

namespace {

struct KindWord {
  std::string_view word;  // in lower case
  WorkKind kind;
};

constexpr auto kKindWords = std::to_array<KindWord>({
    {"nccl", WorkKind::kCommunication},
    {"megalith::comm", WorkKind::kCommunication},
    {"symm_mem", WorkKind::kCommunication},
    {"memcpy", WorkKind::kCopies},
    {"memset", WorkKind::kCopies},
    {"flash", WorkKind::kAttention},
    {"fmha", WorkKind::kAttention},
    {"sdpa", WorkKind::kAttention},
    {"attention", WorkKind::kAttention},
    {"megalith::optim", WorkKind::kUpdate},
    {"adam", WorkKind::kUpdate},
    {"sgd", WorkKind::kUpdate},
    {"multi_tensor_apply", WorkKind::kUpdate},
    {"gemm", WorkKind::kProducts},
    {"gemv", WorkKind::kProducts},
    {"nvjet", WorkKind::kProducts},
    {"xmma", WorkKind::kProducts},
    {"cutlass", WorkKind::kProducts},
    {"cublas", WorkKind::kProducts},
    {"splitkreduce", WorkKind::kProducts},
    {"add_products", WorkKind::kProducts},
    {"elementwise", WorkKind::kElementwise},
    {"reduce_kernel", WorkKind::kElementwise},
    {"norm", WorkKind::kElementwise},
    {"softmax", WorkKind::kElementwise},
    {"index", WorkKind::kElementwise},
    {"gather", WorkKind::kElementwise},
    {"scatter", WorkKind::kElementwise},
    {"embedding", WorkKind::kElementwise},
    {"catarray", WorkKind::kElementwise},
    {"fill", WorkKind::kElementwise},
    {"megalith::ops", WorkKind::kElementwise},
});

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Cuts a text at the first `c` outside of angle brackets and parentheses; the whole text if there is none.
std::string_view before(std::string_view text, char c) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (depth == 0 && text[i] == c && i > 0) return text.substr(0, i);
    if (text[i] == '<' || text[i] == '(') ++depth;
    if (text[i] == '>' || text[i] == ')') --depth;
  }
  return text;
}

// Returns the last word of a qualified name: "at::native::CUDAFunctor_add" -> "CUDAFunctor_add".
std::string_view last_word(std::string_view name) {
  size_t begin = name.size();
  while (begin > 0 && is_word(name[begin - 1])) --begin;
  return name.substr(begin);
}

std::string cut_to(std::string text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

// Returns the functor of an elementwise kernel: the first template argument that is a type of ATen's; "" if none.
std::string_view functor_of(std::string_view arguments) {
  const size_t at = arguments.find("at::native::");
  if (at == std::string_view::npos) return "";
  std::string_view rest = arguments.substr(at);
  size_t end = 0;
  while (end < rest.size() && (is_word(rest[end]) || rest[end] == ':')) ++end;
  return last_word(rest.substr(0, end));
}

}  // namespace

const char* name(WorkKind kind) {
  switch (kind) {
    case WorkKind::kProducts:
      return "matrix products";
    case WorkKind::kAttention:
      return "attention";
    case WorkKind::kCommunication:
      return "communication";
    case WorkKind::kUpdate:
      return "optimizer";
    case WorkKind::kElementwise:
      return "elementwise, norms";
    case WorkKind::kCopies:
      return "copies";
    case WorkKind::kOther:
      return "other";
  }
  return "";
}

WorkKind work_kind(std::string_view kernel) {
  const std::string lower = to_lower(kernel);
  for (const auto& [word, kind] : kKindWords)
    if (lower.find(word) != std::string::npos) return kind;
  return WorkKind::kOther;
}

// Names are either C++ ("void a::b<c>(d)"), plain symbols ("nvjet_tst_128x256"), or words ("Memcpy DtoH (…)").
std::string short_kernel_name(std::string_view kernel, size_t width) {
  std::string_view name = kernel;
  if (name.starts_with("void ")) name.remove_prefix(5);
  const bool qualified = name.find("::") != std::string_view::npos || name.find('<') != std::string_view::npos;
  std::string text(name);
  if (qualified) {
    // "(anonymous namespace)" would look like parameters.
    constexpr std::string_view kUnnamed = "(anonymous namespace)::";
    for (size_t at = text.find(kUnnamed); at != std::string::npos; at = text.find(kUnnamed))
      text.erase(at, kUnnamed.size());
    const std::string_view function = before(text, '(');
    const std::string_view head = before(function, '<');
    const std::string_view functor = functor_of(function.substr(head.size()));
    std::string shortened(last_word(head));
    if (!functor.empty()) shortened.append("<").append(functor).append(">");
    if (!shortened.empty()) text = std::move(shortened);
  }
  return cut_to(std::move(text), width);
}

// "autograd::engine::evaluate_function: " stands before the engine's own share of a function's time.
std::string short_operator_name(std::string_view name, size_t width) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ", kOwn = "torch::autograd::CppNode<";
  std::string text(name);
  const bool engine = text.starts_with(kEngine);
  if (engine) text.erase(0, kEngine.size());
  if (text.starts_with(kOwn) && text.ends_with('>'))
    text = std::string(last_word(std::string_view(text).substr(0, text.size() - 1))) + " (backward)";
  if (engine) text = "engine: " + text;
  return cut_to(std::move(text), width);
}

}  // namespace megalith::observe
