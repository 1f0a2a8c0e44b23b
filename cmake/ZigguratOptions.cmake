# Flags that hold for every target of ours. Third-party headers come in as SYSTEM includes, so
# -Werror concerns only our own code.
add_library(ziggurat_options INTERFACE)
target_compile_options(ziggurat_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror -fno-math-errno)
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
  # GCC 12 sees uninitialized alternatives of std::variant and std::optional where the sanitizer's
  # checks stand between.
  add_compile_options(-Wno-maybe-uninitialized)
endif()

# ziggurat_library(name SOURCES... ) with the folder's own sources; link with target_link_libraries.
function(ziggurat_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC ziggurat_options)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# ziggurat_test(name SOURCES a.cc... LIBS lib... [PREFIX golden/] [TIMEOUT seconds] [LABELS l...])
# One GoogleTest binary; each of its tests becomes a ctest test called <PREFIX><Suite>.<Test>.
function(ziggurat_test name)
  cmake_parse_arguments(ARG "" "PREFIX;TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ziggurat_options ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE ZIGGURAT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" ZIGGURAT_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" DISCOVERY_TIMEOUT 120
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
