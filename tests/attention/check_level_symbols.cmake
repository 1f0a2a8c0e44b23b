# A level's object file may define its own table (two levels may share a file) and nothing that
# another translation unit could define too: of such a (weak) symbol the linker keeps one copy,
# perhaps the one with instructions that the machine lacks.
#   cmake -DNM=nm -DOBJECTS=a.o,b.o -P check_level_symbols.cmake
string(REPLACE "," ";" objects "${OBJECTS}")
foreach(object IN LISTS objects)
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} failed on ${object}")
  endif()
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
  list(FILTER shared EXCLUDE REGEX "asan|ubsan|DW\\.ref|tsan")
  if(shared)
    message(FATAL_ERROR "${object} shares symbols with other translation units:\n${shared}")
  endif()
  string(REGEX MATCHALL "[^\n]* T [^\n]*" defined "${symbols}")
  list(LENGTH defined count)
  list(FILTER defined EXCLUDE REGEX " T ziggurat::cpu::[A-Za-z0-9]+Kernels\\(\\)$")
  if(count EQUAL 0 OR defined)
    message(FATAL_ERROR "${object} must define tables of kernels only, but defines:\n${defined}")
  endif()
endforeach()
