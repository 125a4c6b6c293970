# libtorch from a `torch` wheel (or an installed `torch` package), as imported targets of our own:
#
#   megalith::torch        libtorch_cpu and libc10
#   megalith::torch_cuda   adds libtorch_cuda and libc10_cuda (only with MEGALITH_CUDA)
#
# The wheel's own find_package(Torch) insists on a full CUDA toolkit even for CPU builds, so it is not used.
# TORCH_DIR names the folder that holds `include` and `lib`; without it .deps/torch, which scripts/setup.sh
# makes (a link to what it found or unpacked), is taken.

set(_torch_candidates "${TORCH_DIR}" "$ENV{TORCH_DIR}" "${CMAKE_CURRENT_LIST_DIR}/../.deps/torch")
foreach(_dir IN LISTS _torch_candidates)
  if(_dir AND EXISTS "${_dir}/lib/libtorch_cpu.so" AND EXISTS "${_dir}/include/ATen/ATen.h")
    file(REAL_PATH "${_dir}" MEGALITH_TORCH_DIR)
    break()
  endif()
endforeach()
if(NOT MEGALITH_TORCH_DIR)
  message(FATAL_ERROR
    "libtorch was not found. Run `make setup`, or set TORCH_DIR to the `torch` folder of an installed torch "
    "package (the one with `include` and `lib`; looked in: ${_torch_candidates}).")
endif()

file(STRINGS "${MEGALITH_TORCH_DIR}/include/torch/headeronly/version.h" _torch_version_lines
     REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
foreach(_part MAJOR MINOR PATCH)
  string(REGEX REPLACE ".*TORCH_VERSION_${_part} ([0-9]+).*" "\\1" _torch_${_part} "${_torch_version_lines}")
endforeach()
set(MEGALITH_TORCH_VERSION "${_torch_MAJOR}.${_torch_MINOR}.${_torch_PATCH}")
if(MEGALITH_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "libtorch ${MEGALITH_TORCH_VERSION} in ${MEGALITH_TORCH_DIR} is too old: 2.11 or newer is needed. "
                      "Run `make setup` to fetch it, or set TORCH_DIR.")
endif()
message(STATUS "libtorch ${MEGALITH_TORCH_VERSION} in ${MEGALITH_TORCH_DIR}")

# torch ships its own fmt headers; -idirafter lets the distribution's win (spdlog is built against those).
add_library(megalith_torch INTERFACE IMPORTED GLOBAL)
add_library(megalith::torch ALIAS megalith_torch)
target_compile_options(megalith_torch INTERFACE
  "SHELL:-idirafter ${MEGALITH_TORCH_DIR}/include"
  "SHELL:-idirafter ${MEGALITH_TORCH_DIR}/include/torch/csrc/api/include"
  "SHELL:-idirafter ${MEGALITH_GLOO_DECLARATIONS_DIR}")
target_compile_definitions(megalith_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_options(megalith_torch INTERFACE -Wl,--no-as-needed)
target_link_libraries(megalith_torch INTERFACE
  "${MEGALITH_TORCH_DIR}/lib/libtorch_cpu.so" "${MEGALITH_TORCH_DIR}/lib/libc10.so" Threads::Threads)
