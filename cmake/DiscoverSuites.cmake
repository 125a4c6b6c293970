# cmake -D BINARY=… -D NAME=… -D LEFT_OUT=… -D LABELS=a,b -D TIMEOUT=… -D FOLDER=… -D OUTPUT=… -P DiscoverSuites.cmake
#
# Writes a CTest file that runs each suite of a test binary in one process, as the test NAME.Suite. Called when the binary
# has been linked; gtest_discover_tests is the same for single tests.
execute_process(COMMAND ${BINARY} --gtest_list_tests "--gtest_filter=-${LEFT_OUT}"
                WORKING_DIRECTORY ${FOLDER} OUTPUT_VARIABLE listing RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  file(REMOVE ${BINARY})  # so that the next build tries again
  message(FATAL_ERROR "${BINARY} --gtest_list_tests ended with ${code}:\n${listing}")
endif()
string(REPLACE ";" "\\;" listing "${listing}")
string(REPLACE "\n" ";" listing "${listing}")
set(text "")
foreach(line IN LISTS listing)
  # "Suite." or "Instance/Suite.  # TypeParam = …"; tests are indented.
  if(NOT line MATCHES "^([A-Za-z0-9_/]+)\\.($|  #)")
    continue()
  endif()
  set(suite ${CMAKE_MATCH_1})
  set(labels "${NAME}")
  string(REPLACE "," ";" more "${LABELS}")
  list(APPEND labels ${more})
  string(APPEND text
    "add_test([==[${NAME}.${suite}]==] [==[${BINARY}]==] [==[--gtest_filter=${suite}.*-${LEFT_OUT}]==])\n"
    "set_tests_properties([==[${NAME}.${suite}]==] PROPERTIES WORKING_DIRECTORY [==[${FOLDER}]==] TIMEOUT ${TIMEOUT}"
    " SKIP_RETURN_CODE 77 FAIL_REGULAR_EXPRESSION [==[Running 0 tests]==] LABELS [==[${labels}]==])\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
