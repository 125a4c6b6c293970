# megalith_add_module(NAME SOURCES … [DEPENDS modules…] [LIBRARIES libraries…] [PRIVATE_LIBRARIES libraries…] [TORCH] [COLD])
#
# One folder under src/megalith = one static library `megalith_<name>`, alias `megalith::<name>`. DEPENDS names modules
# earlier in the list of docs/architecture.md. TORCH links libtorch and uses the one precompiled header. COLD modules spend no
# time worth saving, or spend it in libtorch and `ops`; see megalith_optimise_lightly.
# In an installed package every module is reachable as the one target `megalith::megalith`.
function(megalith_add_module name)
  cmake_parse_arguments(ARG "TORCH;COLD" "" "SOURCES;DEPENDS;LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  set(target megalith_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(megalith::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:megalith_compile_options>)
  foreach(dependency IN LISTS ARG_DEPENDS)
    if(NOT TARGET megalith_${dependency})
      message(FATAL_ERROR "Module ${name} depends on ${dependency}, which is not a module before it in src/megalith/CMakeLists.txt.")
    endif()
    target_link_libraries(${target} PUBLIC megalith_${dependency})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ARG_LIBRARIES} PRIVATE ${ARG_PRIVATE_LIBRARIES})
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC megalith_torch)
    megalith_use_pch(${target})
  endif()
  megalith_use_unity(${target})
  if(ARG_COLD)
    megalith_optimise_lightly(${target})
  endif()
  set_property(GLOBAL APPEND PROPERTY MEGALITH_MODULES ${target})
endfunction()

# megalith_embed_files(TARGET NAMESPACE a::b HEADER path.h FILES …)
#
# Files of this folder that are compiled in: TARGET's objects define the bytes of each as EmbedFiles.cmake says and HEADER
# declares. It is a target of its own because what is generated for a module waits for all modules that it depends on.
function(megalith_embed_files target)
  cmake_parse_arguments(ARG "" "NAMESPACE;HEADER" "FILES" ${ARGN})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
  set(script ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake)
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${source} -DNAMESPACE=${ARG_NAMESPACE} -DHEADER=${ARG_HEADER} "-DFILES=${ARG_FILES}"
            -P ${script}
    DEPENDS ${ARG_FILES} ${script} VERBATIM)
  add_library(${target} OBJECT ${source})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_link_libraries(${target} PRIVATE megalith_compile_options)
endfunction()

# megalith_add_cuda_kernels(MODULE sources.cu…)
#
# Kernels of a module, compiled by nvcc on their own: raw pointers, no ATen headers, none of the flags of C++ files.
function(megalith_add_cuda_kernels module)
  set(target megalith_${module}_cuda)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  # torch's own copies of other libraries' headers come last, as in Libtorch.cmake.
  target_compile_options(${target} PRIVATE "-Xcompiler=-fPIC,-idirafter,${MEGALITH_TORCH_DIR}/include")
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20
                        CUDA_ARCHITECTURES "${MEGALITH_CUDA_ARCHITECTURES}")
  target_sources(megalith_${module} PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

# The precompiled header is built once, for an otherwise empty library, and reused by every target that includes libtorch.
function(megalith_use_pch target)
  if(NOT TARGET megalith_pch)
    file(WRITE ${PROJECT_BINARY_DIR}/pch.cc "// Carries the precompiled header; see megalith_use_pch.\n")
    add_library(megalith_pch STATIC ${PROJECT_BINARY_DIR}/pch.cc)
    target_link_libraries(megalith_pch PRIVATE megalith_torch megalith_compile_options fmt::fmt)
    target_precompile_headers(megalith_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)
  endif()
  target_precompile_headers(${target} REUSE_FROM megalith_pch)
endfunction()

# Compiles a target's sources in batches of one translation unit each: most of the time of a small source goes into headers,
# which a batch reads once. CMake itself leaves out sources with flags of their own. The names in anonymous namespaces of a
# target have to differ. MEGALITH_UNITY=OFF compiles each source on its own.
function(megalith_use_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${MEGALITH_UNITY} UNITY_BUILD_BATCH_SIZE ${MEGALITH_UNITY_BATCH})
  if(MEGALITH_UNITY)
    # GCC takes the sources of a batch for headers, where a type of an anonymous namespace would differ from unit to unit.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# -O1 takes a fifth to a half off the time to compile a target. For code that is never hot: options, commands, tests, and what
# only calls operations on tensors.
function(megalith_optimise_lightly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O1>)
endfunction()

# by_suite: whether suites without golden data become CTest entries, too.
function(megalith_discover_suites name by_suite left_out labels timeout)
  set(target ${name}_test)
  set(suites_file ${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake)
  set(script ${PROJECT_SOURCE_DIR}/cmake/DiscoverSuites.cmake)
  list(JOIN labels "," labels)  # a semicolon would cut the command
  add_custom_command(TARGET ${target} POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} -D BINARY=$<TARGET_FILE:${target}> -D NAME=${name} -D "LEFT_OUT=${left_out}" -D "LABELS=${labels}"
            -D BY_SUITE=${by_suite} -D TIMEOUT=${timeout} -D FOLDER=${PROJECT_SOURCE_DIR} -D OUTPUT=${suites_file} -P ${script})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
  set(include_file ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
  file(CONFIGURE OUTPUT ${include_file} @ONLY CONTENT [[
if(EXISTS "@suites_file@")
  include("@suites_file@")
else()
  add_test(@target@_NOT_BUILT @target@_NOT_BUILT)
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include_file})
endfunction()

# For set_tests_properties: programs that are tested on the CPU, also where there is a GPU.
set(MEGALITH_TEST_ON_CPU ENVIRONMENT CUDA_VISIBLE_DEVICES=)

# megalith_add_test(NAME SOURCES … [MODULES modules…] [LIBRARIES …] [TORCH] [LABELS …] [TIMEOUT seconds]
#                   [ON_CPU] [BY_SUITE] [NEED_TOKENIZERS patterns…] [NEED_CUDA patterns…])
#
# One test binary per module, tests/<module>/*_test.cc. CTest sees every test as <module>.<Suite>.<Test>. A build without
# tokenizers leaves out the tests that match NEED_TOKENIZERS, a build without CUDA those that match NEED_CUDA.
#
# Tests of a suite whose name starts with `Golden` (after its instance: `hf/GoldenTrainer`) get the label `golden`. Those with
# parameters are one CTest entry for all: what the folder of golden data holds is known only when the tests run.
#
# BY_SUITE: CTest sees <module>.<Suite>, and the tests of a suite run in one process. For tests that take milliseconds, since
# a process that loads libtorch takes 0.4 seconds to start. Golden tests keep a process and a name each.
function(megalith_add_test name)
  cmake_parse_arguments(ARG "TORCH;ON_CPU;BY_SUITE" "TIMEOUT" "SOURCES;MODULES;LIBRARIES;LABELS;NEED_TOKENIZERS;NEED_CUDA" ${ARGN})
  set(target ${name}_test)
  add_executable(${target} ${ARG_SOURCES})
  list(TRANSFORM ARG_MODULES PREPEND megalith_)
  target_link_libraries(${target} PRIVATE ${ARG_MODULES} ${ARG_LIBRARIES} megalith_test_support
                        megalith_compile_options megalith_test_main)
  if(ARG_TORCH)
    megalith_use_pch(${target})
  endif()
  megalith_use_unity(${target})
  megalith_optimise_lightly(${target})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # NO_PRETTY_VALUES: a name with the printed parameter in it may hold raw bytes, which differ from run to run.
  set(common NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 TEST_PREFIX ${name}. WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set(properties TIMEOUT ${ARG_TIMEOUT})
  if(ARG_ON_CPU)
    list(APPEND properties ${MEGALITH_TEST_ON_CPU})
  endif()
  set(left_out)
  if(NOT MEGALITH_TOKENIZERS)
    list(APPEND left_out ${ARG_NEED_TOKENIZERS})
  endif()
  if(NOT MEGALITH_CUDA)
    list(APPEND left_out ${ARG_NEED_CUDA})
  endif()
  list(JOIN left_out ":" left_out)
  set(golden "Golden*:*/Golden*")
  if(CMAKE_CROSSCOMPILING)
    set(ARG_BY_SUITE OFF)  # it would run the binary after each link
  endif()
  if(ARG_BY_SUITE)
    if(ARG_ON_CPU)
      message(FATAL_ERROR "${target}: BY_SUITE and ON_CPU do not go together")
    endif()
  else()
    gtest_discover_tests(${target} ${common} TEST_FILTER "-${golden}:${left_out}" TEST_LIST ${target}_plain
      PROPERTIES ${properties})
  endif()
  if(CMAKE_CROSSCOMPILING)
    gtest_discover_tests(${target} ${common} TEST_FILTER "${golden}-${left_out}" TEST_LIST ${target}_golden
      PROPERTIES ${properties})
  else()
    megalith_discover_suites(${name} "${ARG_BY_SUITE}" "${left_out}" "${ARG_LABELS}" ${ARG_TIMEOUT})
  endif()
  # gtest_discover_tests cannot pass on a list of labels: CTest sets them when it has read the tests.
  set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake)
  file(CONFIGURE OUTPUT ${labels_file} @ONLY CONTENT [[
foreach(_test IN LISTS @target@_plain)
  set_tests_properties(${_test} PROPERTIES LABELS "@name@;@ARG_LABELS@")
endforeach()
foreach(_test IN LISTS @target@_golden)
  set_tests_properties(${_test} PROPERTIES LABELS "@name@;golden;@ARG_LABELS@")
endforeach()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
endfunction()
