// Replaces server.cc in a build without cpp-httplib.
#include "megalith/base/error.h"
#include "megalith/observe/dashboard/server.h"

namespace megalith::observe {

struct DashboardServer::Parts {};

DashboardServer::DashboardServer(Dashboard&, const ServerAddress&) {
  throw ConfigError(
      "this program was built without cpp-httplib, so it cannot serve a page; write a report with --static FILE, or "
      "install libcpp-httplib-dev and build again");
}
DashboardServer::~DashboardServer() = default;
int DashboardServer::port() const { return 0; }
std::string DashboardServer::url() const { return ""; }
void DashboardServer::run() {}
void DashboardServer::stop() {}

}  // namespace megalith::observe
