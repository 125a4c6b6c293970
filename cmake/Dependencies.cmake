# Every library that Megalith stands on, in one place.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
include(Libtorch)

if(MEGALITH_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
