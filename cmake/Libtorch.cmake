# libtorch from a `torch` wheel (or an installed `torch` package), as an imported target of our own:
#
#   megalith::torch        libtorch_cpu and libc10; with MEGALITH_CUDA also libtorch_cuda and libc10_cuda
#
# The wheel's own find_package(Torch) insists on a full CUDA toolkit even for CPU builds, so it is not used.
# TORCH_DIR names the folder that holds `include` and `lib`; without it the link `torch` in MEGALITH_DEPS_DIR (.deps), which
# scripts/setup.sh makes, is taken. This file is also part of an installed package, where MegalithConfig.cmake sets
# MEGALITH_DEFAULT_TORCH_DIR (what the package was built with) and MEGALITH_GLOO_DECLARATIONS_DIR.

if(TARGET megalith_torch)
  return()
endif()
if(NOT MEGALITH_GLOO_DECLARATIONS_DIR)
  # The wheel lacks the Gloo headers that its ProcessGroupGloo.hpp includes; see the README there.
  set(MEGALITH_GLOO_DECLARATIONS_DIR ${CMAKE_CURRENT_LIST_DIR}/../third_party/gloo_declarations)
endif()

unset(MEGALITH_TORCH_DIR)
set(_torch_candidates "${TORCH_DIR}" "$ENV{TORCH_DIR}" "${MEGALITH_DEPS_DIR}/torch" "$ENV{MEGALITH_DEPS_DIR}/torch"
    "${MEGALITH_DEFAULT_TORCH_DIR}" "${CMAKE_CURRENT_LIST_DIR}/../.deps/torch")
list(REMOVE_ITEM _torch_candidates "" "/torch")
foreach(_dir IN LISTS _torch_candidates)
  if(EXISTS "${_dir}/lib/libtorch_cpu.so" AND EXISTS "${_dir}/include/ATen/ATen.h")
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

# A compiler that links its own copy of the standard library makes programs that share locales and exceptions with
# libtorch's copy, and abort when they end.
if(NOT DEFINED MEGALITH_SHARED_STANDARD_LIBRARY)
  set(_program "${CMAKE_CURRENT_BINARY_DIR}/standard_library_check")
  try_compile(_linked SOURCE_FROM_CONTENT main.cc
    "#include <iostream>\n#include <locale>\nint main() { std::cout << std::locale().name(); }\n" COPY_FILE "${_program}")
  if(_linked)
    file(STRINGS "${_program}" _names REGEX "libstdc\\+\\+\\.so|libc\\+\\+\\.so" LIMIT_COUNT 1)
    if(NOT _names)
      message(FATAL_ERROR
        "${CMAKE_CXX_COMPILER} links the C++ standard library statically; libtorch needs the shared one, and programs that "
        "have both abort. Choose another compiler (CXX=/usr/bin/g++, in an empty build folder).")
    endif()
  endif()
  set(MEGALITH_SHARED_STANDARD_LIBRARY ON CACHE INTERNAL "The compiler links a shared C++ standard library")
endif()

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

# With CUDA every target that uses libtorch uses its CUDA part too: one set of flags, one precompiled header.
if(MEGALITH_CUDA)
  if(NOT EXISTS "${MEGALITH_TORCH_DIR}/lib/libtorch_cuda.so")
    message(FATAL_ERROR "MEGALITH_CUDA is on, but the libtorch in ${MEGALITH_TORCH_DIR} has no CUDA part. Run `make setup` on "
                        "a machine with an NVIDIA GPU, or set TORCH_DIR to a torch that was installed with its CUDA libraries.")
  endif()
  find_package(CUDAToolkit REQUIRED)
  # nccl.h comes as a wheel beside torch, or with the system.
  find_path(MEGALITH_NCCL_INCLUDE_DIR nccl.h
    HINTS "${MEGALITH_TORCH_DIR}/../nvidia/nccl/include" ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  foreach(_dir IN LISTS CUDAToolkit_INCLUDE_DIRS MEGALITH_NCCL_INCLUDE_DIR)
    target_compile_options(megalith_torch INTERFACE "SHELL:-idirafter ${_dir}")
  endforeach()
  target_compile_definitions(megalith_torch INTERFACE USE_C10D_NCCL)
  # With the toolkit, or as a wheel beside torch. The library itself is the one that libtorch loads.
  find_path(MEGALITH_CUBLASLT_INCLUDE_DIR cublasLt.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} "${MEGALITH_TORCH_DIR}/../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/include")
  if(NOT MEGALITH_CUBLASLT_INCLUDE_DIR)
    message(STATUS "Without cublasLt.h: products of matrices are not tuned")
  endif()
  # cuDNN's headers come as a wheel beside torch, its front end (headers only) by the set-up.
  find_path(MEGALITH_CUDNN_INCLUDE_DIR cudnn.h
    HINTS "${MEGALITH_TORCH_DIR}/../nvidia/cudnn/include" ${CUDAToolkit_INCLUDE_DIRS})
  find_path(MEGALITH_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
    HINTS "${CMAKE_CURRENT_LIST_DIR}/../.deps/cudnn-frontend/include")
  if(NOT MEGALITH_CUDNN_INCLUDE_DIR OR NOT MEGALITH_CUDNN_FRONTEND_INCLUDE_DIR)
    message(STATUS "Without cudnn.h or cudnn_frontend.h: attention over packed rows and windows runs flash-2")
  endif()
  # The libraries of libraries are found at run time through libtorch's own RPATH; the linker need not see them.
  target_link_options(megalith_torch INTERFACE -Wl,--allow-shlib-undefined)
  target_link_libraries(megalith_torch INTERFACE
    "${MEGALITH_TORCH_DIR}/lib/libtorch_cuda.so" "${MEGALITH_TORCH_DIR}/lib/libc10_cuda.so" CUDA::cudart)
endif()
