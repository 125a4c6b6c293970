// The dashboard's page: one HTML text with its styles, its scripts and, in a report, its data.
#pragma once

#include <string>
#include <string_view>

namespace megalith::observe {

// The page from observe/dashboard/page/, which is compiled in. `data` is JSON: null, and the page asks its server; or
// what Dashboard::report gives. Whatever texts `data` holds, they end up as text: JSON in a script element can only be
// left by a `<`, and none stays. The page's own policy lets only scripts and styles run that carry `nonce`.
std::string page_html(std::string_view data, std::string_view nonce);

// The same policy as a header: no other sources, no frames, connections to this server alone.
std::string content_security_policy(std::string_view nonce);

// 128 random bits, unlike those of any other call.
std::string random_nonce();

}  // namespace megalith::observe
