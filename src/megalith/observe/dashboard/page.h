// The dashboard's page: one HTML text with its styles, its scripts and, in a report, its data.
#pragma once

#include <string>
#include <string_view>

namespace megalith::observe {

// Returns the page of observe/dashboard/page/, which is compiled in. `data` is JSON: null makes the page ask its
// server; otherwise it is the data that Dashboard::report collects. Texts in `data` cannot escape: JSON in a script
// element can be left only by a `<`, and none remains. The page's policy lets only scripts and styles run that carry
// `nonce`. `nonce` must be fresh for each page that is served: a policy with a known one would protect nothing.
// `write_token` is what the page sends with notes; empty for a page that cannot write any.
std::string page_html(std::string_view data, std::string_view nonce, std::string_view write_token);

// Returns the same policy as a header: no other sources, no frames, connections to this server only.
std::string content_security_policy(std::string_view nonce);

// Returns 128 random bits, different in every call. 32 hexadecimal digits, from the system's random device.
std::string random_nonce();

}  // namespace megalith::observe
