// The fallback of StagedFolder where two folders cannot be exchanged in one step.
#pragma once

#include <filesystem>

namespace megalith::io {

// Replaces `target` by `staged`, moving the target to `old` meanwhile. If the second rename fails, the target is moved
// back.
void replace_by_renames(const std::filesystem::path& staged, const std::filesystem::path& target,
                        const std::filesystem::path& old);

}  // namespace megalith::io
