// Four kinds of errors, so that a caller can tell a user's mistake from a failed peer and from a bug of our own.
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

// The user must change a setting: an option, a layout, an environment variable. Exit code 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A file is missing, damaged or has the wrong shape. Exit code 2.
class DataError : public Error {
 public:
  using Error::Error;
};

// A peer or the network failed, or a time limit passed. Exit code 1.
class CommError : public Error {
 public:
  using Error::Error;
};

// A bug in Megalith: something that no input should cause. Exit code 1.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

// A format string that remembers where it was written: a parameter pack leaves no room for a defaulted
// source_location after it, but the conversion from a literal can capture one.
template <typename... Args>
struct FormatAt {
  template <typename S>
    requires std::convertible_to<const S&, std::string_view>
  // NOLINTNEXTLINE(google-explicit-constructor): literals must convert implicitly.
  consteval FormatAt(const S& format_text, std::source_location location = std::source_location::current())
      : text(format_text), where(location) {}

  fmt::format_string<Args...> text;
  std::source_location where;
};

// Appends file and line to the message of an InternalError.
std::string with_location(std::string message, const std::source_location& where);

// The failure of a check, the same for all types of arguments: there are thousands of checks to compile.
template <typename E>
[[noreturn]] void fail(fmt::string_view message, fmt::format_args args, const std::source_location& where) {
  std::string text = fmt::vformat(message, args);
  if constexpr (std::is_same_v<E, InternalError>) text = with_location(std::move(text), where);
  throw E(text);
}

}  // namespace detail

// Throws E with the formatted message unless `condition` holds. An InternalError also names file and line.
//
//   check<ConfigError>(seed > 0, "seed is {}; it must be a positive integer", seed);
//   check(shard.defined(), "parameter {} has no gradient buffer", name);
template <typename E = InternalError, typename... Args>
void check(bool condition, detail::FormatAt<std::type_identity_t<Args>...> message, Args&&... args) {
  if (condition) [[likely]]
    return;
  detail::fail<E>(message.text, fmt::make_format_args(args...), message.where);
}

}  // namespace megalith
