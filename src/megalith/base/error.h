// Errors: four kinds, so that a caller can tell a user's mistake from a broken peer and from our own bug.
//
// A message says what was given, what is allowed and what to do. The library throws; only `cli` prints and exits.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace megalith {

// Base of everything that Megalith throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The user fixes a setting: an option, a layout, an environment variable. Exit code 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A file is missing, broken or of the wrong shape. Exit code 2.
class DataError : public Error {
 public:
  using Error::Error;
};

// A peer, the network or a time limit. Exit code 1.
class CommError : public Error {
 public:
  using Error::Error;
};

// A bug of Megalith: something that no input should bring about. Exit code 1.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

// A format string that remembers where it was written: the way to a default source_location before a parameter pack.
template <typename... Args>
struct FormatAt {
  template <typename S>
    requires std::convertible_to<const S&, std::string_view>
  // NOLINTNEXTLINE(google-explicit-constructor): a literal has to become one by itself.
  consteval FormatAt(const S& format_text, std::source_location location = std::source_location::current())
      : text(format_text), where(location) {}

  fmt::format_string<Args...> text;
  std::source_location where;
};

std::string with_location(std::string message, const std::source_location& where);

}  // namespace detail

// Throws E with the formatted message unless `condition` holds. An InternalError also names file and line.
//
//   check<ConfigError>(seed > 0, "seed is {}; it must be a positive integer", seed);
//   check(shard.defined(), "parameter {} has no gradient buffer", name);
template <typename E = InternalError, typename... Args>
void check(bool condition, detail::FormatAt<std::type_identity_t<Args>...> message, Args&&... args) {
  if (condition) [[likely]]
    return;
  std::string text = fmt::format(message.text, std::forward<Args>(args)...);
  if constexpr (std::is_same_v<E, InternalError>) text = detail::with_location(std::move(text), message.where);
  throw E(text);
}

}  // namespace megalith
