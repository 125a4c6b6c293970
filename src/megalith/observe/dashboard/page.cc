// The page is one self-contained document: styles and scripts are compiled into the program and pasted into index.html
// at its @MARKS@, so the server has a single file to serve and a report can be mailed. Its security policy allows only
// what carries the nonce of this very page; a text from a run that managed to become markup would not run.
#include "megalith/observe/dashboard/page.h"

#include <fmt/format.h>

#include <random>

#include "megalith/base/error.h"
#include "megalith/observe/dashboard/page_files_internal.h"

namespace megalith::observe {

namespace {

// Replaces the only occurrence of `mark`.
void fill(std::string& page, std::string_view mark, std::string_view with) {
  const size_t at = page.find(mark);
  check(at != std::string::npos, "the page has no place for {}", mark);
  page.replace(at, mark.size(), with);
}

// Escapes `<`, which can occur only inside JSON strings; U+2028 and U+2029 need no care in data blocks.
std::string safe_in_script(std::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (const char c : json)
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  return safe;
}

// img-src data: is for the empty icon of the page; everything else comes with the document.
std::string policy(std::string_view nonce) {
  return fmt::format(
      "default-src 'none'; connect-src 'self'; img-src data:; script-src 'nonce-{0}'; "
      "style-src 'nonce-{0}'; base-uri 'none'; form-action 'none'",
      nonce);
}

}  // namespace

std::string page_html(std::string_view data, std::string_view nonce, std::string_view write_token) {
  // One script after the other in one element; a later one uses functions of those before it, app.js starts them.
  std::string scripts;
  for (const std::string_view script :
       {page_files::format_js, page_files::axes_js, page_files::download_js, page_files::chart_js,
        page_files::timeline_js, page_files::cluster_js, page_files::ranks_js, page_files::runs_js,
        page_files::tables_js, page_files::samples_js, page_files::histograms_js, page_files::zoom_js,
        page_files::app_js})
    scripts += script;
  std::string page(page_files::index_html);
  const std::string attribute = fmt::format("nonce=\"{}\"", nonce);
  fill(page, "@WRITE_TOKEN@", write_token);
  fill(page, "@POLICY@", policy(nonce));
  fill(page, "@STYLE_NONCE@", attribute);
  fill(page, "@STYLE@", page_files::dashboard_css);
  fill(page, "@SCRIPT_NONCE@", attribute);
  fill(page, "@SCRIPT@", scripts);
  fill(page, "@DATA@", safe_in_script(data));  // last: its contents are not searched for marks
  return page;
}

// frame-ancestors works only in a header, not in the page's own meta element.
std::string content_security_policy(std::string_view nonce) { return policy(nonce) + "; frame-ancestors 'none'"; }

std::string random_nonce() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

}  // namespace megalith::observe
