// A POST over https, by the program curl. Alerts are rare, so a process for each costs nothing, and Megalith needs no
// library for TLS.
#pragma once

#include <chrono>
#include <string>

namespace megalith::observe {

// Returns whether there is a program named curl in PATH.
bool has_https_program();

// Sends `body` as application/json to `url`, which has no quotes. Returns "" when the answer's status is 2xx and the
// reason for the failure otherwise, in curl's words. Never throws. Neither the address, which may hold a secret, nor
// the body is among the words of the process, which every user of the machine can see.
std::string post_https(const std::string& url, const std::string& body, std::chrono::milliseconds patience);

}  // namespace megalith::observe
