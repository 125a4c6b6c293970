// All arguments of a run, in parts. They end in `run`, which derives the settings of the lower modules from them.
//
// A TrainingArguments holds what the user asked for, with the dialect's defaults; derive() (derive.h) computes what
// follows from it, validate() (validate.h) reports what does not fit together.
#pragma once

#include "megalith/config/data_config.h"
#include "megalith/config/media_config.h"
#include "megalith/config/model_config.h"
#include "megalith/config/optimizer_config.h"
#include "megalith/config/parallel_config.h"
#include "megalith/config/run_config.h"

namespace megalith::config {

// One member per part; see the headers of the parts. Copyable and comparable: two runs with equal arguments do the
// same.
struct TrainingArguments {
  Dialect dialect = Dialect::kTrain;  // front end whose rules apply where the two differ (seeds, required options)
  RunConfig run;                      // task and length of the run
  ParallelConfig parallel;            // sizes of the rank grid
  PipelineConfig pipeline;            // layers to stages, schedule
  BatchConfig batch;                  // micro and global batch
  SeedConfig seeds;                   // random numbers
  CommConfig comm;                    // backend, time limits
  ModelSourceConfig source;           // source of the weights
  ModelShapeConfig shape;             // sizes of the model
  LayerConfig layer;                  // parts of a layer
  PositionConfig position;            // position embedding
  MlaConfig mla;                      // multi-latent attention
  MoeConfig moe;                      // experts
  RouterConfig router;                // their router
  RecomputeConfig recompute;          // activations computed twice
  FusionConfig fusion;                // fused kernels
  PrecisionConfig precision;          // number formats
  OptimizerConfig optimizer;          // update rule
  MuonConfig muon;                    // Muon's part of it
  ScheduleConfig schedule;            // learning rate over time
  DdpConfig ddp;                      // gradient buffers
  DataConfig data;                    // conversations and documents
  MediaConfig media;                  // pictures, videos and sound in them
  TowerConfig towers;                 // parts of models that see and hear
  SamplerConfig sampler;              // order of samples
  IndexedDataConfig indexed;          // .bin/.idx files
  TokenizerConfig tokenizer;          // Megatron's tokenizer options
  LoraConfig lora;                    // adapters
  FreezeConfig freeze;                // layers trained alone
  PreferenceConfig preference;        // DPO, ORPO
  ScoringConfig scoring;              // rewards and labels of sequences
  DistillationConfig distillation;    // a teacher
  EvalConfig eval;                    // evaluation
  LoggingConfig logging;              // logs, metrics, profiles
  SaveConfig save;                    // when checkpoints are written
  CheckpointConfig checkpoint;        // how checkpoints are written
  FaultConfig fault;                  // checks and restarts
  bool operator==(const TrainingArguments&) const = default;
};

}  // namespace megalith::config
