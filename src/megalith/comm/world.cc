// World wires the parts of `comm` together. For processes: store -> StoreLink (status, failures, watchdog) -> backends
// on demand, NCCL directly or Gloo as pairwise(lazy(c10d)). For threads: one ThreadHub where groups meet, and a board
// that reads the recorders of all ranks directly. For a rehearsal: stand-ins for all other ranks. Groups with the same
// ranks and lane share a backend.
//
// Order matters twice. connect() starts the watchdog last, when everything it looks at exists. close() meets the others
// before it shuts the communicators down, since NCCL needs all members for that, and leaves the store last, since a
// failure is read from it.
#include "megalith/comm/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"
#include "megalith/comm/backend/c10d_backend.h"
#include "megalith/comm/backend/lazy_backend.h"
#include "megalith/comm/backend/pairwise_backend.h"
#include "megalith/comm/backend/stand_in.h"
#include "megalith/comm/backend/thread_backend.h"
#include "megalith/comm/group_internal.h"
#include "megalith/comm/op/current_device.h"
#include "megalith/comm/store/agreed_start.h"
#include "megalith/comm/store/process_settings.h"
#include "megalith/comm/store/start_record.h"
#include "megalith/comm/store_link_internal.h"

namespace megalith::comm {

namespace {

// The board of ranks that are threads: all recorders are in this process.
class ThreadBoard : public StatusBoard {
 public:
  explicit ThreadBoard(std::vector<std::weak_ptr<RankState>> ranks) : ranks_(std::move(ranks)) {}

  std::map<int, RankStatus> read(const std::vector<int>& ranks) override {
    std::map<int, RankStatus> statuses;
    for (int rank : ranks)
      if (const auto state = ranks_.at(static_cast<size_t>(rank)).lock()) statuses[rank] = state->recorder.status(rank);
    return statuses;
  }
  // The lock is released before end_run, which wakes threads that may report a failure of their own.
  void report_failure(const Failure& failure) override {
    {
      std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
    }
    for (const auto& rank : ranks_)
      if (const auto state = rank.lock()) state->end_run(failure.reason);
  }
  std::optional<Failure> failure(std::chrono::milliseconds) override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  const std::vector<std::weak_ptr<RankState>> ranks_;
  std::mutex mutex_;
  std::optional<Failure> failure_;  // guarded by mutex_
};

// After a failure, how long the rank that serves the store keeps it up for the others.
constexpr std::chrono::seconds kFailureNotice{3};

// Returns the address that Gloo binds: loopback if all ranks are on this machine, else the one that reaches the store;
// empty to let Gloo choose.
std::string gloo_host(const Rendezvous& place) {
  if (place.local_world_size == place.world_size) return "127.0.0.1";
  const auto route = route_to(place.master_addr, place.master_port);
  // The machine of rank 0 reaches itself through loopback, which the other machines could not connect to.
  return !route || route->address.starts_with("127.") || route->address == "::1" ? "" : route->address;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The part of a rank's state that processes and threads have in common.
std::shared_ptr<RankState> make_state(int rank, int size, const WorldOptions& options) {
  auto state = std::make_shared<RankState>();
  state->rank = rank;
  state->size = size;
  state->timeout = options.timeout;
  state->device = options.device;
  return state;
}

// Short, since it is part of every key of the group and of every rank's status: "tp:0-3:4:91b1c02f6f0f0d83".
std::string group_id(const std::string& name, const std::vector<int>& ranks) {
  const std::string_view bytes(reinterpret_cast<const char*>(ranks.data()), ranks.size() * sizeof(int));
  return ranks.empty()
             ? name
             : fmt::format("{}:{}-{}:{}:{:016x}", name, ranks.front(), ranks.back(), ranks.size(), fnv1a64(bytes));
}

// Checks the ranks before they become part of an id: a wrong list on one rank would otherwise be another group there.
std::shared_ptr<GroupState> make_group(const std::string& id, const std::string& name, const std::vector<int>& ranks,
                                       const std::shared_ptr<RankState>& owner) {
  const std::string members = list_in_words(ranks);
  check(std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end(),
        "group {}: the ranks {} are not in ascending order", name, members);
  const auto own = std::ranges::find(ranks, owner->rank);
  check(own != ranks.end(), "group {}: rank {} is not one of its ranks {}", name, owner->rank, members);
  check(ranks.front() >= 0 && ranks.back() < owner->size, "group {}: ranks {} of a world of {}", name, members,
        owner->size);
  auto state = std::make_shared<GroupState>();
  state->id = id;
  state->name = name;
  state->ranks = ranks;
  state->rank = static_cast<int>(own - ranks.begin());
  state->owner = owner;
  return state;
}

// Lets groups of one lane with the same ranks share a backend, created by the first that needs it, under its name.
std::function<std::shared_ptr<Backend>(const GroupState&)> share_by_lane(
    std::function<std::shared_ptr<Backend>(const GroupState&)> connect) {
  auto lanes = std::make_shared<std::map<std::string, std::weak_ptr<Backend>>>();
  return [connect = std::move(connect), lanes](const GroupState& group) {
    if (group.lane.empty()) return connect(group);
    std::weak_ptr<Backend>& known = (*lanes)[group.lane];
    std::shared_ptr<Backend> backend = known.lock();
    if (!backend) known = backend = connect(group);
    return backend;
  };
}

}  // namespace

// Names of other platforms are recognized, so that a script written for one gets the reason instead of a typo message.
std::string resolve_backend(const std::string& requested, bool on_cuda, bool built_with_nccl) {
  const std::string name = to_lower(requested);
  if (name.empty()) return on_cuda && built_with_nccl ? "nccl" : "gloo";
  if (name == "gloo") return name;
  if (name == "nccl") {
    check<ConfigError>(built_with_nccl,
                       "backend nccl: this build has no CUDA support. Build with `cmake --preset cuda`, or"
                       " use gloo.");
    check<ConfigError>(on_cuda,
                       "backend nccl moves CUDA tensors only and this run is on the CPU. Use gloo, or leave the"
                       " backend unset.");
    return name;
  }
  static const std::map<std::string, std::string> others{{"hccl", "the library of Ascend NPUs"},
                                                         {"rccl", "the library of AMD GPUs"},
                                                         {"mpi", "MPI, which libtorch is not built with"},
                                                         {"ucc", "UCC, which libtorch is not built with"},
                                                         {"xccl", "the library of Intel GPUs"},
                                                         {"ccl", "the library of Intel CPUs and GPUs"},
                                                         {"oneccl", "the library of Intel CPUs and GPUs"},
                                                         {"cncl", "the library of Cambricon MLUs"},
                                                         {"mccl", "the library of Moore Threads GPUs"},
                                                         {"fake", "a stand-in without communication"}};
  const auto known = others.find(name);
  throw ConfigError(
      known == others.end()
          ? fmt::format("backend \"{}\" is not known. Supported: nccl (CUDA), gloo (CPU).", requested)
          : fmt::format("backend {} ({}) is not supported. Supported: nccl (CUDA), gloo (CPU).", name, known->second));
}

World::World(Rendezvous place, std::string backend, std::shared_ptr<RankState> state)
    : place_(std::move(place)), backend_(std::move(backend)), state_(std::move(state)) {}

World::~World() {
  if (link_) link_->expect_stop(kCloseLimit, "closing the connections of the groups");
  // The board and the state refer to each other; release both. Groups that outlive the World fail instead of hanging.
  state_->end_run("the World of this rank is gone");
  close_groups(/*in_order=*/false);
  if (link_) link_->stop();
  state_->connect = nullptr;
  state_->compare = nullptr;
  state_->board = nullptr;
}

std::unique_ptr<World> World::connect(Rendezvous place, const WorldOptions& options) {
  auto state = make_state(place.rank, place.world_size, options);
  if (place.alone()) return std::unique_ptr<World>(new World(place, "none", state));

  const std::string backend = resolve_backend(options.backend, options.device.is_cuda(), nccl_available());
  prepare_c10d(backend);
  if (backend == "nccl") {
    pass_interface_to_nccl();
    keep_nccl_buffers_in_graphs();
  }
  if (options.device.is_cuda()) use_expandable_segments();
  const auto connect_timeout = options.connect_timeout.value_or(default_connect_timeout(place.one_machine()));
  auto store = connect_store(place, connect_timeout);
  std::shared_ptr<StartRecord> record;
  if (place.counts_alone()) {
    AgreedStart start = agree_on_start(store, place.rank, place.world_size, place.restarts, connect_timeout);
    record = std::make_shared<StartRecord>(store, start.earlier);
    store = std::move(start.store);
    place.restarts = start.restarts;
  }
  auto link = std::make_shared<StoreLink>(store, place.rank, place.world_size, options.timeout);
  state->board = link;
  if (options.debug)
    state->compare = [board = link.get()](const GroupState& group, const Op& op) { return board->compare(group, op); };
  // Called at a group's first operation, on the thread of its rank.
  state->connect = [link = link.get(), backend, interface = options.interface, host = gloo_host(place),
                    timeout = options.timeout, device = options.device,
                    nccl = options.nccl](const GroupState& group) -> std::shared_ptr<Backend> {
    const int rank = group.rank;
    const int size = static_cast<int>(group.ranks.size());
    if (backend == "nccl") {
      const auto tuned = nccl.find(group.name);
      return make_nccl_backend({link->store_for(group.id), rank, size, timeout, device}, group.name,
                               tuned == nccl.end() ? NcclGroupSettings{} : tuned->second);
    }
    const auto connect_members = [=](const std::string& id, int member, int members) {
      const C10dGroup parts{link->polling_store_for(id), member, members, timeout, device};
      return make_lazy_backend([=] {
        make_device_current(device);  // operations that waited for the connection start on this thread
        return make_gloo_backend(parts, interface, host);
      });
    };
    return make_pairwise_backend(
        rank, [=, id = group.id] { return connect_members(id, rank, size); },
        [=, id = group.id](int peer) {
          // Both ends form the same id, so they meet in the same keys of the store.
          const auto [low, high] = std::minmax(rank, peer);
          return connect_members(fmt::format("{}/{}-{}", id, low, high), rank == low ? 0 : 1, 2);
        });
  };
  state->connect = share_by_lane(std::move(state->connect));
  std::unique_ptr<World> world(new World(place, backend, state));
  world->link_ = link;
  world->record_ = record;
  link->watch(state, options.on_stuck);
  return world;
}

// All ranks share one hub and one board; everything else is as for processes, so tests exercise the same code.
std::vector<std::unique_ptr<World>> World::in_process(int size, const WorldOptions& options) {
  check(size >= 1, "an in-process world of {} ranks", size);
  const auto hub = std::make_shared<ThreadHub>();
  std::vector<std::shared_ptr<RankState>> states;
  for (int rank = 0; rank < size; ++rank) states.push_back(make_state(rank, size, options));
  const auto board = std::make_shared<ThreadBoard>(std::vector<std::weak_ptr<RankState>>(states.begin(), states.end()));

  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) {
    const auto& state = states[static_cast<size_t>(rank)];
    state->board = board;
    state->connect = share_by_lane([hub](const GroupState& group) -> std::shared_ptr<Backend> {
      return hub->connect(group.id, group.rank, static_cast<int>(group.ranks.size()));
    });
    Rendezvous place;
    place.rank = place.local_rank = rank;
    place.world_size = place.local_world_size = size;
    place.source = "threads of one process";
    worlds.emplace_back(new World(place, size == 1 ? "none" : "threads", state));
  }
  return worlds;
}

// No store, no board and no watchdog: nobody else can fail.
std::unique_ptr<World> World::rehearse(int rank, int size, const WorldOptions& options,
                                       std::shared_ptr<StandIns> others) {
  check(rank >= 0 && rank < size, "a rehearsal of rank {} in a world of {}", rank, size);
  auto state = make_state(rank, size, options);
  state->connect =
      share_by_lane([others](const GroupState& group) -> std::shared_ptr<Backend> { return others->connect(group); });
  Rendezvous place;
  place.rank = rank;
  place.world_size = size;
  place.source = "a rehearsal";
  return std::unique_ptr<World>(new World(place, size == 1 ? "none" : "stand-ins", state));
}

int World::rank() const { return state_->rank; }
int World::size() const { return state_->size; }

Group World::world() { return group("world", all_ranks(size()), kControlLane); }

// Groups are kept for the life of the World: the recorder refers to them.
Group World::group(const std::string& name, const std::vector<int>& ranks, const std::string& lane) {
  const std::string id = group_id(name, ranks);
  auto entry = groups_.find(id);
  if (entry == groups_.end()) {
    entry = groups_.emplace(id, make_group(id, name, ranks, state_)).first;
    if (!lane.empty()) entry->second->lane = group_id("lane:" + lane, ranks);
  }
  return Group(entry->second);
}

int World::connected_groups() const {
  std::set<const Backend*> backends;
  for (const auto& [id, group] : groups_)
    if (group->backend) backends.insert(group->backend.get());
  return static_cast<int>(backends.size());
}

void World::set_timeout(std::chrono::milliseconds timeout) {
  state_->timeout = std::min(timeout, state_->timeout.load());
}

void World::report_failure(const std::string& reason, std::optional<int> culprit) {
  if (record_) record_->note_failure();
  if (state_->board) state_->board->report_failure({culprit.value_or(rank()), reason});
}

// compareSet returns the value that is in the store afterwards: ours, or the earlier one.
std::string World::claim(const std::string& what, const std::string& holder) {
  if (!link_) return holder;
  const std::vector<uint8_t> mine(holder.begin(), holder.end());
  const std::vector<uint8_t> held = link_->store_for("claims")->compareSet(what, {}, mine);
  return {held.begin(), held.end()};
}

// Asks often at first: most ranks come within milliseconds of one another.
void World::wait_for_all(const std::function<void(const std::vector<int>& missing)>& tell) {
  if (!link_) return;
  const auto deadline = std::chrono::steady_clock::now() + state_->timeout.load();
  std::vector<int> missing = all_ranks(size());
  for (std::chrono::milliseconds pause(5);; pause = std::min(2 * pause, link_->beat())) {
    const size_t before = missing.size();
    missing = link_->not_connected(missing);
    if (missing.empty()) return;
    state_->throw_if_over();
    if (missing.size() != before) tell(missing);
    check<CommError>(std::chrono::steady_clock::now() < deadline,
                     "rank {}: {} of {} ranks have not connected within {:g} s (ddp_timeout): {}. Look at what their"
                     " machines say, and whether all of them were started",
                     rank(), missing.size(), size(), std::chrono::duration<double>(state_->timeout.load()).count(),
                     list_in_words(missing));
    std::this_thread::sleep_for(pause);
  }
}

// Meet, shut down, leave: see the top of the file. The watchdog runs until the end, and ends the process if one of the
// three hangs.
void World::close() {
  if (size() > 1 && link_) {
    const bool all_here = link_->meet_at_end(state_->timeout.load());
    const auto failure = all_here ? std::nullopt : link_->failure(std::chrono::milliseconds(0));
    link_->expect_stop(kCloseLimit, "closing the connections of the groups");
    close_groups(/*in_order=*/all_here);
    // After a failure the others need the store to learn of it.
    link_->leave(all_here ? kCloseLimit : kFailureNotice, place_.hosts_store);
    link_->stop();
    if (failure && failure->rank != rank())
      throw PeerFailure(fmt::format("rank {}: another rank failed before the end: {}", rank(), failure->reason));
    check<CommError>(!failure, "{}", failure ? failure->reason : "");
    check<CommError>(all_here, "rank {}: the other ranks did not reach the end of the run; see their logs", rank());
  }
}

void World::close_groups(bool in_order) {
  // NCCL's communicators are shut down by all members together, so each rank takes them in the same order (by key).
  // Groups of one lane share theirs.
  std::map<std::string, std::shared_ptr<Backend>> backends;
  for (const auto& [id, group] : groups_)
    if (group->backend) backends[group->lane.empty() ? id : group->lane] = group->backend;
  for (const auto& [key, backend] : backends) {
    if (!in_order) break;
    try {
      backend->shutdown();
    } catch (const std::exception& error) {
      // The run has done its work; a communicator that cannot be shut down is aborted on destruction.
      log_warning("rank {}: shutting down {}: {}", rank(), key, first_line(error.what()));
    }
  }
  for (const auto& [id, group] : groups_) group->backend.reset();
}

void World::set_trace(TraceRecorder* trace) {
  state_->recorder.set_trace(trace);
  state_->marks.set_trace(trace);
}

double World::waited_seconds() const {
  return static_cast<double>(state_->waited_ns) / 1e9 + state_->marks.waited_seconds();
}

std::vector<OpTotal> World::operation_totals() const { return state_->recorder.totals(); }

std::vector<std::string> World::recent_operations() const { return state_->recorder.recent(); }

}  // namespace megalith::comm
