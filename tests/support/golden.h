// Reference data: tests/data/golden, or the folder that MEGALITH_GOLDEN_DIR names.
//
// Another folder may hold other models, fewer kinds of files and fewer numbers. A test of something that is not there
// is skipped and says what is missing; a part of a test (a layout that a model's sizes do not allow) is left out by
// name. In the repository's own folder nothing may be missing: there the same test fails.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megalith::testing {

// Returns the folder of golden files.
std::filesystem::path golden_dir();
// Ends the current test because the folder does not hold what it needs. Call it on the thread of the test.
[[noreturn]] void skip_without_golden(const std::string& missing);
// Prints that a part of the current test is left out, and why.
void leave_out(const std::string& part, const std::string& why);

// The whole file.
std::string golden_text(const std::string& relative_path);
// The parsed file, e.g. golden_json("parallel/groups.json").
nlohmann::json golden_json(const std::string& relative_path);
// The lines of a text file, without empty ones.
std::vector<std::string> golden_lines(const std::string& relative_path);
// The files of a folder with this extension, by name.
std::vector<std::filesystem::path> golden_files(const std::string& relative_folder, const std::string& extension);

// Whether a member is there and not null.
bool has_golden(const nlohmann::json& object, const std::string& member);
// A member that a test needs.
const nlohmann::json& golden_member(const nlohmann::json& object, const std::string& member);
// A number, 0 where it is absent or null.
double golden_number(const nlohmann::json& object, const std::string& member);

// The parameter of a suite for which the folder holds nothing. Such a suite still has one instance, which is skipped: a
// suite without instances would pass unseen.
inline constexpr const char* kNoGolden = "none";
std::vector<std::string> golden_or_none(std::vector<std::string> names);

}  // namespace megalith::testing
