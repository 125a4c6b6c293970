// Finding a model's folder by its hub name, in caches of Hugging Face and ModelScope that the test lays out, and the
// messages for names and folders that do not do.
#include "megalith/hf/hub_cache.h"

#include <map>

#include "tests/hf/file_support.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;
namespace fs = std::filesystem;

HubEnvironment environment(const std::map<std::string, std::string>& variables) {
  return HubEnvironment::from([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(HubEnvironment, TheFirstVariableThatIsSetDecides) {
  std::map<std::string, std::string> variables = {{"HOME", "/h"}};
  EXPECT_EQ(environment(variables).hf_hub_cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(environment(variables).modelscope_cache, "/h/.cache/modelscope");
  variables["XDG_CACHE_HOME"] = "/x";
  EXPECT_EQ(environment(variables).hf_hub_cache, "/x/huggingface/hub");
  variables["HF_HOME"] = "~/hf";
  EXPECT_EQ(environment(variables).hf_hub_cache, "/h/hf/hub");
  variables["HUGGINGFACE_HUB_CACHE"] = "/old";
  EXPECT_EQ(environment(variables).hf_hub_cache, "/old");
  variables["HF_HUB_CACHE"] = "/new";
  EXPECT_EQ(environment(variables).hf_hub_cache, "/new");
  variables["MODELSCOPE_CACHE"] = "/ms";
  EXPECT_EQ(environment(variables).modelscope_cache, "/ms");
  EXPECT_TRUE(environment({}).hf_hub_cache.empty());
  EXPECT_TRUE(environment({}).modelscope_cache.empty());
}

// Both caches in one folder.
class HubCache : public ::testing::Test {
 protected:
  // As huggingface_hub lays it out: files are links to blobs.
  fs::path put_snapshot(const std::string& repository, const std::string& commit,
                        const std::vector<std::string>& files) {
    const fs::path snapshot = env_.hf_hub_cache / repository / "snapshots" / commit;
    fs::create_directories(snapshot);
    for (const std::string& file : files) {
      put_file(env_.hf_hub_cache / repository / "blobs" / (commit + file), "{}");
      fs::create_symlink(fs::path("../../blobs") / (commit + file), snapshot / file);
    }
    return snapshot;
  }
  void put_ref(const std::string& repository, const std::string& revision, const std::string& commit) {
    put_file(env_.hf_hub_cache / repository / "refs" / revision, commit);
  }
  fs::path put_model(const fs::path& model) {
    put_file(model / "config.json", "{}");
    put_file(model / "model.safetensors", "");
    return model;
  }
  fs::path find(const std::string& name) const { return find_model_folder(name, env_); }
  template <typename E = ConfigError>
  std::string refusal(const std::string& name) const {
    return message_of<E>([&] { find(name); });
  }

  TempFolder folder_;
  HubEnvironment env_ = {folder_.path(), folder_ / "hf/hub", folder_ / "ms"};
};

TEST_F(HubCache, AFolderIsItself) {
  const fs::path model = put_model(folder_ / "my model");
  EXPECT_EQ(find(model.string()), model);
  EXPECT_EQ(find("~/my model"), model);
  put_file(folder_ / "raw/weights.bin", "");
  const std::string message = refusal<DataError>((folder_ / "raw").string());
  expect_contains(message, (folder_ / "raw").string());
  expect_contains(message, "has no config.json");
  expect_contains(message, "weights.bin");
  expect_contains(refusal((model / "config.json").string()), "is a file");
}

TEST_F(HubCache, AHubNameIsLookedUpThroughItsRef) {
  const fs::path snapshot = put_snapshot("models--Qwen--Qwen2.5-7B", "abc123", {"config.json", "model.safetensors"});
  put_ref("models--Qwen--Qwen2.5-7B", "main", "abc123\n");
  EXPECT_EQ(find("Qwen/Qwen2.5-7B"), snapshot);
  EXPECT_EQ(find("Qwen/Qwen2.5-7B@main"), snapshot);
  EXPECT_EQ(find("Qwen/Qwen2.5-7B@abc123"), snapshot);
  const fs::path plain = put_snapshot("models--gpt2", "def", {"config.json", "model.safetensors"});
  put_ref("models--gpt2", "main", "def");
  EXPECT_EQ(find("gpt2"), plain);
}

TEST_F(HubCache, RevisionsAreBranchesTagsOrCommits) {
  const fs::path old = put_snapshot("models--a--b", "c0ffee", {"config.json", "model.safetensors"});
  put_ref("models--a--b", "refs/pr/1", "c0ffee");
  EXPECT_EQ(find("a/b@refs/pr/1"), old);
  const std::string message = refusal("a/b");
  expect_contains(message, "has no revision main");
  expect_contains(message, "c0ffee");
  expect_contains(refusal("a/b@v2"), "hf download a/b --revision v2");
}

TEST_F(HubCache, AbsentModelsComeWithTheCommands) {
  const std::string message = refusal("Qwen/Qwen2.5-7B");
  expect_contains(message, "Qwen/Qwen2.5-7B is not on this machine");
  expect_contains(message, (env_.hf_hub_cache / "models--Qwen--Qwen2.5-7B").string());
  expect_contains(message, env_.modelscope_cache.string());
  expect_contains(message, "Qwen/Qwen2___5-7B");
  expect_contains(message, "\n  hf download Qwen/Qwen2.5-7B\n");
  expect_contains(message, "\n  modelscope download --model Qwen/Qwen2.5-7B\n");
  EXPECT_EQ(refusal("gpt2").find("modelscope"), std::string::npos);  // ModelScope's names have two parts
}

TEST_F(HubCache, IncompleteSnapshotsAreNamed) {
  const fs::path snapshot = put_snapshot("models--a--b", "c1", {"config.json"});
  put_ref("models--a--b", "main", "c1");
  const std::string without_weights = refusal("a/b");
  expect_contains(without_weights, snapshot.string());
  expect_contains(without_weights, "there are no weights");
  EXPECT_EQ(find_model_folder("a/b", env_, ModelParts::kConfig), snapshot);
  fs::create_symlink("../../blobs/absent", snapshot / "model.safetensors");
  expect_contains(refusal("a/b"), "incomplete: dangling links: model.safetensors");
  fs::remove(snapshot / "model.safetensors");
  put_file(snapshot / "model.safetensors", "");
  EXPECT_EQ(find("a/b"), snapshot);
  fs::remove(snapshot / "config.json");
  expect_contains(refusal("a/b"), "config.json is missing");
}

TEST_F(HubCache, ModelScopeInAllItsLayouts) {
  for (const char* place :
       {"models/Qwen/Qwen2___5-7B", "hub/models/Qwen/Qwen2___5-7B", "hub/Qwen/Qwen2___5-7B", "hub/Qwen/Qwen2.5-7B"}) {
    const fs::path model = put_model(env_.modelscope_cache / place);
    EXPECT_EQ(find("Qwen/Qwen2.5-7B"), model);
    fs::remove_all(env_.modelscope_cache);
  }
  put_file(env_.modelscope_cache / "models/Qwen/Qwen2___5-7B/config.json", "{}");
  expect_contains(refusal("Qwen/Qwen2.5-7B"), "there are no weights");
}

TEST_F(HubCache, ACompleteModelScopeFolderStandsInForAnIncompleteSnapshot) {
  put_snapshot("models--a--b", "c1", {"config.json"});
  put_ref("models--a--b", "main", "c1");
  const fs::path model = put_model(env_.modelscope_cache / "models/a/b");
  EXPECT_EQ(find("a/b"), model);
}

TEST_F(HubCache, ImpossibleNamesAreRefused) {
  for (const char* name :
       {"a/b/c", "../x", "/no/such/folder", "a//b", "a b", "a/..", "-x", "a/b@../../x", "a--b/c", "a@"})
    expect_contains(refusal(name), "neither a folder that exists nor a hub name");
  expect_contains(refusal(""), "empty");
}

TEST_F(HubCache, ARefCannotLeaveTheCache) {
  put_model(folder_ / "hf/elsewhere");
  fs::create_directories(env_.hf_hub_cache / "models--a--b/snapshots");
  put_ref("models--a--b", "main", "../../../elsewhere");
  expect_contains(refusal("a/b"), "has no revision main");
}

TEST_F(HubCache, TheCachesOwnFolderIsExplained) {
  const fs::path snapshot = put_snapshot("models--a--b", "c1", {"config.json", "model.safetensors"});
  expect_contains(refusal<DataError>((env_.hf_hub_cache / "models--a--b").string()), "give " + snapshot.string());
}

}  // namespace
}  // namespace megalith::hf
