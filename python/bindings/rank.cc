// The process joins through the connection that belongs to it (run::initialize_megatron). A thread has a World of its
// own, on which it makes groups once; every model of the thread uses them.
#include <fmt/format.h>

#include <chrono>
#include <mutex>

#include "megalith/base/error.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/resolve/runtime_settings.h"
#include "session.h"

namespace megalith::python {

namespace {

// Throws ConfigError unless existing groups have these sizes.
void check_groups(const parallel::ParallelContext& context, const layout::GridShape& wanted) {
  const auto sizes = [](const layout::GridShape& shape) {
    return fmt::format("tp {}, pp {}, cp {}, ep {}, etp {}", shape.tp, shape.pp, shape.cp, shape.ep, shape.expert_tp());
  };
  const std::string here = sizes(context.grid().shape());
  check<ConfigError>(here == sizes(wanted),
                     "the arguments ask for {}, and the groups of this process have {}; call shutdown_megatron() before"
                     " a run in another layout",
                     sizes(wanted), here);
}

}  // namespace

Rank::Rank(std::unique_ptr<comm::World> world) : world_(std::move(world)) {
  if (world_) runtime_ = std::make_unique<parallel::Runtime>(*world_);
}

Rank::~Rank() { close_objects(); }

std::shared_ptr<Rank> Rank::of_process() { return std::shared_ptr<Rank>(new Rank(nullptr)); }

std::vector<std::shared_ptr<Rank>> Rank::of_threads(int size, double timeout_seconds) {
  check<ConfigError>(size >= 1, "{} ranks were asked for; give at least 1", size);
  comm::WorldOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  std::vector<std::shared_ptr<Rank>> ranks;
  for (auto& world : comm::World::in_process(size, options))
    ranks.push_back(std::shared_ptr<Rank>(new Rank(std::move(world))));
  return ranks;
}

void Rank::initialize(const Options& options) {
  begin(options);
  if (!world_) {
    context_ =
        &run::initialize_megatron(options.parsed.args, {.dialect = config::Dialect::kTrain, .allow_no_cuda = true})
             ->context();
    return;
  }
  const run::RunWorld world = this->world(options.parsed.args.comm);
  config::validate(options.parsed.args, {.world_size = world.size, .needs_inputs = false});
  const config::TrainingArguments args = config::derive(options.parsed.args).args;
  join(args, run::run_settings(args, world));
}

bool Rank::is_initialized() const {
  return context_ != nullptr && (world_ != nullptr || run::is_distribute_initialized());
}

void Rank::add(Closable* object) {
  const std::scoped_lock lock(mutex_);
  open_.push_back(object);
}

void Rank::remove(Closable* object) {
  const std::scoped_lock lock(mutex_);
  std::erase(open_, object);
}

void Rank::close_objects() {
  std::vector<Closable*> open;
  {
    const std::scoped_lock lock(mutex_);
    open = open_;
  }
  for (auto object = open.rbegin(); object != open.rend(); ++object) (*object)->close();
}

void Rank::shutdown() {
  close_objects();
  context_ = nullptr;
  if (!world_) return run::shutdown_megatron();
  runtime_.reset();
  world_->close();
}

void Rank::abandon() {
  close_objects();
  context_ = nullptr;
}

void Rank::report_failure(const std::string& reason) const {
  const auto [number, size] = place();
  const std::string text = fmt::format("rank {}: {}", number, reason);
  if (world_) return world_->report_failure(text, number);
  if (is_initialized()) context_->world().report_failure(text, number);
}

std::pair<int, int> Rank::place() const {
  if (world_) return {world_->rank(), world_->size()};
  const comm::Rendezvous place = comm::rendezvous_from_env();
  return {place.rank, place.world_size};
}

run::RunWorld Rank::world(const config::CommConfig& comm) const {
  if (world_) {
    check<ConfigError>(comm.use_cpu, "ranks that are threads of one process run on the CPU; set use_cpu=True");
    return {.size = world_->size(), .one_machine = true};
  }
  run::LaunchFlags flags;
  flags.check(comm);
  return flags.world();
}

bool Rank::begins_run() const { return world_ ? world_->rank() == 0 : run::LaunchFlags().begins_run(); }

std::unique_ptr<run::RunContext> Rank::join(const config::TrainingArguments& args, const run::RunSettings& settings,
                                            run::InitializeOptions more) {
  if (is_initialized()) check_groups(*context_, settings.runtime.grid);
  more.dialect = args.dialect;
  more.allow_no_cuda = true;
  if (world_) more.context = &runtime_->initialize(settings.runtime);
  auto run = std::make_unique<run::RunContext>(args, settings, std::move(more));
  run->finish_mpu_init();
  context_ = &run->context();
  return run;
}

}  // namespace megalith::python
