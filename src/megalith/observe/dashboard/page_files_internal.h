// The files of observe/dashboard/page/, compiled in by cmake/EmbedFiles.cmake.
#pragma once

#include <string_view>

namespace megalith::observe::page_files {

extern const std::string_view index_html, dashboard_css;
// In the order in which the page needs them.
extern const std::string_view format_js, axes_js, download_js, chart_js, timeline_js, cluster_js, ranks_js, runs_js,
    tables_js, samples_js, histograms_js, zoom_js, app_js;

}  // namespace megalith::observe::page_files
