// Folders that many test processes need and one of them makes: models, and runs of one rank to compare with.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace megalith::testing {

// Returns their folder: MEGALITH_NCCL_CACHE, or a folder below the build folder; a new one for each build of the
// program and of the tests (the older ones are removed).
std::filesystem::path cache_folder();

// The folder of this name. The first process to ask has `make` fill an empty one, while others that ask wait; if it
// throws, the next one tries again.
std::filesystem::path made_once(const std::string& name,
                                const std::function<void(const std::filesystem::path& empty)>& make);

}  // namespace megalith::testing
