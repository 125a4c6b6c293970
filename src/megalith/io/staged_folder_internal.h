// What StagedFolder does where two folders cannot be exchanged in one step.
#pragma once

#include <filesystem>

namespace megalith::io {

// Puts `staged` in the place of `target`, which goes by way of `old`. When the new one cannot be put there, the target
// is put back.
void replace_by_renames(const std::filesystem::path& staged, const std::filesystem::path& target,
                        const std::filesystem::path& old);

}  // namespace megalith::io
