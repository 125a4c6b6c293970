// A request of a dashboard is a few hundred bytes, so it is parsed again from its start whenever more of it arrives;
// the limits bound the cost. Everything that is not plainly a request is refused with the status that names the reason.
#include "megalith/observe/http/http_request.h"

#include <algorithm>
#include <optional>

#include "megalith/base/text.h"

namespace megalith::observe {

namespace {

constexpr std::string_view kLineEnd = "\r\n";

// Letters, digits and the signs that names of methods and headers may have (RFC 9110, "token").
bool is_token(std::string_view text) {
  constexpr std::string_view kSigns = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kSigns.find(c) != std::string_view::npos;
  });
}

// No control characters; a tab may stand in a header's value.
bool is_printable(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) { return (c < 0x20 && c != '\t') || c == 0x7f; });
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Cuts `rest` after the first `separator` and returns the part before it; all of it when there is none.
std::string_view take_until(std::string_view& rest, std::string_view separator) {
  const size_t at = rest.find(separator);
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + separator.size());
  return part;
}

// Looks up `name` in "name=value; other=value".
std::string_view value_in(std::string_view list, std::string_view separator, std::string_view name) {
  while (!list.empty()) {
    std::string_view value = without_blanks(take_until(list, separator));
    if (take_until(value, "=") == name) return value;
  }
  return "";
}

// Returns 200, or the status of the refusal.
int parse_first_line(std::string_view line, const HttpRequestLimits& limits, HttpRequest& request) {
  const std::string_view method = take_until(line, " ");
  const std::string_view target = take_until(line, " ");
  if (target.size() > limits.target_bytes) return 414;
  if (!is_token(method) || !target.starts_with('/') || !line.starts_with("HTTP/")) return 400;
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return 505;
  request.method = method;
  std::string_view rest = target;
  request.path = take_until(rest, "?");
  request.query = rest;
  return 200;
}

int parse_header(std::string_view line, HttpRequest& request) {
  if (line.find(':') == std::string_view::npos) return 400;
  const std::string name = to_lower(std::string(take_until(line, ":")));
  if (!is_token(name)) return 400;  // also a line that continues the one before it
  const bool once = name == "host" || name == "content-length";
  if (once && !request.header(name).empty()) return 400;
  if (name == "transfer-encoding") return 501;
  request.headers.emplace_back(name, without_blanks(line));
  return 200;
}

// Returns the promised length of the body; std::nullopt for text that is not a number. A length of more digits than a
// number holds is the largest one: it is beyond every limit.
std::optional<size_t> promised_bytes(const HttpRequest& request) {
  const std::string_view text = request.header("content-length");
  if (text.empty()) return 0;
  if (!std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  constexpr size_t kMostDigits = 15;
  if (text.size() > kMostDigits) return SIZE_MAX;
  return static_cast<size_t>(*parse_int(text));
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &std::pair<std::string, std::string>::first);
  return found == headers.end() ? std::string_view() : found->second;
}

std::string_view HttpRequest::cookie(std::string_view name) const { return value_in(header("cookie"), ";", name); }

std::string_view HttpRequest::parameter(std::string_view name) const { return value_in(query, "&", name); }

HttpParse parse_http(std::string_view bytes, const HttpRequestLimits& limits) {
  constexpr std::string_view kHeadEnd = "\r\n\r\n";
  HttpParse parse;
  const size_t head_end = bytes.find(kHeadEnd);
  if (head_end == std::string_view::npos) {
    // A first line that is too long is told apart from too many headers.
    const bool in_first_line = bytes.find(kLineEnd) == std::string_view::npos;
    if (in_first_line && bytes.size() > limits.target_bytes + 64)
      parse.status = 414;
    else if (bytes.size() > limits.head_bytes)
      parse.status = 431;
    return parse;
  }
  std::string_view head = bytes.substr(0, head_end);
  if (head.size() > limits.head_bytes) return {431, {}};
  std::string_view printable = head;
  while (!printable.empty())
    if (!is_printable(take_until(printable, kLineEnd))) return {400, {}};
  int status = parse_first_line(take_until(head, kLineEnd), limits, parse.request);
  while (status == 200 && !head.empty()) status = parse_header(take_until(head, kLineEnd), parse.request);
  if (status == 200 && parse.request.header("host").empty()) status = 400;
  const auto promised = promised_bytes(parse.request);
  if (status == 200 && !promised) status = 400;
  if (status == 200 && *promised > limits.body_bytes) status = 413;
  if (status != 200) return {status, {}};
  const std::string_view body = bytes.substr(head_end + kHeadEnd.size());
  if (body.size() < *promised) return {};
  parse.request.body = body.substr(0, *promised);
  parse.status = 200;
  return parse;
}

}  // namespace megalith::observe
