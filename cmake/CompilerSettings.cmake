# Language level, warnings, sanitizers, linker and ccache: what holds for every target of this tree.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "GCC ${CMAKE_CXX_COMPILER_VERSION} is too old: Megalith needs GCC 12 or newer, or Clang 16 or newer.")
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "Clang ${CMAKE_CXX_COMPILER_VERSION} is too old: Megalith needs Clang 16 or newer, or GCC 12 or newer.")
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# Not CMAKE_POSITION_INDEPENDENT_CODE, which compiles executables with -fPIE: GCC then refuses the shared precompiled header.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's garbage collector takes a tenth of the time; it starts later now, for a tenth more memory.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=1000>
                      $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
# Where the instruction set has fused multiply-add by default (arm64) GCC and Clang use it wherever a product meets a sum, so
# that bits would depend on what was inlined where. Kernels that want it say so (src/megalith/ops).
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
# Plug-ins lie in lib beside bin, in the build tree as where the program is installed.
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")

add_library(megalith_compile_options INTERFACE)
target_compile_options(megalith_compile_options INTERFACE -Wall -Wextra -Wshadow)
# Designated initializers that leave members at their defaults are meant so.
target_compile_options(megalith_compile_options INTERFACE -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # False alarms inside std::string when it is inlined (GCC bugs 105329, 105651).
  target_compile_options(megalith_compile_options INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Functions that only `if constexpr (kCudaKernels)` calls are not needed without CUDA.
  target_compile_options(megalith_compile_options INTERFACE -Wno-unneeded-internal-declaration)
endif()
# Elsewhere a warning that only a newer compiler has would stop a user; scripts/build.sh says ON when CI=true.
set(_werror ${MEGALITH_WERROR})
if(_werror STREQUAL "AUTO")
  set(_werror OFF)
  if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
     (CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 17))
    set(_werror ON)
  endif()
endif()
if(_werror)
  target_compile_options(megalith_compile_options INTERFACE -Werror)
endif()

if(MEGALITH_SANITIZE)
  # For everything in the tree, executables included.
  add_compile_options(-fsanitize=${MEGALITH_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${MEGALITH_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # More false alarms, seen with sanitizers alone: inside std::string, and inside std::regex.
    add_compile_options(-Wno-stringop-overread -Wno-maybe-uninitialized)
  endif()
  if(MEGALITH_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
    # Checks that need the type information libtorch keeps to itself.
    add_compile_options(-fno-sanitize=vptr)
  endif()
  # Suppressions and options are compiled in, so that they hold however a program is started: CTest, debugger, launcher.
  add_library(megalith_sanitizer_defaults OBJECT ${CMAKE_CURRENT_LIST_DIR}/sanitizer_defaults.cc)
  link_libraries($<BUILD_INTERFACE:megalith_sanitizer_defaults>)
endif()

# A faster linker than the default one, where the compiler can use it. Never lld: GCC writes empty unwind entries for some
# `.cold` parts, lld 14 to 16 keep the empty one of two entries with the same address, and an exception that passes there aborts.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=mold MEGALITH_LINKS_WITH_MOLD)
if(MEGALITH_LINKS_WITH_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

find_program(MEGALITH_CCACHE ccache)
if(MEGALITH_CCACHE)
  # The sloppiness values are the ones ccache needs to cache files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${MEGALITH_CCACHE})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
