// The thread that owns scheduler, block pool and sequences.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "block_manager/block_pool.h"
#include "model/model_runner.h"
#include "scheduler/admission_gate.h"
#include "scheduler/engine.h"
#include "scheduler/mailbox.h"
#include "scheduler/prefill_lanes.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence.h"
#include "scheduler/snapshot_pace.h"
#include "scheduler/waiting_queue.h"

namespace ziggurat {

// What may arrive at the engine thread.
struct SubmitMessage {
  std::unique_ptr<Sequence> sequence;
  Places promised;  ///< AdmissionGate
};
struct CancelMessage {
  RequestId id;
  FinishReason reason;
};
/// Ends what is left at `deadline`.
struct DrainMessage {
  SteadyTime deadline;
};
struct StopMessage {};
using EngineMessage = std::variant<SubmitMessage, CancelMessage, DrainMessage, StopMessage>;

/// What others see of the engine. Any thread.
class LatestSnapshot {
 public:
  std::shared_ptr<const EngineSnapshot> Get() const {
    std::lock_guard lock(mutex_);
    return latest_;
  }
  void Set(std::shared_ptr<const EngineSnapshot> snapshot) {
    std::lock_guard lock(mutex_);
    latest_.swap(snapshot);  // the old one is freed behind the lock
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const EngineSnapshot> latest_;
};

/// One step after another until told to stop. Everything but the mailboxes, the gate and the latest
/// snapshot belongs to the thread that calls `Run`.
class EngineLoop {
 public:
  EngineLoop(const EngineOptions& options, const CacheGeometry& geometry, BlockPool* pool,
             ModelRunner* model, Metrics* metrics, Mailbox<EngineMessage>* inbox,
             Mailbox<EngineOutput>* outbox, AdmissionGate* gate, LatestSnapshot* snapshot);

  void Run();

 private:
  // Messages in (engine_loop.cc, as all that names no other file).
  void ReceiveMessages();
  void Receive(SubmitMessage message);
  void Receive(CancelMessage message);
  void Receive(DrainMessage message) {
    drain_deadline_ = std::min(drain_deadline_.value_or(message.deadline), message.deadline);
  }
  void Receive(StopMessage) { stopping_ = true; }
  bool IsIdle() const { return running_.empty() && waiting_.size() == 0; }
  SteadyTime NextWakeUp() const;

  // The parts of a step.
  void Step();
  void EndExpired();
  void Admit();
  /// Blocks that nobody holds nor has been promised.
  size_t FreeBlocks() const;
  void PrefillSlice();
  void DecodeStep();
  void Publish();
  /// What a device has done since the last call, for the metrics.
  void CountDeviceSeconds();

  // A slice of a batch of prompts (engine_prefill.cc).
  void BeginPrefill(int lane);
  void PrefillLayers(int lane);
  /// Goes on with the next layer. False: it is not done. A status that is not OK is the whole
  /// batch's.
  absl::StatusOr<bool> PrefillLayer(int lane, PauseTest pause);
  absl::StatusOr<bool> AttendAndWrite(int lane, PauseTest pause);
  void FinishPrefillBatch(int lane);
  void FailPrefillBatch(int lane, const absl::Status& status);
  /// Policies that wait for the last layer of the prompt.
  void DecidePrompts(int lane);

  // A decode step (engine_decode.cc).
  /// Carries out what must move in the caches before the next token is written; `ahead`: the one
  /// behind that which a device is at work on. What comes of it is noted in each sequence. True:
  /// something moved, or could not.
  bool EditCaches(absl::Span<Sequence* const> sequences, bool ahead);
  /// Runs the model, and gives the sequences that are still there their tokens.
  void DecodeAndDraw(std::vector<Sequence*> ready);
  /// While a device computes: what can be done ahead for sequences that will be in the next step,
  /// unless a stop token is drawn, or a client cancels.
  void PrepareNextStep(absl::Span<Sequence* const> ready);
  /// That, for some of them.
  ///   inputs  of the step at work, one for each sequence
  void PrepareSome(absl::Span<Sequence* const> sequences, absl::Span<const DecodeInput> inputs);
  /// Policies that wait for the first generated token's attention.
  absl::Status DecideFirstToken(Sequence& sequence);

  // Tokens.
  static TokenDraw DrawOf(Sequence& sequence);
  /// Passes the token of each sequence on; ends those whose last it was.
  ///   sequences  null: it has gone
  void AcceptTokens(absl::Span<Sequence* const> sequences, std::vector<SampledToken> tokens);
  /// False: it was a stop token, which is not passed on, or no token at all (an error).
  bool AcceptToken(Sequence& sequence, SampledToken token, SteadyTime now);

  // The end of a request.
  /// Releases everything that `sequence` holds and reports. The sequence is gone afterwards.
  ///   output  with the last token, or a result that has the stop token
  void Finish(Sequence& sequence, FinishReason reason, absl::Status status,
              EngineOutput output = {});
  void FinishAll(FinishReason reason, const absl::Status& status);
  /// All that Finish does for one that was never admitted.
  void Report(const Sequence& sequence, FinishReason reason, absl::Status status,
              EngineOutput output = {});

  // What others see (engine_snapshot.cc).
  bool IsSnapshotDue() const;
  void PublishSnapshot();
  EngineSnapshot MakeSnapshot();
  void CheckConservation();

  const EngineOptions options_;
  const CacheGeometry geometry_;
  BlockPool* pool_;
  ModelRunner* model_;
  Metrics* metrics_;
  Mailbox<EngineMessage>* inbox_;
  Mailbox<EngineOutput>* outbox_;
  AdmissionGate* gate_;
  LatestSnapshot* snapshot_;

  // Where a request is: in waiting_, and once admitted in running_, there first in prefill_, then
  // in decoding_. Its state is kWaiting until prefill_ has put it into a batch.
  WaitingQueue waiting_;
  ReservationLedger ledger_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> running_;
  SteadyTime next_expiry_ = SteadyTime::max();  ///< none of running_ expires earlier
  PrefillLanes prefill_;
  std::vector<Sequence*> decoding_;
  std::chrono::steady_clock::duration decode_time_{};  ///< of the last step

  std::optional<SteadyTime> drain_deadline_;
  bool stopping_ = false;

  /// What has happened since the last Publish, which tells others.
  struct Unpublished {
    std::vector<EngineOutput> outputs;
    int finished = 0;
    Places reached;  ///< promises of the gate
  };
  Unpublished unpublished_;
  SnapshotPace snapshot_pace_;
  bool shows_idle_ = true;  ///< the last step left nothing to do
  DeviceSeconds device_counted_;
  bool holds_ahead_ = false;  ///< blocks and edits of the next step, which are not shown

  /// What is measured of one step.
  struct StepMeasures {
    double model_seconds = 0;  ///< attention and draws included
    int tokens = 0;            ///< computed; of a prompt, those of its last prefill step
  };
  StepMeasures measures_;

  /// Nothing in them outlives a step: they are kept for their memory.
  struct Buffers {
    std::vector<DecodeInput> decode_inputs;
    std::vector<DecodeInput> next_inputs;  ///< of sequences whose next step is prepared
    std::vector<CacheEdit> edits;
    std::vector<double> inter_token_seconds;
  };
  Buffers buffers_;
};

}  // namespace ziggurat
