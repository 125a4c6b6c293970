// Keeps the resolver out of every connection.
//
// For each connection, c10d's TCPStore formats both addresses with host names for its debug log, whether or not the
// line is printed. Where reverse lookups are slow or unanswered (many clusters, most containers), every connection of
// every rank then costs seconds. Host names are of no use here, so getnameinfo returns numeric addresses in our own
// programs.
//
// Linked into executables only (megalith, tests, benchmarks): a library must not change what libc does for its host.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>

extern "C" int getnameinfo(const sockaddr* address, socklen_t address_length, char* host, socklen_t host_length,
                           char* service, socklen_t service_length, int flags) {
  static const auto original = reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  return original(address, address_length, host, host_length, service, service_length,
                  flags | NI_NUMERICHOST | NI_NUMERICSERV);
}
