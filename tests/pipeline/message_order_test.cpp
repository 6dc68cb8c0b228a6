// SPDX-License-Identifier: Apache-2.0
//
// Both ends of every link between ranks have the same messages in the same order, and queues that
// stop at each message until the other end has come (as NCCL's do) never stop for good. Real
// executors play one rank after the other of many plans, on a transport that notes their calls. The
// notes are then replayed together, by the rules of comm/nccl_messages.cpp.
#include "pipeline/pipeline_plan.hpp"

#include "device/compat.hpp"
#include "io/data/synthetic.hpp"
#include "models/registry.hpp"
#include "pipeline/executor.hpp"
#include "pipeline/schedule/generators/rules.hpp"
#include "tests/support/test.hpp"

namespace millrace::pipeline {
namespace {

using Order = comm::MessageOrder;

/// A call of an executor. A wait is where it cannot go on before the message is done.
struct Call {
  enum Kind { Send, Receive, Wait } kind;
  int message;
};

struct Prepared {
  bool sends;
  int peer;
  int tag;
  std::int64_t bytes;
};

/// Messages are done as soon as the executor insists: when it waits, or has asked often. Whether it
/// could have gone on until then is not noted, so that the replay is stricter than a run.
class NotingTransport final : public comm::Transport {
 public:
  /// Messages with tags from `asked_for` on are only asked for, never waited for.
  NotingTransport(int rank, int asked_for) : rank_(rank), asked_for_(asked_for) {}
  int add_run(const Order& order) override {
    orders.push_back(order);
    return static_cast<int>(orders.size()) - 1;
  }
  void begin_run(int run) override {
    begun = run;
    calls.clear();
  }
  int prepare_send(const std::byte*, std::int64_t bytes, int rank, int tag) override {
    return add({true, rank, tag, bytes});
  }
  int prepare_receive(std::byte*, std::int64_t bytes, int rank, int tag) override {
    return add({false, rank, tag, bytes});
  }
  void start(int message) override {
    const Prepared& own = at(message);
    if (own.peer == rank_) return;
    EXPECT_TRUE(asked_[static_cast<std::size_t>(message)] < 0) << "it is started already";
    asked_[static_cast<std::size_t>(message)] = 0;
    calls.push_back({own.sends ? Call::Send : Call::Receive, message});
  }
  bool done(int message) override {
    int& asked = asked_[static_cast<std::size_t>(message)];
    if (at(message).tag >= asked_for_) asked = -1;
    if (asked < 0) return true;
    constexpr int kInsists = 40;
    if (++asked < kInsists) return false;
    wait(message);
    return true;
  }
  void wait(int message) override {
    if (std::exchange(asked_[static_cast<std::size_t>(message)], -1) >= 0)
      calls.push_back({Call::Wait, message});
  }
  void flush() override {}
  [[nodiscard]] bool is_staged() const override { return false; }
  [[nodiscard]] comm::Patience patience() const override { return comm::Patience(false); }

  [[nodiscard]] const Prepared& at(int message) const {
    return prepared_[static_cast<std::size_t>(message)];
  }
  std::vector<Order> orders;
  int begun = -1;
  std::vector<Call> calls;  ///< of this run

 private:
  int add(const Prepared& message) {
    prepared_.push_back(message);
    asked_.push_back(-1);
    return static_cast<int>(prepared_.size()) - 1;
  }

  int rank_;
  int asked_for_;
  std::vector<Prepared> prepared_;
  std::vector<int> asked_;  ///< how often; -1: not started
};

/// The first tag of the sums over replicas that ranks add up in an order of their own, and so may
/// not insist on.
int sums_of(const models::Graph& graph, const PipelinePlan& plan) {
  if (!plan.is_joint()) return std::numeric_limits<int>::max();
  return plan.ranks.replicas * static_cast<int>(messages(graph, plan.ranges).size());
}

/// The part of one rank.
class Rank {
 public:
  Rank(const models::Graph& graph, const PipelinePlan& plan, const PipelinePlan& evaluation,
       int rank, bool sharded, ops::Backend& backend)
      : transport(rank, sums_of(graph, plan)) {
    const std::vector<Slots> slots = slots_of(graph, plan);
    const std::vector<Slots> evaluation_slots = slots_of(graph, evaluation);
    const std::shared_ptr<const io::Dataset> data = io::make_synthetic({.size = 64});
    std::int64_t bytes = 0;
    for (std::int32_t r = 0; r < plan.ranks.replicas; ++r) {
      for (std::int32_t s = 0; s < plan.schedule.stages; ++s) {
        if (plan.rank_of(r, s) != rank) continue;
        const auto at = static_cast<std::size_t>(plan.unit(r, s));
        StageOptions options;
        options.batch = 1;
        options.evaluation_batch = 1;
        options.slots = slots[at];
        options.evaluation_slots = evaluation_slots[at];
        options.parameters.rule = UpdateRule::Momentum;
        options.parameters.reduce = {.replicas = plan.ranks.replicas, .most_bytes = 4096};
        if (sharded) {
          options.parameters.shares = plan.ranks.replicas;
          options.parameters.share = r;
        }
        stages_.push_back(std::make_unique<Stage>(graph, plan.ranges[static_cast<std::size_t>(s)],
                                                  options, backend));
        units_.push_back({r, s, stages_.back().get()});
        bytes += device::aligned(stages_.back()->bytes());
        loaders_.push_back(std::make_unique<io::Loader>(
            data, io::SampleOrder::shuffled(1, data->size()),
            io::LoaderOptions{.batch_size = 1, .threads = 0, .replicas = 1, .replica = 0}));
      }
    }
    training_ = std::make_unique<Executor>(graph, plan, units_, rank);
    evaluating_ = std::make_unique<Executor>(graph, evaluation, units_, rank);
    arena_ = std::make_unique<device::Arena>(bytes + training_->bytes());
    std::int64_t offset = 0;
    for (const auto& stage : stages_) {
      stage->bind(arena_->at(offset));
      stage->parameters().initialise(1);
      offset += device::aligned(stage->bytes());
    }
    training_->bind(arena_->at(offset), transport, world_);
    evaluating_->bind(nullptr, transport, world_);
  }

  /// Returns whether weights were updated; with batch statistics that never came, they are not.
  bool train() {
    run(*training_);
    return !training_->skipped();
  }
  void evaluate() { run(*evaluating_); }
  NotingTransport transport;

 private:
  void run(Executor& executor) {
    std::vector<io::BatchSource*> feeds;
    for (std::size_t u = 0; u < units_.size(); ++u)
      feeds.push_back(executor.reads_images(u) || executor.reads_labels(u) ? loaders_[u].get()
                                                                           : nullptr);
    executor.run(device::ExecutionSpace(), {}, feeds);
  }

  comm::World world_{comm::World::Alone{}};
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<LocalStage> units_;
  std::vector<std::unique_ptr<io::Loader>> loaders_;
  std::unique_ptr<Executor> training_;
  std::unique_ptr<Executor> evaluating_;
  std::unique_ptr<device::Arena> arena_;
};

/// All ranks at once. A link is a queue at each end; what is first in both has met.
class Replay {
 public:
  explicit Replay(std::span<const std::unique_ptr<Rank>> ranks) : ranks_(ranks) {
    for (const auto& rank : ranks) {
      const NotingTransport& own = rank->transport;
      EXPECT_EQ(own.orders, ranks.front()->transport.orders);
      EXPECT_EQ(own.begun, ranks.front()->transport.begun);
    }
    order_ =
        ranks.front()->transport.orders[static_cast<std::size_t>(ranks.front()->transport.begun)];
    at_.resize(ranks.size());
  }

  /// Number of messages that met.
  int run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r)
        while (step(static_cast<int>(r))) moves = true;
      for (auto& [key, link] : links_) moves = meet(link) || moves;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      EXPECT_EQ(at_[r], ranks_[r]->transport.calls.size()) << "rank " << r << " waits for ever";
    for (const auto& [key, link] : links_) {
      EXPECT_TRUE(link.sends.empty() && link.receives.empty() && link.posted.empty());
      const auto& [from, to, tag] = key;
      if (tag == kOrdered) {
        EXPECT_EQ(link.sent, order_.at({from, to}));
      }
    }
    return met_;
  }

 private:
  static constexpr int kOrdered = -1;
  using End = std::pair<int, int>;  ///< rank and message
  struct Link {
    std::deque<End> sends;
    std::deque<End> receives;
    std::vector<End> posted;
    std::size_t issued = 0;
    std::vector<int> sent;
  };

  const Prepared& message(const End& end) const {
    return ranks_[static_cast<std::size_t>(end.first)]->transport.at(end.second);
  }
  /// The order of the link that a message belongs to; null: it has a link of its own.
  const std::vector<int>* order_of(int rank, const Prepared& m) const {
    const auto found = m.sends ? order_.find({rank, m.peer}) : order_.find({m.peer, rank});
    if (found == order_.end()) return nullptr;
    const std::vector<int>& tags = found->second;
    return std::find(tags.begin(), tags.end(), m.tag) != tags.end() ? &tags : nullptr;
  }
  /// The next call of a rank, if it need not wait.
  bool step(int rank) {
    const NotingTransport& own = ranks_[static_cast<std::size_t>(rank)]->transport;
    std::size_t& at = at_[static_cast<std::size_t>(rank)];
    if (at == own.calls.size()) return false;
    const auto [kind, number] = own.calls[at];
    const Prepared& m = own.at(number);
    const std::vector<int>* const order = order_of(rank, m);
    Link& link = links_[{m.sends ? rank : m.peer, m.sends ? m.peer : rank,
                         order != nullptr ? kOrdered : m.tag}];
    const End end{rank, number};
    if (kind == Call::Wait) {
      EXPECT_EQ(std::count(link.posted.begin(), link.posted.end(), end), 0)
          << "rank " << rank << " waits for message " << m.tag << " which has not had its turn";
      if (pending_.contains(end)) return false;
    } else {
      pending_[end] = true;
      if (kind == Call::Send) {
        link.sends.push_back(end);
        link.sent.push_back(m.tag);
      } else if (order != nullptr) {
        link.posted.push_back(end);
        issue_in_turn(link, *order);
      } else {
        link.receives.push_back(end);
      }
    }
    ++at;
    return true;
  }
  void issue_in_turn(Link& link, const std::vector<int>& order) const {
    for (; link.issued < order.size(); ++link.issued) {
      const auto next = std::find_if(link.posted.begin(), link.posted.end(), [&](const End& end) {
        return message(end).tag == order[link.issued];
      });
      if (next == link.posted.end()) return;
      link.receives.push_back(*next);
      link.posted.erase(next);
    }
  }
  bool meet(Link& link) {
    if (link.sends.empty() || link.receives.empty()) return false;
    EXPECT_EQ(message(link.sends.front()).tag, message(link.receives.front()).tag);
    EXPECT_EQ(message(link.sends.front()).bytes, message(link.receives.front()).bytes);
    pending_.erase(link.sends.front());
    pending_.erase(link.receives.front());
    link.sends.pop_front();
    link.receives.pop_front();
    ++met_;
    return true;
  }

  std::span<const std::unique_ptr<Rank>> ranks_;
  Order order_;
  std::map<std::tuple<int, int, int>, Link> links_;
  std::map<End, bool> pending_;
  std::vector<std::size_t> at_;
  int met_ = 0;
};

struct Layout {
  std::int32_t devices;
  std::int32_t chunks;
  std::int32_t replicas;
  std::int32_t ranks;
  bool sharded = false;
  std::int64_t span = 1;
  bool joint = false;
};

models::Graph network(std::int64_t span) {
  models::ModelOptions model = models::default_options("resnet", models::Task::Cifar);
  model.norm = models::NormKind::Batch;
  model.size = "8";
  model.batch_norm_span = span;
  return models::build_model(model);
}

/// Equal parts, so that cuts also lie within blocks and values skip stages.
PipelinePlan plan_of(const models::Graph& graph, const ScheduleRule& rule, const Layout& layout) {
  PipelinePlan plan;
  ScheduleRequest request;
  request.name = rule.name;
  request.devices = layout.devices;
  request.chunks = layout.chunks;
  request.micro_batches = 6;
  const std::int32_t stages = request.stages();
  const auto ops = static_cast<std::int32_t>(graph.ops.size());
  for (std::int32_t s = 0; s < stages; ++s)
    plan.ranges.push_back({ops * s / stages, ops * (s + 1) / stages});
  plan.schedule = with_communication(generate(request), links(graph, plan.ranges));
  plan.ranks = {layout.devices, layout.replicas, layout.ranks};
  if (layout.joint) {
    const std::vector<Link> one = links(graph, plan.ranges);
    plan.joint = joint_schedule(joint_order(plan, one), one, layout.replicas);
  }
  return plan;
}

class MessageOrderTest : public testing::TestWithParam<ScheduleRule> {};

TEST_P(MessageOrderTest, EndsOfAllLinksAgreeAndNoneWaitsForEver) {
  const ScheduleRule& rule = GetParam();
  const auto backend = ops::make_default_backend();
  const bool chunked = rule.placement != StagePlacement::Free;
  const std::int32_t chunks = chunked ? 2 : 1;
  for (const Layout& layout :
       {Layout{2, chunks, 1, 2}, Layout{4, chunks, 1, 4}, Layout{4, chunks, 1, 2},
        Layout{2, chunks, 2, 4, false, 2}, Layout{2, chunks, 2, 4, true},
        Layout{2, chunks, 3, 3, false, 3}, Layout{2, chunks, 3, 3, true}, Layout{2, chunks, 2, 2},
        Layout{4, chunks, 2, 3, true, 1, true}, Layout{4, chunks, 1, 3, false, 1, true}}) {
    SCOPED_TRACE(testing::Message() << layout.devices << " devices, " << layout.replicas
                                    << " replicas, " << layout.ranks << " ranks");
    const models::Graph graph = network(layout.span);
    const PipelinePlan plan = plan_of(graph, rule, layout);
    const PipelinePlan evaluation = forward_plan(graph, plan, 5);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int r = 0; r < layout.ranks; ++r)
      ranks.push_back(std::make_unique<Rank>(graph, plan, evaluation, r, layout.sharded, *backend));
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const auto& rank : ranks) EXPECT_TRUE(rank->train() || layout.span > 1);
      EXPECT_GE(Replay(ranks).run(), 6);
    }
    for (const auto& rank : ranks) rank->evaluate();
    const int met = Replay(ranks).run();
    if (layout.ranks != layout.replicas) {
      EXPECT_GE(met, 5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, MessageOrderTest,
                         testing::ValuesIn(schedule_rules().begin(), schedule_rules().end()),
                         [](const auto& test) {
                           std::string name(test.param.name);
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace millrace::pipeline
