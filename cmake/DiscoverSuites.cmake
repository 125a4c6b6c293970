# cmake -D BINARY=… -D NAME=… -D BY_SUITE=ON|OFF -D LEFT_OUT=… -D LABELS=a,b -D TIMEOUT=… -D FOLDER=… -D OUTPUT=…
#       -P DiscoverSuites.cmake
#
# Writes a CTest file. With BY_SUITE it runs each suite of a test binary in one process, as the test NAME.Suite;
# gtest_discover_tests is the same for single tests. Always it runs each test of the suites with golden data as
# NAME.Suite.Test, over all values of its parameter: those depend on the folder that MEGALITH_GOLDEN_DIR names when the test
# runs, not when it is built. Called when the binary has been linked.
execute_process(COMMAND ${BINARY} --gtest_list_tests "--gtest_filter=-${LEFT_OUT}"
                WORKING_DIRECTORY ${FOLDER} OUTPUT_VARIABLE listing RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  file(REMOVE ${BINARY})  # so that the next build tries again
  message(FATAL_ERROR "${BINARY} --gtest_list_tests ended with ${code}:\n${listing}")
endif()
string(REPLACE ";" "\\;" listing "${listing}")
string(REPLACE "\n" ";" listing "${listing}")
set(text "")
# add(NAME FILTER LABELS TIMEOUT)
function(add test filter labels timeout)
  string(REPLACE "," ";" more "${LABELS}")
  list(APPEND labels ${more})
  string(APPEND text
    "add_test([==[${test}]==] [==[${BINARY}]==] [==[--gtest_filter=${filter}-${LEFT_OUT}]==])\n"
    "set_tests_properties([==[${test}]==] PROPERTIES WORKING_DIRECTORY [==[${FOLDER}]==] TIMEOUT ${timeout}"
    " SKIP_RETURN_CODE 77 FAIL_REGULAR_EXPRESSION [==[Running 0 tests]==] LABELS [==[${labels}]==])\n")
  set(text "${text}" PARENT_SCOPE)
endfunction()

math(EXPR golden_timeout "4 * ${TIMEOUT}")  # for the models of a whole folder
set(golden_tests)
foreach(line IN LISTS listing)
  # "Suite." or "Instance/Suite.  # TypeParam = …"; tests are indented: "  Test" or "  Test/value  # GetParam() = …".
  if(line MATCHES "^([A-Za-z0-9_/]+)\\.($|  #)")
    set(suite ${CMAKE_MATCH_1})
    if(BY_SUITE AND NOT suite MATCHES "^(.*/)?Golden")
      add(${NAME}.${suite} "${suite}.*" "${NAME}" ${TIMEOUT})
    endif()
  elseif(suite MATCHES "^(.*/)?Golden" AND line MATCHES "^  ([A-Za-z0-9_]+)")
    set(test ${suite}.${CMAKE_MATCH_1})
    list(FIND golden_tests ${test} place)
    if(place EQUAL -1)
      list(APPEND golden_tests ${test})
      add(${NAME}.${test} "${test}:${test}/*" "${NAME};golden" ${golden_timeout})
    endif()
  endif()
endforeach()
file(WRITE ${OUTPUT} "${text}")
