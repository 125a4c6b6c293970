// Leans on a header that another one has to include before it.
#pragma once

inline std::string forgotten() { return {}; }
