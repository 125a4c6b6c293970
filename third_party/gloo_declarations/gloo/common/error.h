// Included by c10d's ProcessGroupGloo.hpp; nothing of it is used there.
#pragma once
