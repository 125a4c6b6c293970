// Includes a header of the program, which the package does not have.
#pragma once

#include "megalith/cli/command.h"
