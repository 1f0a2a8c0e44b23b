# Writes OUT with version and commit. Runs at every build, so that the commit is never stale; the
# file changes only when they do. Where the tree comes without git, as into a container's build, the
# variable ZIGGURAT_COMMIT of the environment says which commit it is.
set(commit "$ENV{ZIGGURAT_COMMIT}")
if(commit STREQUAL "")
  execute_process(
    COMMAND git -C ${SOURCE_DIR} rev-parse --short HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    set(commit "unknown")
  endif()
elseif(NOT commit MATCHES "^[0-9A-Za-z._-]+$")
  message(FATAL_ERROR "ZIGGURAT_COMMIT is no commit: '${commit}'")
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT
"#define ZIGGURAT_VERSION \"${VERSION}\"\n#define ZIGGURAT_COMMIT \"${commit}\"\n")
