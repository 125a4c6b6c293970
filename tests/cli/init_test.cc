// `megalith init`: what it writes trains as it stands.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/program_support.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 400,
 "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 8, "max_position_embeddings": 512, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "initializer_range": 0.02, "eos_token_id": 0, "attention_bias": false})";

// A folder with a tiny model, which has a tokenizer and no weights, and data of six kinds.
class InitCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream documents(at("documents.jsonl")), chats(at("chats.jsonl")), pairs(at("pairs.jsonl")),
        rated(at("rated.jsonl")), labelled(at("labelled.jsonl")), graded(at("graded.jsonl"));
    for (int i = 0; i < 80; ++i) {
      documents << R"({"text": "Mia has )" << i << R"( red apples and gives half of them to her brother."})"
                << "\n";
      chats << R"({"messages": [{"role": "user", "content": "How many apples are )" << i
            << R"( and one?"}, {"role": "assistant", "content": "One more than )" << i << R"(."}]})"
            << "\n";
      pairs << R"({"prompt": "How many?", "chosen": "About )" << i << R"(.", "rejected": "No idea."})"
            << "\n";
      rated << R"({"prompt": "How many?", "response": "About )" << i << R"(.", "kto_tag": )"
            << (i % 3 == 0 ? "false" : "true") << "}\n";
      labelled << R"({"text": "About )" << i << R"( apples.", "label": )" << i % 3 << "}\n";
      graded << R"({"text": "About )" << i << R"( apples.", "label": )" << i << ".5}\n";
    }
    documents.close();
    const auto made =
        megalith({"data", "train-tokenizer", at("documents.jsonl"), "--vocab_size", "400", "--output", at("model")});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    std::ofstream(at("model/config.json")) << kConfig;
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  ProcessResult in_folder(const std::string& command) const {
    return run_process({"bash", "-c", "cd \"$1\" && " + command, "-", folder_.path().string()},
                       {{"MEGALITH", MEGALITH_PROGRAM}, {"XDG_CACHE_HOME", at("cache")}}, std::chrono::seconds(120));
  }
  std::string text_of(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(at(name)).rdbuf();
    return text.str();
  }
  // Trains a few steps with a written file, by the command that init has printed.
  void expect_trains(const ProcessResult& written, const std::string& output) {
    ASSERT_EQ(written.exit_code, 0) << written.err;
    ASSERT_TRUE(written.out.starts_with("megalith train ")) << written.out;
    const auto trained = in_folder("\"$MEGALITH\"" + written.out.substr(8, written.out.size() - 9) + " --max_steps 3");
    EXPECT_EQ(trained.exit_code, 0) << trained.err << text_of("run.yaml");
    EXPECT_TRUE(fs::exists(at("out/" + output))) << trained.err;
  }

 private:
  TempFolder folder_;
};

TEST_F(InitCommand, DocumentsArePretrainedOn) {
  const auto written = in_folder("\"$MEGALITH\" init --model model --data documents.jsonl </dev/null");
  expect_trains(written, "run/model.safetensors");
  expect_contains(written.err, "80 records, documents (column text)");
  const std::string file = text_of("run.yaml");
  for (const char* part : {"stage: pt", "train_from_scratch: true", "tensor_model_parallel_size: 1", "# 80 records"})
    expect_contains(file, part);
  // Every option is explained.
  std::istringstream lines(file);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(line.empty() || line.find('#') != std::string::npos) << line;
}

TEST_F(InitCommand, ConversationsPairsAndAdaptersStartFromWeights) {
  ASSERT_EQ(in_folder("\"$MEGALITH\" train --stage pt --do_train --finetuning_type full --train_from_scratch"
                      " --model_name_or_path model --dataset documents.jsonl --cutoff_len 64 --max_steps 1"
                      " --output_dir base")
                .exit_code,
            0);
  const auto sft =
      in_folder("\"$MEGALITH\" init --model base --data chats.jsonl --gpus 2 --output sft.yaml </dev/null");
  expect_contains(sft.err, "conversations (column messages)");
  expect_contains(sft.out, "--nproc 2");
  expect_trains(sft, "sft/model.safetensors");
  expect_trains(in_folder("\"$MEGALITH\" init --model base/config.json --data chats.jsonl --task lora --output l.yaml"),
                "l/adapter_model.safetensors");
  const auto pairs = in_folder("\"$MEGALITH\" init --model base --data pairs.jsonl --output p.yaml </dev/null");
  expect_trains(pairs, "p/model.safetensors");
  expect_contains(text_of("p.yaml"), "stage: dpo");
  expect_trains(in_folder("\"$MEGALITH\" init --model base --data pairs.jsonl --task reward --output r.yaml"),
                "r/model.safetensors");
  expect_contains(text_of("r.yaml"), "stage: rm");
  expect_trains(in_folder("\"$MEGALITH\" init --model base --data labelled.jsonl --task classify --output c.yaml"),
                "c/model.safetensors");
  for (const char* part : {"stage: cls", "num_labels: 3", "problem_type: single_label_classification"})
    expect_contains(text_of("c.yaml"), part);
  // A head that is there already says how many scores it has.
  expect_trains(in_folder("\"$MEGALITH\" init --model out/c --data labelled.jsonl --task classify --output again.yaml"),
                "again/model.safetensors");
  EXPECT_EQ(text_of("again.yaml").find("num_labels"), std::string::npos);
  expect_refused(in_folder("\"$MEGALITH\" init --model out/c --data chats.jsonl --output not.yaml"),
                 "the model scores sequences");
  expect_trains(in_folder("\"$MEGALITH\" init --model base --data graded.jsonl --task classify --output g.yaml"),
                "g/model.safetensors");
  expect_contains(text_of("g.yaml"), "problem_type: regression");
  const auto rated = in_folder("\"$MEGALITH\" init --model base --data rated.jsonl --output k.yaml </dev/null");
  expect_contains(rated.err, "answers with verdicts (column kto_tag)");
  expect_trains(rated, "k/model.safetensors");
  expect_contains(text_of("k.yaml"), "stage: kto");
}

TEST_F(InitCommand, RefusesWhatItCannotDo) {
  const auto init = [&](const std::string& words) { return in_folder("\"$MEGALITH\" init " + words + " </dev/null"); };
  std::ofstream(at("mine.yaml")) << "mine\n";
  expect_refused(init("--model model --data documents.jsonl --output mine.yaml"), "mine.yaml is there");
  EXPECT_EQ(text_of("mine.yaml"), "mine\n");
  EXPECT_EQ(init("--model model --data documents.jsonl --output mine.yaml --overwrite").exit_code, 0);
  expect_refused(init("--data documents.jsonl"), "--model is missing");
  expect_refused(init("--model model"), "--data is missing");
  expect_refused(init("--model model --data chats.jsonl --task pretrain"), "does not suit the data");
  expect_refused(init("--model model --data pairs.jsonl"), "has no weights");
  expect_refused(init("--model model --data documents.jsonl --task ppo"), "task is \"ppo\"");
  expect_refused(init("--model model --data documents.jsonl --task classify"), "give data with a column label");
  expect_refused(init("--model model --data chats.jsonl --task reward"), "give data with columns chosen and rejected");
  expect_refused(init("--model model --data documents.jsonl --learning_rate 1"), "is an option of the run");
  expect_refused(init("--model model --data documents.jsonl --output run.txt"), "names end in .yaml");
  EXPECT_FALSE(fs::exists(at("run.yaml")));
}

// script(1) gives it a terminal to ask on.
TEST_F(InitCommand, AsksOnATerminal) {
  const auto asked = in_folder("printf 'model\\ndocuments.jsonl\\n\\n\\n' | script -qec \"$MEGALITH init\" /dev/null");
  EXPECT_EQ(asked.exit_code, 0) << asked.out;
  for (const char* part :
       {"Model (", "Data (", "Task (pretrain, sft, lora, preference, kto, reward, classify) [pretrain]",
        "wrote run.yaml"})
    expect_contains(asked.out, part);
  EXPECT_TRUE(fs::exists(at("run.yaml")));
}

TEST(FirstWords, TrainWithoutWordsSaysHowToBegin) {
  for (const char* command : {"train", "pretrain"}) {
    const auto result = megalith({command});
    expect_refused(result, "megalith init");
    for (const char* part : {"examples/", "docs/tutorials", "--help"}) expect_contains(result.err, part);
  }
}

}  // namespace
}  // namespace megalith::testing
