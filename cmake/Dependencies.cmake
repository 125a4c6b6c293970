# Every library that Megalith stands on, in one place.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
include(Libtorch)

# Each may be missing: see src/megalith/tokenizer and src/megalith/data. `loss` is what does not work without it. Sets
# MEGALITH_<NAME>, _INCLUDE_DIR, _LIBRARY.
function(megalith_find_optional name header library loss)
  find_path(MEGALITH_${name}_INCLUDE_DIR ${header})
  find_library(MEGALITH_${name}_LIBRARY ${library})
  mark_as_advanced(MEGALITH_${name}_INCLUDE_DIR MEGALITH_${name}_LIBRARY)
  set(found OFF)
  if(MEGALITH_${name}_INCLUDE_DIR AND MEGALITH_${name}_LIBRARY)
    set(found ON)
  else()
    message(STATUS "Without ${library}: ${loss}")
  endif()
  set(MEGALITH_${name} ${found} PARENT_SCOPE)
endfunction()
megalith_find_optional(PCRE2 pcre2.h pcre2-8 "tokenizers that need it cannot be opened")
megalith_find_optional(UTF8PROC utf8proc.h utf8proc "tokenizers that need it cannot be opened")
megalith_find_optional(SENTENCEPIECE sentencepiece_processor.h sentencepiece "tokenizers that need it cannot be opened")
megalith_find_optional(ZLIB zlib.h z "corpora packed with gzip cannot be read")
megalith_find_optional(ZSTD zstd.h zstd "corpora packed with Zstandard cannot be read")

if(MEGALITH_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
