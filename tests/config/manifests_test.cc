// The Kubernetes manifests of the examples: well-formed, and their numbers agree with one another.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <regex>
#include <string>

namespace megalith::config {
namespace {

YAML::Node manifest(const std::string& name) { return YAML::LoadFile("examples/07-several-nodes/kubernetes/" + name); }

// The number after an option of the command, or -1.
int number_after(const std::string& option, const std::string& command) {
  std::smatch found;
  return std::regex_search(command, found, std::regex(option + " ([0-9]+)")) ? std::stoi(found[1]) : -1;
}

// One machine: as many ranks as GPUs, a run file that exists, and the volumes that it mounts.
void expect_sound_pod(const YAML::Node& pod) {
  const YAML::Node container = pod["containers"][0];
  const auto command = container["args"][0].as<std::string>();
  EXPECT_EQ(number_after("--nproc", command), container["resources"]["limits"]["nvidia.com/gpu"].as<int>());
  EXPECT_NE(command.find("megalith train examples/07-several-nodes/train.yaml"), std::string::npos) << command;
  EXPECT_EQ(command.find('\n'), std::string::npos) << "one line, or the shell runs several commands: " << command;
  EXPECT_NO_THROW(YAML::LoadFile("examples/07-several-nodes/train.yaml"));
  for (const YAML::Node& mount : container["volumeMounts"]) {
    bool defined = false;
    for (const YAML::Node& volume : pod["volumes"])
      defined = defined || volume["name"].as<std::string>() == mount["name"].as<std::string>();
    EXPECT_TRUE(defined) << mount["name"];
  }
}

TEST(Manifests, PyTorchJob) {
  const YAML::Node job = manifest("pytorchjob.yaml");
  EXPECT_EQ(job["kind"].as<std::string>(), "PyTorchJob");
  for (const char* role : {"Master", "Worker"}) {
    const YAML::Node pod = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"];
    expect_sound_pod(pod);
    EXPECT_EQ(pod["containers"][0]["name"].as<std::string>(), "pytorch") << "the operator looks for this name";
    EXPECT_EQ(number_after("--nproc", pod["containers"][0]["args"][0].as<std::string>()),
              job["spec"]["nprocPerNode"].as<int>());
  }
}

TEST(Manifests, JobSet) {
  const YAML::Node set = manifest("jobset.yaml");
  EXPECT_EQ(set["kind"].as<std::string>(), "JobSet");
  const YAML::Node machines = set["spec"]["replicatedJobs"][0];
  const YAML::Node job = machines["template"]["spec"];
  const YAML::Node container = job["template"]["spec"]["containers"][0];
  expect_sound_pod(job["template"]["spec"]);
  const auto command = container["args"][0].as<std::string>();
  EXPECT_EQ(number_after("--nnodes", command), job["parallelism"].as<int>());
  EXPECT_EQ(job["completions"].as<int>(), job["parallelism"].as<int>());
  EXPECT_EQ(number_after("--master_port", command), container["ports"][0]["containerPort"].as<int>());
  // JobSet's name of the first pod: SET-JOB-0-0 in the subdomain SET.
  const auto name = set["metadata"]["name"].as<std::string>();
  EXPECT_NE(command.find("--master_addr " + name + "-" + machines["name"].as<std::string>() + "-0-0." + name + " "),
            std::string::npos)
      << command;
}

}  // namespace
}  // namespace megalith::config
