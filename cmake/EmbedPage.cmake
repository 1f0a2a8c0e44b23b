# Writes OUT, a header that defines the page as one string: HTML with the style sheet in the place of
# @STYLE@ and the scripts, one behind the other, in that of @SCRIPT@.
#   HTML, STYLE   files; SCRIPTS   files, separated by '|'
cmake_policy(VERSION 3.24)
file(READ ${HTML} page)
file(READ ${STYLE} style)
set(script "")
string(REPLACE "|" ";" files "${SCRIPTS}")
foreach(file IN LISTS files)
  file(READ ${file} text)
  string(APPEND script "${text}")
endforeach()
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")
string(FIND "${page}" ")page\"" delimiter)
if(NOT delimiter EQUAL -1)
  message(FATAL_ERROR "the page contains the end of the string that it is put into")
endif()
file(WRITE ${OUT} "// Made from the files of server/page.\n#pragma once\n\nnamespace ziggurat {\n\n"
  "inline constexpr char kPageHtml[] = R\"page(${page})page\";\n\n}  // namespace ziggurat\n")
