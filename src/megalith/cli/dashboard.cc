// `megalith dashboard`: shows runs in a browser, or writes them as one HTML file. Its words are parsed here, not by the
// option table: folders come without an option name. The server runs on the main thread; a second thread waits for a
// signal and stops it.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/command.h"
#include "megalith/io/file_io.h"
#include "megalith/observe/dashboard/server.h"
#include "megalith/observe/dashboard/webhook.h"
#include "megalith/run/signals.h"

namespace megalith::cli {

namespace {

// The text of --help.
constexpr const char* kDashboardUsage = R"(megalith dashboard RUN_DIR… [--host ADDRESS] [--port N] [--token TEXT]
megalith dashboard RUN_DIR… --static FILE.html

Shows runs live and afterwards: loss, rates, memory, layout, timeline, experts, checkpoints, events. RUN_DIR is
a run's output_dir, or a folder of such folders. Nothing is changed but the notes that you write on the page
(notes.json in the run's folder), and nothing outside these folders is read. /metrics is for Prometheus.

  --host ADDRESS    where to listen (default 127.0.0.1: this machine only). With another address a token is needed to
                    see anything; it is part of the address that is printed. There is no encryption
  --port N          default 0: any free port. The address is printed on stdout
  --token TEXT      the token, instead of a random one; at least 16 letters, digits, '-' and '_'
  --read-only       take no notes
  --webhook URL     send alerts (NaN, loss spike, stall, straggler, low disk) as JSON to http://HOST[:PORT][/PATH], or
                    to https://… on a machine that has the program curl
  --static FILE     write the page with all data into one file instead, which opens without a server
)";

// The words of the command line.
struct DashboardFlags {
  std::vector<std::filesystem::path> folders;
  observe::ServerAddress address;
  std::optional<std::string> report;
  std::optional<observe::HttpUrl> webhook;
  bool read_only = false;
  bool help = false;
};

// 0 lets the system choose a free port.
int port_of(const std::string& text) {
  constexpr int64_t kMostPorts = 65535;
  const auto port = parse_int(text);
  check<ConfigError>(port && *port >= 0 && *port <= kMostPorts, "port is \"{}\"; it must be from 0 (any) to {}", text,
                     kMostPorts);
  return static_cast<int>(*port);
}

DashboardFlags read(Words words) {
  DashboardFlags flags;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i];
    if (name == "--help" || name == "-h") {
      flags.help = true;
      continue;
    }
    if (name == "--read-only") {
      flags.read_only = true;
      continue;
    }
    if (!name.starts_with("--")) {
      flags.folders.emplace_back(name);
      continue;
    }
    // --name=value or --name value.
    std::optional<std::string> value;
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const std::vector<std::string> known{"--host",      "--port",    "--token", "--static",
                                         "--read-only", "--webhook", "--help"};
    check<ConfigError>(std::ranges::find(known, name) != known.end(), "megalith dashboard has no option {}; it has {}",
                       name, list_in_words(known));
    if (!value && i + 1 < words.size()) value = words[++i];
    check<ConfigError>(value && !value->empty(), "{} needs a value", name);
    if (name == "--host") flags.address.host = *value;
    if (name == "--port") flags.address.port = port_of(*value);
    if (name == "--token") flags.address.token = *value;
    if (name == "--webhook") flags.webhook = observe::HttpUrl::parse(*value);
    if (name == "--static") flags.report = *value;
  }
  return flags;
}

// Serves until a signal requests the end.
void serve(observe::Dashboard& dashboard, const DashboardFlags& flags) {
  run::EndingSignals signals({SIGHUP});
  observe::DashboardServer server(dashboard, flags.address);
  std::thread waiting([&] {
    if (signals.wait()) server.stop();
  });
  std::optional<observe::AlertWebhook> webhook;
  if (flags.webhook)
    webhook.emplace(dashboard, observe::AlertWebhook::Settings{
                                   .url = *flags.webhook, .failed = [](const std::string& reason) {
                                     fmt::print(stderr, "warning: an alert could not be delivered: {}\n", reason);
                                   }});
  // The address alone on stdout, for programs that start the dashboard; people read stderr.
  fmt::print("{}\n", server.url());
  fmt::print(stderr, "showing {} {}; Ctrl-C ends it\n", dashboard.runs(), dashboard.runs() == 1 ? "run" : "runs");
  std::fflush(stdout);
  server.run();
  signals.cancel();
  waiting.join();
}

}  // namespace

std::string_view dashboard_usage() { return kDashboardUsage; }

int run_dashboard(Words words) {
  const DashboardFlags flags = read(words);
  if (flags.help) {
    fmt::print("{}", kDashboardUsage);
    return kDone;
  }
  observe::Dashboard dashboard(flags.folders, {.takes_notes = !flags.read_only && !flags.report});
  if (!flags.report) {
    serve(dashboard, flags);
    return kDone;
  }
  io::replace_text_file(*flags.report, dashboard.report());
  fmt::print(stderr, "wrote {}\n", *flags.report);
  return kDone;
}

}  // namespace megalith::cli
