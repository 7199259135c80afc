# Writes one ctest entry for each GoogleTest suite in `program` to `list`; runs after the test program is linked.
execute_process(COMMAND ${program} --gtest_list_tests OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
cmake_path(GET list PARENT_PATH folder)
string(REGEX MATCHALL "(^|\n)[^ \n]+\\.( |\n|$)" suites "${output}")
list(REVERSE suites)  # those of many cases, which GoogleTest lists last, begin: no processor is left with one of them at the end
set(entries)
foreach(suite ${suites})
  string(STRIP "${suite}" suite)
  string(REGEX REPLACE "\\.$" "" suite "${suite}")
  string(REPLACE "/" "-" file "${suite}")
  string(APPEND entries "add_test([==[${suite}]==] [==[${program}]==] [==[--gtest_filter=${suite}.*]==] [==[--gtest_output=json:${folder}/results/${file}.json]==])\n")
endforeach()
file(WRITE ${list} "${entries}")
