# Flags that hold for every target of ours. Third-party headers come in as SYSTEM includes, so
# -Werror concerns only our own code.
add_library(ziggurat_options INTERFACE)
target_compile_options(ziggurat_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -fno-math-errno
  $<$<BOOL:${ZIGGURAT_WARNINGS_AS_ERRORS}>:-Werror>)
# Elsewhere a library may bring flags that keep a precompiled header from being taken: slower, not wrong.
target_compile_options(ziggurat_options INTERFACE -Wno-error=invalid-pch)
target_include_directories(ziggurat_options INTERFACE ${CMAKE_SOURCE_DIR})

if(ZIGGURAT_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(ZIGGURAT_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT ZIGGURAT_SANITIZER STREQUAL "")
  message(FATAL_ERROR "ZIGGURAT_SANITIZER must be empty, 'address' or 'thread', not '${ZIGGURAT_SANITIZER}'")
endif()
if(NOT ZIGGURAT_SANITIZER STREQUAL "")
  # Where the sanitizer's checks stand between, GCC 12 sees uninitialized alternatives of
  # std::variant and std::optional, and strings that overlap.
  add_compile_options(-Wno-maybe-uninitialized -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
    -Wno-stringop-overread)
endif()

# ziggurat_headers(name HEADERS <h>... [LIBS lib...] [PIC]): headers that many files include, compiled
# once for the targets that ask for them with ziggurat_precompile(). GCC takes them only for files
# with the same flags: position independent for libraries, and not for programs.
function(ziggurat_headers name)
  cmake_parse_arguments(ARG "PIC" "" "HEADERS;LIBS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc CONTENT "")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE ziggurat_options ${ARG_LIBS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  if(ARG_PIC)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
endfunction()

# ziggurat_precompile(target headers): `target` takes what ziggurat_headers(headers) has compiled.
function(ziggurat_precompile target headers)
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${headers})
  add_dependencies(${target} ${headers})
endfunction()

# ziggurat_unite(target [ONLY file...]): files of `target`, or those alone, are compiled several at a time:
# what the templates of their headers take is then paid once for all. Names in their anonymous namespaces
# must differ, or be overloads that cannot be taken for each other.
function(ziggurat_unite target)
  if(NOT ZIGGURAT_UNITY OR NOT ZIGGURAT_SANITIZER STREQUAL "")
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "ONLY" ${ARGN})
  set(files ${ARG_ONLY})
  if(NOT files)
    get_target_property(files ${target} SOURCES)
  endif()
  set(index 0)
  foreach(file IN LISTS files)
    math(EXPR group "${index} / 7")
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${group})
    math(EXPR index "${index} + 1")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

set(ZIGGURAT_COMMON_HEADERS <algorithm> <chrono> <functional> <map> <memory> <optional> <random> <string>
  <string_view> <vector> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
  <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/time/time.h> <absl/types/span.h>)

# ziggurat_library(name SOURCES... ) with the folder's own sources; link with target_link_libraries.
function(ziggurat_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC ziggurat_options)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# ziggurat_test_objects(name SOURCES a.cc... LIBS lib... [HEADERS h])
# Tests that more than one binary takes.
function(ziggurat_test_objects name)
  cmake_parse_arguments(ARG "" "HEADERS" "SOURCES;LIBS" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  ziggurat_compile_tests(${name} "${ARG_HEADERS}")
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
endfunction()

# ziggurat_compile_tests(target headers): how the sources of tests are compiled.
function(ziggurat_compile_tests target headers)
  if(NOT headers)
    set(headers ziggurat_test_headers)
  endif()
  target_link_libraries(${target} PRIVATE ziggurat_options GTest::gtest GTest::gmock)
  target_compile_definitions(${target} PRIVATE ZIGGURAT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" ZIGGURAT_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # What is tested is optimized; what tests it need not be.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  ziggurat_precompile(${target} ${headers})
endfunction()

# ziggurat_test(name SOURCES a.cc... LIBS lib... [PREFIX golden/] [TIMEOUT seconds] [LABELS l...]
#               [PROCESSORS n] [HEADERS h])
# One GoogleTest binary; each of its tests becomes a ctest test called <PREFIX><Suite>.<Test>.
function(ziggurat_test name)
  cmake_parse_arguments(ARG "" "PREFIX;TIMEOUT;PROCESSORS;HEADERS" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_PROCESSORS)
    set(ARG_PROCESSORS 1)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  ziggurat_compile_tests(${name} "${ARG_HEADERS}")
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest_main)
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" DISCOVERY_TIMEOUT 120
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ARG_PROCESSORS} LABELS "${ARG_LABELS}")
endfunction()
