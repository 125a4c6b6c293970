#include "fuzz/entries.h"
#include "megalith/base/error.h"
#include "megalith/observe/http/http_request.h"

// Bytes that complete a request complete it with anything after them, too.
void megalith::fuzz::http_request(std::string_view input) {
  const observe::HttpParse parse = observe::parse_http(input);
  if (parse.status == 0) return;
  const observe::HttpParse more = observe::parse_http(std::string(input) + "x");
  check(more.status == parse.status && more.request.path == parse.request.path, "{} became {}", parse.status,
        more.status);
}
